"""Kernels of the leaf scan: distances of a chunk of leaves, then which are within a bound; no branches."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.scan.records import LABELS, LeafParts
from aggtree.engine.simd.compiled import kernel
from aggtree.engine.simd.instructions.vectors import lanes_at_most, lowest_bit
from aggtree.engine.simd.intrinsics import load_8_bytes
from aggtree.engine.simd.vector_code import LANES


@kernel
def _look_up(word: Any, byte: Any, columns: NDArray[np.float32], dictionary: Any) -> Any:
    """The column that a byte of a word chooses among the 256 of a dictionary."""
    label = (word >> np.uint64(8 * byte)) & np.uint64(255)
    return columns[label + np.uint64(LABELS * dictionary)]


@kernel
def _look_up_4(word: Any, byte: Any, columns: NDArray[np.float32], dictionary: Any) -> Any:
    """Sum over four consecutive bytes and dictionaries."""
    left = _look_up(word, byte, columns, dictionary) + _look_up(word, byte + 1, columns, dictionary + 1)
    right = _look_up(word, byte + 2, columns, dictionary + 2) + _look_up(
        word, byte + 3, columns, dictionary + 3
    )
    return left + right


@kernel
def _stored_norm(records: NDArray[np.uint8], place: Any, norm_bytes: int, step: Any) -> Any:
    """The norm at the start of a record: steps of a quantized one, or the float32 itself."""
    if norm_bytes == 1:
        return step * np.float32(records[place])
    if norm_bytes == 2:
        number = np.uint32(records[place]) | (np.uint32(records[place + 1]) << np.uint32(8))
        return step * np.float32(number)
    bits = np.uint32(0)
    for j in range(4):
        bits |= np.uint32(records[place + j]) << np.uint32(8 * j)
    return np.uint32(bits).view(np.float32)


@kernel
def _word(records: NDArray[np.uint8], place: Any, count: int, inside: bool) -> Any:
    """The `count` bytes from a place on as a little-endian number; what is above them is not used."""
    if inside:
        return load_8_bytes(records, place)
    word = np.uint64(0)
    for j in range(count):
        word |= np.uint64(records[place + j]) << np.uint64(8 * j)
    return word


@kernel
def _values_by_words(
    records: NDArray[np.uint8],
    parts: LeafParts,
    count: int,
    suffix: Any,
    inside: bool,
    step: Any,
    columns: Any,
    out: Any,
) -> None:
    """`leaf_values` for norms of one byte and suffixes of 5 to 8: a record is one word, or a byte and one.

    inside : whether 8 bytes may be read from the start of any record
    """
    for part in range(count):
        place, base = parts.records[part], parts.bases[part]
        start, stop = parts.places[part], parts.places[part + 1]
        if suffix == 8:
            for i in range(start, stop):
                word = _word(records, place + 1, 8, inside)
                value = base + step * np.float32(records[place])
                out[i] = value + (_look_up_4(word, 0, columns, 0) + _look_up_4(word, 4, columns, 4))
                place += 9
        elif suffix == 7:
            for i in range(start, stop):
                word = _word(records, place, suffix + 1, inside)
                value = base + step * np.float32(word & np.uint64(255))
                rest = (_look_up(word, 5, columns, 4) + _look_up(word, 6, columns, 5)) + _look_up(
                    word, 7, columns, 6
                )
                out[i] = value + (_look_up_4(word, 1, columns, 0) + rest)
                place += 8
        elif suffix == 6:
            for i in range(start, stop):
                word = _word(records, place, suffix + 1, inside)
                value = base + step * np.float32(word & np.uint64(255))
                rest = _look_up(word, 5, columns, 4) + _look_up(word, 6, columns, 5)
                out[i] = value + (_look_up_4(word, 1, columns, 0) + rest)
                place += 7
        else:
            for i in range(start, stop):
                word = _word(records, place, suffix + 1, inside)
                value = base + step * np.float32(word & np.uint64(255))
                out[i] = value + (_look_up_4(word, 1, columns, 0) + _look_up(word, 5, columns, 4))
                place += 6


@kernel
def _last_byte_read(parts: LeafParts, count: int, size: int) -> Any:
    """The byte behind an 8-byte load from the last record of any part, or a byte more."""
    last = 0
    for part in range(count):
        rows = parts.places[part + 1] - parts.places[part]
        last = max(last, parts.records[part] + (rows - 1) * size + 9)
    return last


@kernel
def leaf_values(
    records: NDArray[np.uint8],
    parts: LeafParts,
    count: int,
    size: int,
    norm_bytes: int,
    step: float,
    columns: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Set out[i] to base + stored norm + look-ups of the suffix, for the leaves i of `count` parts.

    size : bytes of a record; step : of a quantized norm; columns : 256 for each label of the suffix
    """
    suffix = size - norm_bytes
    if norm_bytes == 1 and 5 <= suffix <= 8:
        # A load of 8 bytes may read past its record, but not past the array.
        if _last_byte_read(parts, count, size) <= len(records):
            _values_by_words(records, parts, count, suffix, True, step, columns, out)
        else:
            _values_by_words(records, parts, count, suffix, False, step, columns, out)
        return
    for part in range(count):
        place = parts.records[part]
        for i in range(parts.places[part], parts.places[part + 1]):
            value = parts.bases[part] + _stored_norm(records, place, norm_bytes, step)
            for j in range(suffix):
                value += columns[LABELS * j + np.int64(records[place + norm_bytes + j])]
            out[i] = value
            place += size


@kernel
def passing(values: NDArray[np.generic], count: int, bound: Any, places: NDArray[np.int64]) -> Any:
    """List the places among the first `count` values that do not exceed the bound; return how many.

    values : (v,) float32 or int32, v >= count rounded up to LANES
    """
    found = 0
    for start in range(0, count, LANES):
        mask = lanes_at_most(values, start, bound)
        if count - start < LANES:
            mask &= (1 << (count - start)) - 1
        while mask != 0:
            places[found] = start + lowest_bit(mask)
            found += 1
            mask &= mask - 1
    return found
