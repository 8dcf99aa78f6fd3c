"""Kernels of multi-path encoding, in integers: fast, and the same bytes however rows are blocked.

Distances are counted in units of `scale`. In these units a prefix a extended by word k of
dictionary m scores, up to the constant ‖x‖² (paper, "Multi-path Encoding"),

    base(a) + (‖c‖² − 2 x·c) + Σ_{j<m} 2 c_j(i_j)·c

int32, and the inner-product tables are int16 with a scale that lets no sum of rows overflow.
"""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.clustering.distances_kernels import Rows, copy_rows, multiply_rows
from aggtree.engine.coding.records import Scratch, Tables
from aggtree.engine.simd.compiled import kernel
from aggtree.engine.simd.instructions.products import TILE_ROWS
from aggtree.engine.simd.instructions.vectors import count_at_most, lanes_at_most, lowest_bit, score_row
from aggtree.engine.simd.vector_code import LANES

NO_SCORE = 2**31 - 2


@kernel
def selection_limit(minima: NDArray[np.int32], live: int, keep: int) -> int:
    """A limit that at least `keep` of minima[: live · LANES] do not exceed, and few more.

    NO_SCORE // 2, which padding exceeds, when there are not so many. Found by bisection: counting is
    one vector operation per path.
    """
    if live * LANES < keep:
        return NO_SCORE // 2
    low, high = int(minima[0]), int(minima[0])
    for i in range(live * LANES):
        low = min(low, int(minima[i]))
    if keep == 1:
        return min(low, NO_SCORE // 2)
    # The first paths are the best so far: their lanes alone give a limit that is high enough.
    for i in range((keep + LANES - 1) // LANES * LANES):
        high = max(high, int(minima[i]))
    high = min(high, NO_SCORE // 2)
    while low < high:
        middle = (low + high) >> 1
        count = count_at_most(minima, live * LANES, np.int32(middle))
        if count < keep:
            low = middle + 1
        else:
            high = middle
            if count <= keep + keep // 4:
                break
    return high


@kernel
def select_paths(
    scores: NDArray[np.int32],
    padded: int,
    minima: NDArray[np.int32],
    live: int,
    keep: int,
    keys: NDArray[np.int64],
) -> int:
    """Put the `keep` best of live · padded scores into keys, best first, and return their number.

    A key is score · 2¹⁶ + path · 2⁸ + word, so equal scores have one order whatever the scan.
    Only lanes whose minimum is within the limit can hold one of the best. Padding scores more than
    NO_SCORE / 2 and is never chosen.
    """
    limit = selection_limit(minima, live, keep)
    worst = (limit + 1) << 16
    found = 0
    for path in range(live):
        lanes = lanes_at_most(minima, path * LANES, np.int32(limit))
        while lanes != 0:
            lane = lowest_bit(lanes)
            lanes &= lanes - 1
            for word in range(lane, padded, LANES):
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
def _extend_paths(row: int, level: int, live: int, tables: Tables, scratch: Scratch) -> None:
    """Score every word of dictionary `level` behind every path of a row."""
    padded = tables.padded[level]
    for path in range(live):
        for j in range(level):
            scratch.offsets[j] = tables.cross_start[level, j] + scratch.labels[row, path, j] * padded
        score_row(
            tables.cross,
            scratch.offsets,
            level,
            scratch.own,
            row * scratch.own.shape[1],
            scratch.base[row, path],
            padded,
            scratch.scores,
            path * padded,
            scratch.minima,
            path * LANES,
        )


@kernel
def _follow_paths(row: int, level: int, live: int, scratch: Scratch) -> None:
    """Turn the chosen keys into the row's paths: base and labels up to `level`."""
    for path in range(live):
        key = scratch.keys[path]
        scratch.base[row, path] = np.int32(key >> 16)
        parent = (key >> 8) & 0xFF
        for j in range(level):
            scratch.longer[path, j] = scratch.labels[row, parent, j]
        scratch.longer[path, level] = key & 0xFF
    for path in range(live):
        for j in range(level + 1):
            scratch.labels[row, path, j] = scratch.longer[path, j]


@kernel
def encode_rows(rows: Rows, tables: Tables, scratch: Scratch, codes: NDArray[np.uint8]) -> None:
    """Encode rows (n, d) into codes (n, M), a block at a time and level by level.

    All rows of a block pass a level before the next begins, so that its words and tables, and the
    block's products with them, stay in the cache.
    """
    levels = len(tables.padded)
    for first in range(0, rows.shape[0], scratch.rows.shape[0]):
        count = copy_rows(rows, first, scratch.rows)
        tall = (count + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS
        live = 1
        scratch.base[:, 0] = 0
        for level in range(levels):
            padded = tables.padded[level]
            start = tables.first[level]
            panels = tables.panels[start // LANES : (start + padded) // LANES]
            multiply_rows(scratch.rows[:tall], panels, tables.start[start : start + padded], scratch.own)
            keep = len(scratch.keys) if level < levels - 1 else 1
            found = live
            for row in range(count):
                _extend_paths(row, level, live, tables, scratch)
                found = select_paths(scratch.scores, padded, scratch.minima, live, keep, scratch.keys)
                _follow_paths(row, level, found, scratch)
            live = found
        for row in range(count):
            for level in range(levels):
                codes[first + row, level] = scratch.labels[row, 0, level]
