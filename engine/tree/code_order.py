"""The order of codes: sorting by (code, id), and ranks of splitters in sorted runs.

Codes are compared as byte strings, which is the order of their labels. Sorting is a radix sort of 64-bit
words with the row they came from. The leading 31 bits distinguish most rows; rows that share them are
few, and are sorted by comparison, or many, and are sorted by all their digits: no skew makes it slow.
"""

from collections.abc import Iterable
from copy import copy

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.tree.code_order_kernels import (
    DIGIT_BITS,
    DIGITS,
    WORD_BYTES,
    WORD_DIGITS,
    digit_counts,
    gather_rows,
    lower_bounds,
    order_equal_codes,
    pack_words,
    radix_pass,
    shared_rows,
    sort_runs,
)

MAX_ROWS = 2**32
# Digits of the first word that are sorted for all rows.
TOP_DIGITS = (3, 4, 5)
# Rows that share those digits and are still sorted by comparison.
LONG_RUN = 4096


def sort_bytes(width: int, id_bytes: int) -> int:
    """Memory per row that `sort_codes` allocates: keys and orders, or later one order and the result."""
    return max(2 * WORD_BYTES + 3 * 4, 2 * 4 + width + id_bytes)


def check_rows(codes: NDArray[np.uint8], ids: NDArray[np.unsignedinteger]) -> None:
    """Raise ValueError unless codes (r, width) uint8 and ids (r,) unsigned belong together."""
    if codes.ndim != 2 or codes.dtype != np.uint8 or codes.shape[1] < 1:
        raise ValueError(f"codes {codes.dtype}{codes.shape}: expected uint8 (rows, width)")
    if ids.shape != codes.shape[:1]:
        raise ValueError(f"ids of shape {ids.shape}: expected one for each of {len(codes)} codes")
    if ids.dtype not in (np.dtype(np.uint32), np.dtype(np.uint64)):
        raise ValueError(f"ids {ids.dtype}: expected uint32 or uint64")
    if len(codes) >= MAX_ROWS:
        raise ValueError(f"{len(codes)} rows at once: expected fewer than {MAX_ROWS}, use smaller partitions")


def sort_codes(
    codes: NDArray[np.uint8], ids: NDArray[np.unsignedinteger]
) -> tuple[NDArray[np.uint8], NDArray[np.unsignedinteger]]:
    """Sort rows by (code, id) into new arrays.

    codes : (r, width) uint8
    ids : (r,) uint32 or uint64, in any order
    """
    check_rows(codes, ids)
    order = _code_order(np.ascontiguousarray(codes))
    sorted_codes = np.empty_like(codes, order="C")
    gather_rows(np.ascontiguousarray(codes), order, sorted_codes)
    sorted_ids = ids[order]
    order_equal_codes(sorted_codes, sorted_ids)
    return sorted_codes, sorted_ids


def _code_order(codes: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Rows of `codes` in stable code order, (r,) uint32."""
    rows, width = codes.shape
    buffers = _Buffers(np.empty((2, rows), np.uint64), np.empty((2, rows), np.uint32))
    buffers.order[:] = np.arange(rows, dtype=np.uint32)
    head = min(width, WORD_BYTES)
    pack_words(codes, buffers.order, 0, head, buffers.keys)
    buffers.keys <<= np.uint64(8 * (WORD_BYTES - head))
    buffers.sort(TOP_DIGITS)
    long_runs = np.empty((rows // LONG_RUN + 1, 2), np.int64)
    count = sort_runs(codes, buffers.keys, buffers.order, DIGIT_BITS * TOP_DIGITS[0], LONG_RUN, long_runs)
    order = buffers.order
    for start, stop in long_runs[:count]:
        order[start:stop] = _order_of(codes, buffers.part(start, stop))
    return order


def _order_of(codes: NDArray[np.uint8], buffers: "_Buffers") -> NDArray[np.uint32]:
    """The rows in the buffers in stable code order, by all their bytes."""
    for last in range(codes.shape[1], 0, -WORD_BYTES):
        pack_words(codes, buffers.order, max(0, last - WORD_BYTES), last, buffers.keys)
        buffers.sort(range(WORD_DIGITS))
    return buffers.order


class _Buffers:
    """Keys and the rows they belong to, and room for a radix pass to move them to."""

    def __init__(self, keys: NDArray[np.uint64], order: NDArray[np.uint32]) -> None:
        """keys : (2, r) uint64, order : (2, r) uint32"""
        self.keys: NDArray[np.uint64] = keys[0]
        self.order: NDArray[np.uint32] = order[0]
        self._keys_out, self._order_out = keys[1], order[1]
        self._counts = np.empty((WORD_DIGITS, DIGITS), np.int64)

    def part(self, start: int, stop: int) -> "_Buffers":
        """Buffers of the rows start..stop in the same memory."""
        part = copy(self)
        part.keys, part._keys_out = self.keys[start:stop], self._keys_out[start:stop]
        part.order, part._order_out = self.order[start:stop], self._order_out[start:stop]
        return part

    def sort(self, digits: Iterable[int]) -> None:
        """Sort stably by some digits of the keys, given from low to high; constant ones cost nothing."""
        self._counts[:] = 0
        digit_counts(self.keys, self._counts)
        for digit in digits:
            counts = self._counts[digit]
            if counts.max(initial=0) == len(self.keys):
                continue
            starts = np.cumsum(counts) - counts
            radix_pass(self.keys, self.order, digit, starts, self._keys_out, self._order_out)
            self.keys, self._keys_out = self._keys_out, self.keys
            self.order, self._order_out = self._order_out, self.order


def ranks_below(
    codes: NDArray[np.uint8],
    ids: NDArray[np.unsignedinteger],
    split_codes: NDArray[np.uint8],
    split_ids: NDArray[np.unsignedinteger],
) -> NDArray[np.int64]:
    """Rows of a sorted run that lie below each splitter (code, id), (s,) int64.

    codes, ids : (r, width) uint8 and (r,), sorted by (code, id)
    split_codes, split_ids : (s, width) uint8 and (s,)
    """
    ranks = np.empty(len(split_ids), np.int64)
    lower_bounds(codes, ids, split_codes, split_ids.astype(ids.dtype, copy=False), ranks)
    return ranks


def shared_around(
    codes: NDArray[np.uint8],
    ranks: NDArray[np.int64],
    firsts: NDArray[np.uint8],
    lasts: NDArray[np.uint8],
    layout: CodeLayout,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of a sorted run that share the first 0..M labels with a code across a cut, (s, M + 1) int64 each.

    ranks : (s,) int64, where the order is cut
    firsts, lasts : (s, width) uint8, the first code behind each cut, and the last one before it
    The rows below the rank are compared with the first code, those from the rank on with the last.
    """
    sizes = np.array([layout.prefix_bytes(level) for level in range(layout.levels + 1)], np.int64)
    before, after = np.zeros((2, len(ranks), len(sizes)), np.int64)
    shared_rows(codes, ranks, firsts, lasts, sizes, before, after)
    return before, after
