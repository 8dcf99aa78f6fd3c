"""Kernels that sort codes as byte strings: radix passes over packed words, and binary search."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.simd.compiled import kernel
from aggtree.engine.tree.sort_kernels import sort_numbers

DIGIT_BITS = 11
DIGITS = 1 << DIGIT_BITS
WORD_BYTES = 8
# 11-bit digits that cover a 64-bit word.
WORD_DIGITS = 6


@kernel
def pack_words(
    codes: NDArray[np.uint8],
    order: NDArray[np.uint32],
    first: int,
    last: int,
    keys: NDArray[np.uint64],
) -> None:
    """Set keys[i] to bytes first..last of code order[i], high byte first, so that keys compare like bytes."""
    for i in range(len(order)):
        row = order[i]
        word = np.uint64(0)
        for j in range(first, last):
            word = (word << np.uint64(8)) | np.uint64(codes[row, j])
        keys[i] = word


@kernel
def digit_counts(keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> None:
    """Count the values of each 11-bit digit of the keys; counts (WORD_DIGITS, DIGITS) starts at zero."""
    for i in range(len(keys)):
        word = keys[i]
        for digit in range(WORD_DIGITS):
            counts[digit, np.int64(word & np.uint64(DIGITS - 1))] += 1
            word >>= np.uint64(DIGIT_BITS)


@kernel
def radix_pass(
    keys: NDArray[np.uint64],
    order: NDArray[np.uint32],
    digit: int,
    starts: NDArray[np.int64],
    keys_out: NDArray[np.uint64],
    order_out: NDArray[np.uint32],
) -> None:
    """Move (key, row) pairs, stably, to where their digit belongs; starts (DIGITS,) are used up."""
    shift = np.uint64(DIGIT_BITS * digit)
    for i in range(len(keys)):
        word = keys[i]
        value = np.int64((word >> shift) & np.uint64(DIGITS - 1))
        place = starts[value]
        starts[value] = place + 1
        keys_out[place] = word
        order_out[place] = order[i]


@kernel
def _code_before(codes: NDArray[np.uint8], key: Any, row: Any, other_key: Any, other: Any) -> Any:
    """Whether a code comes before another: by its first bytes, its other bytes, its row."""
    if key != other_key:
        return key < other_key
    for j in range(WORD_BYTES, codes.shape[1]):
        if codes[row, j] != codes[other, j]:
            return codes[row, j] < codes[other, j]
    return row < other


@kernel
def _shell_sort(
    codes: NDArray[np.uint8], keys: NDArray[np.uint64], order: NDArray[np.uint32], start: int, stop: int
) -> None:
    """Shell's sort of a short run; for a few rows, insertion sort."""
    gap = 1
    while gap < (stop - start) // 9:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(start + gap, stop):
            key, row = keys[i], order[i]
            j = i
            while j >= start + gap and _code_before(codes, key, row, keys[j - gap], order[j - gap]):
                keys[j], order[j] = keys[j - gap], order[j - gap]
                j -= gap
            keys[j], order[j] = key, row
        gap //= 3


@kernel
def sort_runs(
    codes: NDArray[np.uint8],
    keys: NDArray[np.uint64],
    order: NDArray[np.uint32],
    shift: int,
    longest: int,
    long_runs: NDArray[np.int64],
) -> int:
    """Sort each run of keys that are equal above bit `shift`, but for runs of more than `longest` rows.

    keys : first 8 bytes of the codes; long_runs (c, 2) int64 gets start and stop of those left over;
    returns how many there are.
    """
    left, start = 0, 0
    while start < len(keys):
        stop = start + 1
        top = keys[start] >> np.uint64(shift)
        while stop < len(keys) and keys[stop] >> np.uint64(shift) == top:
            stop += 1
        if stop - start > longest:
            long_runs[left, 0], long_runs[left, 1] = start, stop
            left += 1
        elif stop - start > 1:
            _shell_sort(codes, keys, order, start, stop)
        start = stop
    return left


@kernel
def gather_rows(codes: NDArray[np.uint8], order: NDArray[np.uint32], out: NDArray[np.uint8]) -> None:
    """Copy row order[i] of codes to row i of out."""
    width = codes.shape[1]
    for i in range(len(order)):
        row = order[i]
        for j in range(width):
            out[i, j] = codes[row, j]


@kernel
def order_equal_codes(codes: NDArray[np.uint8], ids: NDArray[np.uint64]) -> None:
    """Sort the ids of each run of equal codes; as the codes are equal nothing else has to move."""
    rows, width = codes.shape
    start = 0
    while start < rows:
        stop = start + 1
        ascending = True
        while stop < rows:
            j = 0
            while j < width and codes[stop, j] == codes[start, j]:
                j += 1
            if j < width:
                break
            ascending &= ids[stop - 1] <= ids[stop]
            stop += 1
        if not ascending:
            sort_numbers(ids[start:stop], ids[:0])
        start = stop


@kernel
def _before(
    codes: NDArray[np.uint8],
    ids: NDArray[np.uint64],
    row: int,
    code: NDArray[np.uint8],
    number: int,
) -> Any:
    """Whether (codes[row], ids[row]) < (code, number)."""
    for j in range(codes.shape[1]):
        if codes[row, j] != code[j]:
            return codes[row, j] < code[j]
    return ids[row] < number


@kernel
def lower_bounds(
    codes: NDArray[np.uint8],
    ids: NDArray[np.uint64],
    split_codes: NDArray[np.uint8],
    split_ids: NDArray[np.uint64],
    ranks: NDArray[np.int64],
) -> None:
    """Set ranks[i] to the number of (code, id) rows below the i-th splitter."""
    for i in range(len(split_ids)):
        low, high = 0, len(codes)
        while low < high:
            middle = (low + high) // 2
            if _before(codes, ids, middle, split_codes[i], split_ids[i]):
                low = middle + 1
            else:
                high = middle
        ranks[i] = low


@kernel
def _shares(codes: NDArray[np.uint8], row: int, code: NDArray[np.uint8], size: int) -> Any:
    """Whether a row begins with the first `size` bytes of a code."""
    j = 0
    while j < size and codes[row, j] == code[j]:
        j += 1
    return j == size


@kernel
def _sharing(codes: NDArray[np.uint8], rank: int, towards: int, code: NDArray[np.uint8], size: int) -> Any:
    """Count the sorted rows next to `rank`, below it (towards -1) or from it on (1), that begin like `code`.

    Steps grow exponentially: mostly the rows are few, or far from others in memory.
    """
    most = rank if towards < 0 else len(codes) - rank
    first = rank - 1 if towards < 0 else rank
    count, step = 0, 1
    while count + step <= most and _shares(codes, first + towards * (count + step - 1), code, size):
        count += step
        step *= 2
    least_outside = min(most, count + step - 1)
    while count < least_outside:
        middle = (count + least_outside + 1) // 2
        if _shares(codes, first + towards * (middle - 1), code, size):
            count = middle
        else:
            least_outside = middle - 1
    return count


@kernel
def shared_rows(
    codes: NDArray[np.uint8],
    ranks: NDArray[np.int64],
    firsts: NDArray[np.uint8],
    lasts: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    before: NDArray[np.int64],
    after: NDArray[np.int64],
) -> None:
    """Add to before[i] the rows below ranks[i] that begin with sizes[l] bytes of firsts[i], for each l.

    And to after[i] those from ranks[i] on that begin like lasts[i]. Rows are sorted; firsts[i] is no
    smaller than those before it, lasts[i] no larger than those after it. before, after : (s, M + 1)
    """
    for i in range(len(ranks)):
        for level in range(len(sizes)):
            before[i, level] += _sharing(codes, ranks[i], -1, firsts[i], sizes[level])
            after[i, level] += _sharing(codes, ranks[i], 1, lasts[i], sizes[level])
