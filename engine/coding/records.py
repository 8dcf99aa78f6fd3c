"""Records passed to the kernels of encoding, and the memory they write to."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.clustering.distances import BLOCK_ROWS as GROUP_ROWS
from aggtree.engine.simd.instructions.products import TILE_ROWS
from aggtree.engine.simd.vector_code import LANES

BLOCK_ROWS = 64 * TILE_ROWS
"""Rows that pass a level together. The tables of late levels do not fit the second cache: the more rows share
one pass over them the better, as long as their products with the words do fit."""


class Tables(NamedTuple):
    """The dictionaries as encoding uses them.

    panels : (S / LANES, d, LANES) float32, −2c / scale; start : (S,) float32, ‖c‖² / scale,
        huge for padding. S is the sum of the padded sizes.
    cross : (…,) int16, 2 c_j(i)·c_m(k) / scale; row (m, j, i) starts at cross_start[m, j] + i · padded[m].
    cross_start : (M, M) int64. first, padded : (M,) int64, first column and padded size of each dictionary.
    """

    panels: NDArray[np.float32]
    start: NDArray[np.float32]
    cross: NDArray[np.int16]
    cross_start: NDArray[np.int64]
    first: NDArray[np.int64]
    padded: NDArray[np.int64]


class Scratch(NamedTuple):
    """Work space of one thread; b rows make a block, L is the beam width, P the largest padded size.

    rows : (b, d) float32. own : (b, P) int32, (‖c‖² − 2 x·c) / scale of one dictionary.
    scores : (L · P,) int32. minima : (L · LANES,) int32. keys : (L,) int64. base : (b, L) int32.
    labels : (b, L, M) uint8. longer : (L, M) uint8. offsets : (M,) int64.
    """

    rows: NDArray[np.float32]
    own: NDArray[np.int32]
    scores: NDArray[np.int32]
    minima: NDArray[np.int32]
    keys: NDArray[np.int64]
    base: NDArray[np.int32]
    labels: NDArray[np.uint8]
    longer: NDArray[np.uint8]
    offsets: NDArray[np.int64]


class ShortScratch(NamedTuple):
    """Work space of one thread for dictionaries of up to 16 words; b rows make a block, L is the beam width.

    rows : (b, d) float32. own : (b, M · LANES) int32, as in `Scratch`. scores : (L · LANES,) int32.
    keys : (L · LANES + LANES,) int32. base : (L + 1,) int32.
    labels : (2 · (L + 1) · LANES,) uint8, the paths of a level and of the next, LANES bytes each.
    tall : L + 1, a place behind the paths for those that are not kept.
    gaps : (M,) int64, how far above the least score the limit of each level was.
    """

    rows: NDArray[np.float32]
    own: NDArray[np.int32]
    scores: NDArray[np.int32]
    keys: NDArray[np.int32]
    base: NDArray[np.int32]
    labels: NDArray[np.uint8]
    tall: int
    gaps: NDArray[np.int64]


class Groups(NamedTuple):
    """Words ordered by group; each group starts a panel of its own.

    panels : (P, d, LANES) float32, −2c. start : (P · LANES,) float32, ‖c‖², infinite for padding.
    words : (P · LANES,) int64, the word in each column, ascending inside a group.
    first_panel : (G + 1,) int64.
    """

    panels: NDArray[np.float32]
    start: NDArray[np.float32]
    words: NDArray[np.int64]
    first_panel: NDArray[np.int64]


class GroupScratch(NamedTuple):
    """Work space to compare b rows with the words of a group.

    rows : (b, d) float32. scores : (b, widest group) float32. minima : (LANES,) float32.
    best : (b,) float32. labels : (b,) int64.
    """

    rows: NDArray[np.float32]
    scores: NDArray[np.float32]
    minima: NDArray[np.float32]
    best: NDArray[np.float32]
    labels: NDArray[np.int64]


def make_scratch(tables: Tables, beam: int) -> Scratch:
    """Allocate the work space of one thread that encodes."""
    levels, widest = len(tables.padded), int(tables.padded.max())
    return Scratch(
        rows=np.zeros((BLOCK_ROWS, tables.panels.shape[1]), np.float32),
        own=np.empty((BLOCK_ROWS, widest), np.int32),
        scores=np.empty(beam * widest, np.int32),
        minima=np.empty(beam * LANES, np.int32),
        keys=np.empty(beam, np.int64),
        base=np.zeros((BLOCK_ROWS, beam), np.int32),
        labels=np.zeros((BLOCK_ROWS, beam, levels), np.uint8),
        longer=np.zeros((beam, levels), np.uint8),
        offsets=np.zeros(levels, np.int64),
    )


def make_short_scratch(tables: Tables, beam: int) -> ShortScratch:
    """Allocate the work space of one thread that encodes with short dictionaries."""
    return ShortScratch(
        rows=np.zeros((GROUP_ROWS, tables.panels.shape[1]), np.float32),
        own=np.empty((GROUP_ROWS, len(tables.start)), np.int32),
        scores=np.empty(beam * LANES, np.int32),
        keys=np.empty((beam + 1) * LANES, np.int32),
        base=np.zeros(beam + 1, np.int32),
        labels=np.zeros(2 * (beam + 1) * LANES, np.uint8),
        tall=beam + 1,
        gaps=np.full(len(tables.padded), LANES, np.int64),
    )


def make_group_scratch(groups: Groups) -> GroupScratch:
    """Allocate the work space of one thread that assigns words by group."""
    widest = int(np.diff(groups.first_panel).max()) * LANES
    return GroupScratch(
        rows=np.zeros((GROUP_ROWS, groups.panels.shape[1]), np.float32),
        scores=np.empty((GROUP_ROWS, widest), np.float32),
        minima=np.empty(LANES, np.float32),
        best=np.empty(GROUP_ROWS, np.float32),
        labels=np.empty(GROUP_ROWS, np.int64),
    )
