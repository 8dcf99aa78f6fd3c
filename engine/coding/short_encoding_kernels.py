"""Kernel of multi-path encoding with dictionaries of up to 16 words: a path's scores are one vector.

It chooses the same codes as `encoding_kernels`. A label is kept as m · 16 + word, the row of the table of
inner products that belongs to it, so that nothing is multiplied on the way to a table. Row after row passes
all levels, because the tables of a stage of short dictionaries stay in the cache together.
"""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.clustering.distances_kernels import Rows, copy_rows, multiply_rows
from aggtree.engine.coding.encoding_kernels import NO_SCORE
from aggtree.engine.coding.records import ShortScratch, Tables
from aggtree.engine.simd.compiled import inlined, kernel
from aggtree.engine.simd.instructions.products import TILE_ROWS
from aggtree.engine.simd.instructions.short_scores import (
    collect_keys,
    copy_path,
    rank_of_key,
    score_short_paths,
)
from aggtree.engine.simd.instructions.vectors import count_at_most
from aggtree.engine.simd.vector_code import LANES

MOST_RANKED = 2 * LANES
"""So few scores are ranked without a limit. Otherwise half as many again as are kept: fewer take longer to
find, and more take longer to rank."""


@inlined
def short_limit(scores: NDArray[np.int32], live: int, keep: int, least: int, gap: int) -> int:
    """A limit that at least `keep` of scores[: live · LANES] do not exceed, and few more.

    least : the least score. gap : where the search begins above it; of no influence on which paths are kept.
    """
    if keep == 1:
        return least
    low, high = least, NO_SCORE // 2
    if live * LANES <= MOST_RANKED:
        return high
    probe = least + gap
    while low < high:
        probe = max(low, min(probe, high - 1))
        found = count_at_most(scores, live * LANES, np.int32(probe))
        if found < keep:
            low = probe + 1
            probe = low + (high - low) // 2 if high < NO_SCORE // 2 else 2 * probe - least + LANES
        else:
            high = probe
            if found <= keep + keep // 2:
                break
            probe = low + (high - low) // 2
    return high


@inlined
def _follow_keys(found: int, keep: int, level: int, scratch: ShortScratch) -> None:
    """Make the `keep` best of the collected keys the row's paths, best first."""
    old, new = level & 1, 1 - (level & 1)
    padded = (found + LANES - 1) // LANES * LANES
    for i in range(found):
        key = scratch.keys[i]
        # Those that are not among the best are written behind the last: cheaper than a branch.
        place: int = min(rank_of_key(scratch.keys, padded, key), keep)
        parent, word = (key >> 4) & 63, key & 15
        scratch.base[place] = scratch.scores[parent * LANES + word]
        copy_path(scratch.labels, (old * scratch.tall + parent) * LANES, (new * scratch.tall + place) * LANES)
        scratch.labels[(new * scratch.tall + place) * LANES + level] = level * LANES + word


@kernel
def encode_short_rows(
    rows: Rows, tables: Tables, sizes: NDArray[np.int64], scratch: ShortScratch, codes: NDArray[np.uint8]
) -> None:
    """Encode rows (n, d) into codes (n, M) for M ≤ 16 dictionaries of sizes (M,), at most 16 words each."""
    levels = len(sizes)
    for first in range(0, rows.shape[0], scratch.rows.shape[0]):
        count = copy_rows(rows, first, scratch.rows)
        tall = (count + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS
        multiply_rows(scratch.rows[:tall], tables.panels, tables.start, scratch.own)
        for row in range(count):
            live = 1
            scratch.base[0] = 0
            for level in range(levels):
                keep = min(scratch.tall - 1, live * sizes[level]) if level < levels - 1 else 1
                least = score_short_paths(
                    tables.cross,
                    tables.cross_start[level, 0],
                    scratch.labels,
                    (level & 1) * scratch.tall * LANES,
                    level,
                    scratch.own,
                    row * scratch.own.shape[1] + level * LANES,
                    scratch.base,
                    live,
                    scratch.scores,
                )
                limit = short_limit(scratch.scores, live, keep, int(least), int(scratch.gaps[level]))
                scratch.gaps[level] = limit - least if limit < NO_SCORE // 2 else LANES
                found = collect_keys(scratch.scores, live, np.int32(limit), least, scratch.keys)
                _follow_keys(found, keep, level, scratch)
                live = keep
            last = (levels & 1) * scratch.tall * LANES
            for level in range(levels):
                codes[first + row, level] = scratch.labels[last + level] & (LANES - 1)
