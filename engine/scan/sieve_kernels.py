"""Kernels of the sieve: which leaves of a node cannot be near enough, found from sums of bytes.

The distance of a leaf is base + Σ_j t_j(b_j) over the bytes b_j of its record: table entries of its labels,
and multiples of a step for its norm. With l_j the least entry of t_j and a scale s, the integers
floor((t_j - l_j) s), cut to 255, have a sum of at most (bound - base - Σ l_j) s for every leaf within a
bound. Leaves with a larger sum are skipped; the others are scored as usual, so the sieve changes no
answer. It is used where the processor has instructions for it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.scan.records import LABELS, Sieve
from aggtree.engine.simd.compiled import inlined, kernel
from aggtree.engine.simd.instructions.sieve import NINE, PLANES, SIEVED, sieve_64, sieve_64_of_nine
from aggtree.engine.simd.instructions.vectors import lowest_bit, row_minima
from aggtree.engine.simd.vector_code import LANES

# Leaves below which a node is not worth a look through the sieve.
SIEVE_ROWS = 12
# The sum that a leaf at the bound has when the tables are made; made again when it has fallen to the other.
FITTED, WORN = 240, 120
# Additions in a distance, and in what it is compared with, times the error of one: more than all of them.
ROUNDING = np.float32(2.0**-19)
# Sums from here on carry no information.
FULL = 255


@kernel
def _extent(values: NDArray[np.float32], row: int, minima: NDArray[np.float32]) -> tuple[Any, Any]:
    """The least entry of a row, and the size of the largest."""
    row_minima(values, row, values.shape[1], minima)
    low = minima[0]
    for lane in range(1, LANES):
        low = min(low, minima[lane])
    # Sizes of floats order as their bits do, and of integers a vector loop finds the largest.
    largest = np.int32(0)
    entries = values[row].view(np.int32)
    for label in range(LABELS):
        largest = max(largest, entries[label] & np.int32(0x7FFFFFFF))
    return low, np.int32(largest).view(np.float32)


@kernel
def _fill_table(table: NDArray[np.uint8], values: Any, low: Any, scale: Any) -> None:
    for label in range(LABELS):
        number = (values[label] - low) * scale
        table[label] = np.uint8(np.int32(number if number < np.float32(FULL) else np.float32(FULL)))


@kernel
def _fill_norm_table(table: NDArray[np.uint8], weight: Any) -> None:
    for label in range(LABELS):
        number = weight * np.float32(label)
        table[label] = np.uint8(np.int32(number if number < np.float32(FULL) else np.float32(FULL)))


@inlined
def reset_sieve(sieve: Sieve) -> None:
    """Discard the tables of another level, and its nodes."""
    sieve.lowest[0], sieve.largest[0], sieve.scale[0] = 0, np.inf, 0
    sieve.nearest[0] = np.inf


@kernel
def fit_sieve(
    sieve: Sieve, columns: NDArray[np.float32], norm_bytes: int, suffix: int, step: Any, room: Any
) -> None:
    """Make the tables of a level so that a leaf of distance base + room has a sum of about FITTED.

    columns : (>= 256 suffix,) float32, distance tables of the suffix; step : of a norm
    """
    values = columns[: LABELS * suffix].reshape(suffix, LABELS)
    lowest = np.float32(0)
    # A corrupt file may hold any step.
    largest = step * np.float32(1 << 8 * norm_bytes) if step >= 0 else np.float32(np.inf)
    for row in range(suffix):
        low, size = _extent(values, row, sieve.minima)
        sieve.lows[row] = low
        lowest, largest = lowest + low, largest + size
    width = room - lowest
    scale = np.float32(FITTED) / width if 0 < width < np.inf and largest < np.inf else np.float32(0)
    for byte in range(norm_bytes):
        _fill_norm_table(sieve.tables[byte], step * np.float32(1 << 8 * byte) * scale)
    for row in range(suffix):
        _fill_table(sieve.tables[norm_bytes + row], values[row], sieve.lows[row], scale)
    sieve.tables[norm_bytes + suffix :] = 0
    sieve.lowest[0], sieve.largest[0], sieve.scale[0] = lowest, largest, scale


@inlined
def sieve_limit(sieve: Sieve, base: Any, bound: Any) -> Any:
    """The largest sum of a leaf within a bound; -1 if there is none, FULL where the sieve does not decide."""
    lowest, largest, scale = sieve.lowest[0], sieve.largest[0], sieve.scale[0]
    room = bound - base - lowest + ROUNDING * (abs(bound) + abs(base) + largest)
    if room < 0:
        return np.float32(-1)
    limit = room * scale + np.float32(1)
    return limit if scale > 0 and limit < FULL else np.float32(FULL)


@inlined
def sieve_leaves(
    records: NDArray[np.uint8],
    place: int,
    start: int,
    rows: int,
    size: int,
    index: NDArray[np.uint8],
    sieve: Sieve,
    limit: Any,
) -> None:
    """Note which of the `rows` records from byte `place` on have a sum within the limit, in sieve.masks.

    start : the record that `place` is of, a multiple of SIEVED; its mask is number start / SIEVED
    At least READ_AHEAD bytes follow the records of whole SIEVED rows.
    """
    rest = size % PLANES
    # One plane or two are made faster by themselves than by eights.
    whole = size - rest + (PLANES if rest > 2 else 0)
    most, first = np.uint8(limit), start // SIEVED
    for block in range(-(-rows // SIEVED)):
        record = place + block * SIEVED * size
        if size == NINE:
            sieve.masks[first + block] = sieve_64_of_nine(records, record, sieve.tables, most)
        else:
            sieve.masks[first + block] = sieve_64(
                records, record, size, index, sieve.tables, whole, size, most
            )


@inlined
def list_set_bits(masks: NDArray[np.uint64], rows: int, places: NDArray[np.int64]) -> Any:
    """List the bits that are set among the first `rows` of the masks; return how many.

    Apart from making the masks: a mispredicted branch here, which is frequent, must not stop the sieve.
    """
    found = 0
    for start in range(0, rows, SIEVED):
        bits = np.int64(masks[start // SIEVED])
        if rows - start < SIEVED:
            bits &= (np.int64(1) << (rows - start)) - 1
        while bits != 0:
            places[found] = start + lowest_bit(bits)
            found += 1
            bits &= bits - 1
    return found
