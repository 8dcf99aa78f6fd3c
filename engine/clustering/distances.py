"""Words laid out for fast products with rows, and the nearest word of each row.

‖x − c‖² = ‖x‖² + (‖c‖² − 2 x·c): the bracket ranks words, and is one product per block of rows.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.clustering.distances_kernels import (
    Rows,
    copy_rows,
    merge_nearest,
    multiply_rows,
    squared_lengths,
)
from aggtree.engine.simd.instructions.products import TILE_ROWS
from aggtree.engine.simd.vector_code import LANES

BLOCK_ROWS = 16 * TILE_ROWS
"""Rows per product: 96 rows of 128 dimensions stay in the second-level cache beside a panel."""

ASSIGNED_ROWS = 8192
"""Rows that one task assigns: enough for each group of words of a wide dictionary to meet many of them."""

MAX_WORDS_AT_ONCE = 2048
LARGEST_VALUE = 1e15
"""Larger coordinates would overflow float32 when squared and summed."""


Map = Callable[..., Iterable[Any]]
"""`map`, or one that works on several blocks at a time; results come in the order of the blocks."""


class Chooser(Protocol):
    """Anything that assigns a word to each row."""

    def assign(self, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Labels (n,) int64 and ‖c‖² − 2 x·c (n,) float32 of contiguous rows (n, d)."""


def panel_layout(words: NDArray[np.float32], padded: int) -> NDArray[np.float32]:
    """Lay out words (K, d) as panels (padded / LANES, d, LANES), zero words behind the last:

    panel 0   | dim 0: words 0..15 | dim 1: words 0..15 | ... |
    panel 1   | dim 0: words 16..31 | ...
    """
    full = np.zeros((padded, words.shape[1]), np.float32)
    full[: len(words)] = words
    return np.ascontiguousarray(full.reshape(padded // LANES, LANES, -1).transpose(0, 2, 1))


def check_rows(rows: Rows, dimension: int, first: int = 0) -> NDArray[np.float64]:
    """Squared lengths (n,) of uint8 or float32 rows; ValueError naming the first row that is unusable."""
    if rows.ndim != 2 or rows.shape[1] != dimension:
        raise ValueError(f"vectors of shape {rows.shape}: expected (n, {dimension})")
    lengths = np.empty(len(rows), np.float64)
    squared_lengths(rows, lengths)
    bad = ~(lengths <= LARGEST_VALUE**2)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"row {first + row} has NaN, infinite or huge (over {LARGEST_VALUE:g}) values: remove it"
        )
    return lengths


def as_rows(vectors: NDArray[np.generic]) -> Rows:
    """A contiguous, writable uint8 or float32 copy of a block of vectors, whatever its number type."""
    if vectors.ndim != 2:
        raise ValueError(f"vectors of shape {vectors.shape}: expected two dimensions (n, d)")
    if vectors.dtype == np.uint8:
        return np.array(vectors, order="C")
    if not (np.issubdtype(vectors.dtype, np.floating) or np.issubdtype(vectors.dtype, np.integer)):
        raise ValueError(f"vectors of type {vectors.dtype}: expected integers or floats")
    with np.errstate(over="ignore", invalid="ignore"):
        return vectors.astype(np.float32, order="C")


class NearestWord:
    """The word nearest to each row, by comparing all words (K, d) float32.

    panels : −2c in the layout of `panel_layout`. start : ‖c‖², infinite for padding.
    """

    def __init__(self, words: NDArray[np.float32]) -> None:
        padded = -(-len(words) // LANES) * LANES
        self.start = np.full(padded, np.inf, np.float32)
        self.start[: len(words)] = np.einsum("kd,kd->k", words, words)
        self.panels = panel_layout(-2 * words, padded)

    def assign(self, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Labels (n,) int64 and ‖c‖² − 2 x·c (n,) float32 of contiguous rows (n, d)."""
        labels = np.zeros(len(rows), np.int64)
        best = np.full(len(rows), np.inf, np.float32)
        block = np.empty((BLOCK_ROWS, rows.shape[1]), np.float32)
        minima = np.empty(LANES, np.float32)
        for first in range(0, len(rows), BLOCK_ROWS):
            count = copy_rows(rows, first, block)
            here = slice(first, first + count)
            for word in range(0, len(self.start), MAX_WORDS_AT_ONCE):
                part = self.panels[word // LANES : (word + MAX_WORDS_AT_ONCE) // LANES]
                scores = np.empty((BLOCK_ROWS, len(part) * LANES), np.float32)
                multiply_rows(block, part, self.start[word : word + MAX_WORDS_AT_ONCE], scores)
                merge_nearest(scores, count, word, scores.shape[1], minima, best[here], labels[here])
        return labels, best


def assign_blocks(
    chooser: Chooser, rows: Rows, map_: Map = map
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """What `chooser.assign` gives for rows (n, d); `map_` runs over fixed blocks of them."""
    labels, scores = np.empty(len(rows), np.int64), np.empty(len(rows), np.float32)

    def assign(start: int) -> None:
        here = slice(start, start + ASSIGNED_ROWS)
        labels[here], scores[here] = chooser.assign(rows[here])

    for _ in map_(assign, range(0, len(rows), ASSIGNED_ROWS)):
        pass
    return labels, scores


def products(rows: NDArray[np.float32], words: NDArray[np.float32]) -> NDArray[np.float32]:
    """rows · wordsᵀ, (n, K) float32; the same bytes on any number of threads."""
    padded = -(-len(words) // LANES) * LANES
    height = -(-len(rows) // TILE_ROWS) * TILE_ROWS
    out = np.empty((height, padded), np.float32)
    block = np.zeros((height, rows.shape[1]), np.float32)
    block[: len(rows)] = rows
    multiply_rows(block, panel_layout(words, padded), np.zeros(padded, np.float32), out)
    return out[: len(rows), : len(words)]
