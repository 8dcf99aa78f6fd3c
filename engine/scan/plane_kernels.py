"""Kernels of the plane scan: distances of all leaves of a node, by integer tables of 16 entries.

The distance of a leaf is base + Σ_m t_m(i_m), with t_m the distance table of a short dictionary. With l_m the
least entry of t_m and one scale s for all, q_m(i) = round((t_m(i) - l_m) s) is an integer of 7 bits, and

    base + Σ_m l_m + (Σ_m q_m(i_m)) / s

differs from the distance by a small part of what quantization leaves out anyway. The k leaves nearest by this
sum get their distances from the tables themselves. Integers have one sum on every processor.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import SHORT_WORDS
from aggtree.engine.scan.filter_kernels import is_allowed
from aggtree.engine.scan.records import Best, PlaneTables, RowBits
from aggtree.engine.scan.top_k_kernels import NO_BOUND, add_best, distance_of, rank_of
from aggtree.engine.simd.compiled import kernel
from aggtree.engine.simd.instructions.planes import (
    BLOCK_LEAVES,
    LARGEST_ENTRY,
    WEIGHTED_SHIFT,
    scan_block,
)
from aggtree.engine.simd.instructions.vectors import lowest_bit
from aggtree.engine.simd.intrinsics import prefetch

# A norm is a byte, whose halves have tables of their own: multiples of 16 steps, and of one.
NORM_STEPS = 15 * SHORT_WORDS
LARGEST_SUM = 65_535
# Bytes of the next node that are prefetched while one is scanned.
PREFETCH = 1024


@kernel
def _lowest_entries(columns: NDArray[np.float32], lows: NDArray[np.float32]) -> Any:
    """Find the least entry of each table of 16 columns; return the widest range of entries."""
    widest = np.float32(0)
    for number in range(len(lows)):
        table = columns[SHORT_WORDS * number : SHORT_WORDS * (number + 1)]
        low, high = table[0], table[0]
        for word in range(SHORT_WORDS):
            low, high = min(low, table[word]), max(high, table[word])
        lows[number] = low
        widest = max(widest, high - low)
    return widest


@kernel
def _write_table(row: NDArray[np.uint8], table: Any, low: Any, scale: Any) -> None:
    """Integers of the entries of a table, twice."""
    for word in range(SHORT_WORDS):
        number = np.uint8(np.int32((table[word] - low) * scale + np.float32(0.5)))
        row[word], row[word + SHORT_WORDS] = number, number


@kernel
def _write_norm_tables(tables: NDArray[np.uint8], weight: Any) -> None:
    """Integers of the two halves of a norm's byte, of which each unit weighs so much."""
    for half in range(SHORT_WORDS):
        low = np.uint8(np.int32(weight * np.float32(half) + np.float32(0.5)))
        high = np.uint8(np.int32(weight * np.float32(SHORT_WORDS * half) + np.float32(0.5)))
        tables[0, 0, half], tables[0, 0, half + SHORT_WORDS] = low, low
        tables[1, 0, half], tables[1, 0, half + SHORT_WORDS] = high, high


@kernel
def fit_planes(
    columns: NDArray[np.float32], norm_bytes: int, norm_step: Any, planes: PlaneTables
) -> tuple[Any, Any]:
    """Make the integer tables of a query; return Σ l_m and the scale, 0 where all entries are equal.

    columns : (16 M,) float32, its distance tables
    """
    heavy = np.float32(1 << WEIGHTED_SHIFT)
    widest = _lowest_entries(columns, planes.lows)
    if norm_bytes > 0:
        widest = max(widest, norm_step * np.float32(NORM_STEPS) / heavy)
    # Nothing else of a damaged file's infinite words or steps.
    scale = np.float32(LARGEST_ENTRY) / widest if 0 < widest < np.inf else np.float32(0)
    if norm_bytes > 0:
        _write_norm_tables(planes.tables, norm_step * scale / heavy)
    lowest = np.float32(0)
    for number in range(len(planes.lows)):
        low = planes.lows[number]
        lowest += low
        row = 2 * norm_bytes + number // 2
        table = columns[SHORT_WORDS * number : SHORT_WORDS * (number + 1)]
        _write_table(planes.tables[number % 2, row], table, low, scale)
    return lowest, scale


@kernel
def _largest_sum(bound: Any, rest: Any, scale: Any) -> Any:
    """The largest sum of a leaf within a bound, or a little more; -1 if there is none."""
    if bound == NO_BOUND or scale == 0:
        return np.int64(LARGEST_SUM)
    room = (distance_of(bound) - rest) * scale + np.float32(1)
    if not room >= 0:
        return np.int64(-1)
    return np.int64(min(room, np.float32(LARGEST_SUM)))


@kernel
def _lanes(block: int, start: Any, stop: Any) -> Any:
    """Bits of the leaves of a block that are among start..stop."""
    bits = (np.int64(1) << BLOCK_LEAVES) - 1
    first = block * BLOCK_LEAVES
    if start > first:
        bits &= ~((np.int64(1) << (start - first)) - 1)
    if stop < first + BLOCK_LEAVES:
        bits &= (np.int64(1) << (stop - first)) - 1
    return bits


@kernel
def scan_planes(
    records: NDArray[np.uint8],
    ids: NDArray[np.unsignedinteger],
    start: Any,
    stop: Any,
    count: int,
    norm_bytes: int,
    rest: Any,
    scale: Any,
    planes: PlaneTables,
    within: RowBits,
    answers: Best,
    k: int,
    found: Any,
    bound: Any,
) -> tuple[Any, Any]:
    """Add the near leaves among start..stop, of one node, to the answers; returns how many, and their bound.

    records : blocks of `count` planes; rest : base + Σ l_m of the node's leaves; scale : see `fit_planes`
    """
    unit = np.float32(1) / scale if scale > 0 else np.float32(0)
    size = BLOCK_LEAVES * count
    for block in range(start // BLOCK_LEAVES, -(-stop // BLOCK_LEAVES)):
        limit = _largest_sum(bound, rest, scale)
        if limit < 0:
            break
        mask = scan_block(records, block * size, count, norm_bytes, planes.tables, limit, planes.sums)
        bits = np.int64(mask) & _lanes(block, start, stop)
        while bits != 0:
            lane = lowest_bit(bits)
            bits &= bits - 1
            leaf = block * BLOCK_LEAVES + lane
            if not within.everything and not is_allowed(within, ids[leaf]):
                continue
            rank = rank_of(rest + unit * np.float32(planes.sums[lane]))
            found, bound = add_best(answers, found, bound, rank, np.uint64(leaf), k, ids)
    return found, bound


@kernel
def prefetch_planes(records: NDArray[np.uint8], start: Any, count: int) -> None:
    """Prefetch the beginning of the leaves of a node."""
    place = start // BLOCK_LEAVES * BLOCK_LEAVES * count
    for offset in range(0, PREFETCH, 64):
        prefetch(records, place + offset)


@kernel
def exact_distances(
    records: NDArray[np.uint8],
    count: int,
    norm_bytes: int,
    norm_step: Any,
    columns: NDArray[np.float32],
    scale: Any,
    planes: PlaneTables,
    answers: Best,
    found: int,
) -> None:
    """Replace the distances of answers by those of the tables themselves, without rounding to integers."""
    unit = np.float32(1) / scale if scale > 0 else np.float32(0)
    tables = planes.tables
    for i in range(found):
        leaf = np.int64(answers.numbers[i])
        place = leaf // BLOCK_LEAVES * BLOCK_LEAVES * count + leaf % BLOCK_LEAVES
        error = np.float32(0)
        if norm_bytes > 0:
            norm = records[place]
            low, high = tables[0, 0, norm & 15], tables[1, 0, norm >> 4]
            rounded = np.float32((np.int32(low) + np.int32(high)) << WEIGHTED_SHIFT)
            error += norm_step * np.float32(norm) - unit * rounded
        for number in range(len(planes.lows)):
            byte = records[place + BLOCK_LEAVES * (norm_bytes + number // 2)]
            label = (byte >> (4 * (number % 2))) & 15
            exact = columns[SHORT_WORDS * number + label] - planes.lows[number]
            error += exact - unit * np.float32(tables[number % 2, 2 * norm_bytes + number // 2, label])
        answers.ranks[i] = rank_of(distance_of(answers.ranks[i]) + error)
