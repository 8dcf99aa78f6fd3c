"""Kernels of multi-path encoding, in integers: fast, and the same bytes however rows are blocked.

Distances are counted in units of `scale`. In these units a prefix a extended by word k of
dictionary m scores, up to the constant ‖x‖² (paper, "Multi-path Encoding"),

    base(a) + (‖c‖² − 2 x·c) + Σ_{j<m} 2 c_j(i_j)·c

int32, and the inner-product tables are int16 with a scale that lets no sum of rows overflow.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.compiled import kernel
from aggtree.engine.distances_kernels import Rows, copy_rows, multiply_rows
from aggtree.engine.vector_instructions import LANES, score_row

NO_SCORE = 2**31 - 2


class Tables(NamedTuple):
    """What encoding knows of the dictionaries.

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
    """Work space of one thread; L is the beam width, P the largest padded size.

    rows : (b, d) float32. own : (b, S) int32. scores : (L · P,) int32. minima : (L · LANES,) int32.
    lowest : (L,) int32. keys : (L,) int64. base : (L,) int32. labels : (2, L, M) int64.
    offsets : (M,) int64.
    """

    rows: NDArray[np.float32]
    own: NDArray[np.int32]
    scores: NDArray[np.int32]
    minima: NDArray[np.int32]
    lowest: NDArray[np.int32]
    keys: NDArray[np.int64]
    base: NDArray[np.int32]
    labels: NDArray[np.int64]
    offsets: NDArray[np.int64]


@kernel
def nth_smallest(values: NDArray[np.int32], count: int, n: int, lowest: NDArray[np.int32]) -> int:
    """The n-th smallest of values[:count], or NO_SCORE when there are fewer; lowest : (n,) scratch."""
    if count < n:
        return NO_SCORE
    filled = 0
    for i in range(count):
        value = values[i]
        if filled < n:
            place = filled
            filled += 1
        elif value < lowest[n - 1]:
            place = n - 1
        else:
            continue
        while place > 0 and lowest[place - 1] > value:
            lowest[place] = lowest[place - 1]
            place -= 1
        lowest[place] = value
    return int(lowest[n - 1])


@kernel
def select_paths(
    scores: NDArray[np.int32],
    padded: int,
    minima: NDArray[np.int32],
    live: int,
    keep: int,
    lowest: NDArray[np.int32],
    keys: NDArray[np.int64],
) -> int:
    """Put the `keep` best of live · padded scores into keys, best first, and return their number.

    A key is score · 2¹⁶ + path · 2⁸ + word, so equal scores have one order whatever the scan.
    Only lanes whose minimum is among the `keep` smallest minima can hold one of the best.
    Padding scores more than NO_SCORE / 2 and is never chosen.
    """
    limit = min(nth_smallest(minima, live * LANES, keep, lowest), NO_SCORE // 2)
    worst = (limit + 1) << 16
    found = 0
    for lane in range(live * LANES):
        if minima[lane] > limit:
            continue
        path = lane // LANES
        for word in range(lane % LANES, padded, LANES):
            key = (np.int64(scores[path * padded + word]) << 16) | (path << 8) | word
            if key >= worst:
                continue
            place = found
            if found < keep:
                found += 1
            else:
                place = keep - 1
            while place > 0 and keys[place - 1] > key:
                keys[place] = keys[place - 1]
                place -= 1
            keys[place] = key
            if found == keep:
                worst = keys[keep - 1]
    return found


@kernel
def encode_row(
    own: NDArray[np.int32], tables: Tables, scratch: Scratch, beam: int, code: NDArray[np.uint8]
) -> None:
    """Write the best code (M,) found by a beam over own (S,) = (‖c‖² − 2 x·c) / scale."""
    levels = len(tables.padded)
    live = 1
    scratch.base[0] = 0
    for level in range(levels):
        padded = tables.padded[level]
        terms = own[tables.first[level] :]
        before, after = scratch.labels[level % 2], scratch.labels[1 - level % 2]
        for path in range(live):
            for j in range(level):
                scratch.offsets[j] = tables.cross_start[level, j] + before[path, j] * padded
            score_row(
                tables.cross,
                scratch.offsets,
                level,
                terms,
                scratch.base[path],
                padded,
                scratch.scores,
                path * padded,
                scratch.minima,
                path * LANES,
            )
        keep = beam if level < levels - 1 else 1
        live = select_paths(scratch.scores, padded, scratch.minima, live, keep, scratch.lowest, scratch.keys)
        for path in range(live):
            key = scratch.keys[path]
            scratch.base[path] = np.int32(key >> 16)
            parent = (key >> 8) & 0xFF
            for j in range(level):
                after[path, j] = before[parent, j]
            after[path, level] = key & 0xFF
    for level in range(levels):
        code[level] = scratch.labels[levels % 2, 0, level]


@kernel
def encode_rows(rows: Rows, tables: Tables, scratch: Scratch, beam: int, codes: NDArray[np.uint8]) -> None:
    """Encode rows (n, d) into codes (n, M), a block that fits the cache at a time."""
    first = 0
    while first < rows.shape[0]:
        count = copy_rows(rows, first, scratch.rows)
        multiply_rows(scratch.rows, tables.panels, tables.start, scratch.own)
        for r in range(count):
            encode_row(scratch.own[r], tables, scratch, beam, codes[first + r])
        first += count
