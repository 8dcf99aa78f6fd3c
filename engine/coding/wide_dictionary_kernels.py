"""Kernels of two-stage assignment: the nearest groups of words, then the words of these groups."""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.clustering.distances_kernels import Rows, merge_nearest
from aggtree.engine.coding.records import Groups, GroupScratch
from aggtree.engine.simd.compiled import kernel
from aggtree.engine.simd.instructions.products import TILE_ROWS, multiply_tile
from aggtree.engine.simd.vector_code import LANES


@kernel
def nearest_groups(scores: NDArray[np.float32], count: int, groups: int, out: NDArray[np.int64]) -> None:
    """out[r] = the numbers of the out.shape[1] least of scores[r, :groups], least first, lowest of equals."""
    probes = out.shape[1]
    for r in range(count):
        filled = 0
        for group in range(groups):
            score = scores[r, group]
            if filled < probes:
                place = filled
                filled += 1
            elif score < scores[r, out[r, probes - 1]]:
                place = probes - 1
            else:
                continue
            while place > 0 and scores[r, out[r, place - 1]] > score:
                out[r, place] = out[r, place - 1]
                place -= 1
            out[r, place] = group


@kernel
def scan_group(
    rows: Rows,
    members: NDArray[np.int64],
    group: int,
    groups: Groups,
    scratch: GroupScratch,
    best: NDArray[np.float32],
    labels: NDArray[np.int64],
) -> None:
    """Compare the rows whose numbers are `members` with the words of one group.

    Lowers best[row] and labels[row] where a word is nearer, or as near with a lower number.
    """
    first = groups.first_panel[group]
    panels = groups.first_panel[group + 1] - first
    for block in range(0, len(members), scratch.rows.shape[0]):
        count = min(scratch.rows.shape[0], len(members) - block)
        for r in range(count):
            for j in range(rows.shape[1]):
                scratch.rows[r, j] = rows[members[block + r], j]
            scratch.best[r] = np.inf
        for panel in range(panels):
            for r in range(0, count, TILE_ROWS):
                multiply_tile(
                    scratch.rows,
                    r,
                    groups.panels[first + panel],
                    groups.start[first * LANES :],
                    scratch.scores,
                    panel * LANES,
                )
        merge_nearest(
            scratch.scores, count, first * LANES, panels * LANES, scratch.minima, scratch.best, scratch.labels
        )
        for r in range(count):
            row, word = members[block + r], groups.words[scratch.labels[r]]
            score = scratch.best[r]
            if score < best[row] or (score == best[row] and word < labels[row]):
                best[row] = score
                labels[row] = word
