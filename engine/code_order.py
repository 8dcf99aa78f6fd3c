"""The order of codes: sorting by (code, id), and ranks of splitters in sorted runs.

Codes are compared as byte strings, which is the order of their labels. Sorting is a least
significant digit radix sort of 64-bit words with the row they came from: no comparison, no branch,
the same time for any skew; digits that are the same in every row cost nothing.
"""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.code_order_kernels import (
    DIGITS,
    WORD_BYTES,
    WORD_DIGITS,
    digit_counts,
    gather_rows,
    lower_bounds,
    order_equal_codes,
    pack_words,
    prefix_range,
    radix_pass,
)
from aggtree.engine.dictionaries import CodeLayout

MAX_ROWS = 2**32


def sort_bytes(width: int, id_bytes: int) -> int:
    """Memory per row that `sort_codes` allocates, its result included."""
    return 2 * WORD_BYTES + 2 * 4 + width + id_bytes


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
    order, spare_order = np.arange(rows, dtype=np.uint32), np.empty(rows, np.uint32)
    keys, spare_keys = np.empty(rows, np.uint64), np.empty(rows, np.uint64)
    counts = np.empty((WORD_DIGITS, DIGITS), np.int64)
    for last in range(width, 0, -WORD_BYTES):
        pack_words(codes, order, max(0, last - WORD_BYTES), last, keys)
        counts[:] = 0
        digit_counts(keys, counts)
        for digit in range(WORD_DIGITS):
            if counts[digit].max() == rows:
                continue
            starts = np.cumsum(counts[digit]) - counts[digit]
            radix_pass(keys, order, digit, starts, spare_keys, spare_order)
            keys, spare_keys = spare_keys, keys
            order, spare_order = spare_order, order
    return order


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


def shared_before(
    codes: NDArray[np.uint8], rank: int, code: NDArray[np.uint8], layout: CodeLayout
) -> NDArray[np.int64]:
    """Rows below `rank` of a sorted run that share the first 0..M labels with `code`, (M + 1,) int64.

    `code` must be no smaller than those rows: it is the first code of the partition that starts there.
    """
    shared = np.empty(layout.levels + 1, np.int64)
    low = 0
    for level in range(layout.levels + 1):
        low = prefix_range(codes, low, rank, code[: layout.prefix_bytes(level)], False)
        shared[level] = rank - low
    return shared


def shared_after(
    codes: NDArray[np.uint8], rank: int, code: NDArray[np.uint8], layout: CodeLayout
) -> NDArray[np.int64]:
    """Rows from `rank` on of a sorted run that share the first 0..M labels with `code`, (M + 1,) int64.

    `code` must be no larger than those rows: it is the last code of the partition that ends there.
    """
    shared = np.empty(layout.levels + 1, np.int64)
    high = len(codes)
    for level in range(layout.levels + 1):
        high = prefix_range(codes, rank, high, code[: layout.prefix_bytes(level)], True)
        shared[level] = high - rank
    return shared
