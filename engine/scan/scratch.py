"""Scratch memory of one search thread, sized by the plan and not by the tree."""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.scan.first_level import padded
from aggtree.engine.scan.first_level_kernels import LEAST
from aggtree.engine.scan.records import (
    LABELS,
    SCORED,
    SIEVE_PIECE,
    Best,
    FirstScratch,
    LeafParts,
    NodeRanges,
    PlaneTables,
    Scratch,
    SearchPlan,
    Sieve,
)
from aggtree.engine.scan.table_kernels import DIMENSION_STEP
from aggtree.engine.simd.instructions.planes import BLOCK_LEAVES, TABLE_BYTES
from aggtree.engine.simd.instructions.products import TILE_ROWS
from aggtree.engine.simd.instructions.sieve import PLANES, SIEVE_BYTES, SIEVED, second_load
from aggtree.engine.simd.vector_code import LANES

# Floats of the distance tables of one block of queries: they stay in the second-level cache.
BLOCK_FLOATS = 1 << 17
# Room for ranks of first-level nodes of the queries whose groups are scored together; a query uses a third.
FIRST_RANKS = 1 << 19


def make_scratch(plan: SearchPlan, columns: int) -> Scratch:
    """Memory of one thread for queries of one plan, with so many columns of distance tables."""
    room, answers = int(plan.room.max()), plan.k + plan.k // 2 + 96
    block = max(1, BLOCK_FLOATS // columns // TILE_ROWS) * TILE_ROWS
    return Scratch(
        tables=np.empty((block, columns), np.float32),
        squares=np.empty(block, np.float32),
        first=_first_scratch(plan, block),
        nodes=empty_list(room),
        children=empty_list(room),
        answers=empty_list(answers),
        spare=empty_list(max(room, answers)),
        bins=np.empty(max(room, answers) + 1, np.int32),
        ranges=NodeRanges(*(np.empty(room, np.int64) for _ in NodeRanges._fields)),
        values=np.empty(SCORED, np.float32),
        places=np.empty(SCORED, np.int64),
        parts=LeafParts(
            places=np.empty(SCORED + 1, np.int64),
            leaves=np.empty(SCORED + 1, np.int64),
            records=np.empty(SCORED + 1, np.int64),
            bases=np.empty(SCORED + 1, np.float32),
        ),
        sieve=empty_sieve(int(plan.record_sizes.max())),
    )


def _first_scratch(plan: SearchPlan, block: int) -> FirstScratch:
    first, probes = plan.first, max(1, plan.probes)
    # All columns of a group are ranked behind the nodes before it; a file may have any number of empty ones.
    widest = int(np.diff(first.group_start).max(initial=0))
    scored = int(np.sort(first.members)[::-1][:probes].sum()) if first.groups else first.nodes
    entries = padded(max(scored, first.groups), LANES)
    together = max(1, min(block, FIRST_RANKS // (entries + widest))) if first.groups else 1
    return FirstScratch(
        ranks=np.empty((together, entries + widest), np.int32),
        places=np.empty(entries, np.int64),
        columns=np.empty(entries, np.int64),
        minima=np.empty(LEAST, np.int32),
        queries=np.empty((together, padded(first.words.shape[1], DIMENSION_STEP)), np.int8),
        units=np.empty(together, np.float32),
        sums=np.empty(together, np.int32),
        groups=empty_list(2 * probes + 64),
        chosen=np.empty((together, probes), np.int64),
        counts=np.empty(together, np.int64),
        starts=np.empty((together, probes + 1), np.int64),
        near=np.empty((together, int(plan.limits[0])), np.uint64),
        near_counts=np.empty(together, np.int64),
        pair_queries=np.empty(together * probes, np.int64),
        pair_places=np.empty(together * probes, np.int64),
        ends=np.empty(first.groups + 1, np.int64),
        no_names=np.empty(0, np.uint64),
    )


def empty_list(room: int) -> Best:
    """A list of the given capacity."""
    return Best(np.empty(room, np.int32), np.empty(room, np.uint64))


def empty_sieve(record_size: int) -> Sieve:
    """Tables for records of up to the given number of bytes."""
    planes = padded(record_size, PLANES)
    return Sieve(
        tables=_aligned((planes, LABELS)),
        lows=np.zeros(planes, np.float32),
        lowest=np.zeros(1, np.float32),
        largest=np.full(1, np.inf, np.float32),
        scale=np.zeros(1, np.float32),
        nearest=np.full(1, np.inf, np.float32),
        minima=np.empty(LANES, np.float32),
        masks=np.empty(SIEVE_PIECE // SIEVED, np.uint64),
    )


def make_plane_tables(
    plan: SearchPlan, lengths: NDArray[np.float32], base: np.float32, centre: np.float32
) -> PlaneTables:
    """Tables of the short dictionaries of a plan, and of a norm; the rest as `PlaneTables` has it."""
    dictionaries = len(plan.limits) - 1
    rows = plan.norm_bytes + -(-dictionaries // 2) + 3
    return PlaneTables(
        lengths=lengths,
        base=base,
        centre=centre,
        tables=np.zeros((2, rows, TABLE_BYTES), np.uint8),
        lows=np.zeros(dictionaries, np.float32),
        sums=np.zeros(BLOCK_LEAVES, np.uint16),
        query=np.empty(padded(plan.first.words.shape[1], DIMENSION_STEP), np.int8),
    )


def _aligned(shape: tuple[int, int]) -> NDArray[np.uint8]:
    """Zeros aligned to cache lines, so that no load of 64 bytes crosses one."""
    rows, columns = shape
    memory = np.zeros(rows * columns + SIEVED, np.uint8)
    start = -memory.ctypes.data % SIEVED
    return memory[start : start + rows * columns].reshape(shape)


def sieve_index(record_sizes: NDArray[np.int64]) -> NDArray[np.uint8]:
    """How `sieve_64` finds the bytes of 8 records of each size, (sizes, 64) uint8; zeros for longer ones."""
    index = np.zeros((len(record_sizes), SIEVED), np.uint8)
    for row, size in zip(index, record_sizes.tolist(), strict=True):
        if size <= SIEVE_BYTES:
            places = (np.arange(PLANES)[:, None] + size * np.arange(PLANES)).ravel()
            row[:] = np.where(places < SIEVED, places, SIEVED + places - second_load(size))
    return index
