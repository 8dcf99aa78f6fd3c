"""Bits of rows: bit i % 8 of byte i // 8 stands for row i; bits behind the last row are 0."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.tree.check_kernels import mark_ids
from aggtree.storage.atomic import explained
from aggtree.storage.errors import IndexFormatError


def extended(bits: NDArray[np.uint8], rows: int, more: int) -> NDArray[np.uint8]:
    """The bits of `rows` rows, and set ones for `more` rows behind them."""
    longer = np.zeros(-(-(rows + more) // 8), np.uint8)
    longer[: len(bits)] = bits
    first, last = -(-rows // 8), (rows + more) // 8
    longer[first:last] = 0xFF
    # The two bytes that old and new rows, or rows and nothing, share.
    for row in (*range(rows, min(8 * first, rows + more)), *range(max(8 * last, rows), rows + more)):
        longer[row // 8] |= np.uint8(1 << (row % 8))
    return longer


def read_bits(path: Path, start: int, stop: int) -> NDArray[np.bool_]:
    """The bits of rows start..stop of a file, as booleans (stop - start,)."""
    first = start // 8
    with explained(path):
        bits = np.fromfile(path, np.uint8, count=-(-stop // 8) - first, offset=first)
    return unpacked(bits, start - 8 * first, stop - 8 * first)


def unpacked(bits: NDArray[np.uint8], start: int, stop: int) -> NDArray[np.bool_]:
    """Bits start..stop as booleans."""
    first = start // 8
    whole = np.unpackbits(bits[first : -(-stop // 8)], bitorder="little").view(np.bool_)
    return whole[start - 8 * first : stop - 8 * first]


def deleted_rows(bits: NDArray[np.uint8], rows: int) -> int:
    """How many of the rows have no bit; -1 if there are bits behind them."""
    live = int(np.bitwise_count(bits).sum(dtype=np.int64))
    behind = bits[-1] >> (rows % 8) if rows % 8 and len(bits) else 0
    return -1 if behind else rows - live


def clear_missing(bits: NDArray[np.uint8], ids: NDArray[np.unsignedinteger], first: int, rows: int) -> None:
    """Clear bits of rows that are not in a tree: its ids, counted from 0, are rows first..first + rows."""
    seen = seen_bits(ids, rows)
    # Rows of a segment begin anywhere in a byte: those before and behind stay as they are.
    low, high = first // 8, -(-(first + rows) // 8)
    there = np.ones(8 * (high - low), np.bool_)
    there[first - 8 * low : first + rows - 8 * low] = unpacked(seen, 0, rows)
    bits[low:high] &= np.packbits(there, bitorder="little")


def seen_bits(ids: NDArray[np.unsignedinteger], rows: int) -> NDArray[np.uint8]:
    """A bit for each of `rows` rows that is among the ids of a tree."""
    seen = np.zeros(-(-rows // 8), np.uint8)
    place = mark_ids(ids, rows, seen)
    if place >= 0:
        raise IndexFormatError(
            f"id {ids[place]} of leaf {place} occurs twice or is too large: "
            "call aggtree.verify or run `aggtree verify`"
        )
    return seen
