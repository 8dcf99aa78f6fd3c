"""Kernels that scan the leaves of nodes: most are sieved out, the others scored and kept if near.

The rules of `search_kernels` hold here: ranges of leaves were cut to their level before.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.scan.filter_kernels import is_allowed
from aggtree.engine.scan.leaf_kernels import leaf_values, passing
from aggtree.engine.scan.records import (
    CHUNK,
    LABELS,
    SIEVE_PIECE,
    Best,
    LeafParts,
    NodeRanges,
    RowBits,
    Scratch,
    SearchPlan,
    Sieve,
)
from aggtree.engine.scan.sieve_kernels import (
    FULL,
    SIEVE_ROWS,
    WORN,
    fit_sieve,
    list_set_bits,
    reset_sieve,
    sieve_leaves,
    sieve_limit,
)
from aggtree.engine.scan.top_k_kernels import NO_BOUND, add_best, distance_of, rank_of
from aggtree.engine.simd.compiled import inlined, kernel
from aggtree.engine.simd.instructions.sieve import READ_AHEAD, SIEVE_BYTES, SIEVED
from aggtree.engine.simd.intrinsics import prefetch_early
from aggtree.engine.tree.layout import Tree

# Leaves that passed the sieve and are scored together: the bound they may lower is that of the next.
NEAR_CHUNK = 64
# Leaves sieved between two prefetches, and how many leaves are prefetched ahead.
PIECE = 64
AHEAD_LEAVES = 1536


@inlined
def _leaf_base(tree: Tree, level: int, nodes: Best, i: int, norm_bytes: int) -> Any:
    """What all leaves of a node share of their distances.

    A quantized norm is stored relative to the node's norm, which the node's distance holds already.
    """
    if norm_bytes == 4:
        node = tree.level_start[level] + np.int64(nodes.numbers[i])
        return distance_of(nodes.ranks[i]) - tree.norms[node]
    return distance_of(nodes.ranks[i]) + tree.norm_low[level]


@inlined
def _take_leaves(
    scratch: Scratch,
    filled: int,
    single: bool,
    ids: NDArray[np.unsignedinteger],
    within: RowBits,
    k: int,
    count: int,
    bound: Any,
) -> tuple[Any, Any]:
    """Add the leaves of the first `filled` values to the answers; returns answers held, and their bound.

    single : whether each part is one leaf, which then need not be looked for
    """
    values, places, parts, part = scratch.values, scratch.places, scratch.parts, 0
    for j in range(passing(values, filled, distance_of(bound), places)):
        place = places[j]
        if single:
            part = place
        while parts.places[part + 1] <= place:
            part += 1
        leaf = parts.leaves[part] + place - parts.places[part]
        if not within.everything and not is_allowed(within, ids[leaf]):
            continue
        rank = rank_of(values[place])
        count, bound = add_best(scratch.answers, count, bound, rank, np.uint64(leaf), k, ids)
    return count, bound


@inlined
def _fitted_limit(
    tree: Tree, plan: SearchPlan, columns: Any, level: int, base: Any, bound: Any, sieve: Sieve
) -> Any:
    """What the sieve lets pass of a node; its tables are made when they are needed, and when worn.

    They are made for the nearest node so far: for others they are coarser, but serve for all.
    """
    nearest = min(sieve.nearest[0], base)
    limit = sieve_limit(sieve, nearest, distance_of(bound))
    if 0 <= limit < WORN or limit >= FULL:
        suffix, room = plan.record_sizes[level] - plan.norm_bytes, distance_of(bound) - nearest
        fit_sieve(sieve, columns, plan.norm_bytes, suffix, tree.norm_step[level], room)
    sieve.nearest[0] = nearest
    return sieve_limit(sieve, base, distance_of(bound))


@inlined
def _add_part(parts: LeafParts, part: int, filled: int, leaf: Any, record: Any, base: Any) -> None:
    parts.places[part], parts.leaves[part], parts.records[part] = filled, leaf, record
    parts.bases[part] = base


@inlined
def _prefetch_leaves(
    tree: Tree, level: int, size: int, ranges: NodeRanges, kept: int, node: int, leaf: Any, wanted: int
) -> tuple[Any, Any]:
    """Prefetch the records of `wanted` leaves from one of a node on; returns where the next ones begin."""
    first = tree.record_start[level] - tree.level_leaf[level] * size
    while node < kept and wanted > 0:
        stop = min(ranges.leaf_stop[node], leaf + wanted)
        for place in range(first + leaf * size, first + stop * size, 64):
            prefetch_early(tree.records, place)
        wanted, leaf = wanted - (stop - leaf), stop
        if leaf == ranges.leaf_stop[node]:
            node += 1
            leaf = ranges.first_leaf[node] if node < kept else 0
    return node, leaf


@inlined
def _sieve_node(
    tree: Tree,
    plan: SearchPlan,
    level: int,
    record: Any,
    rows: int,
    limit: Any,
    kept: int,
    ahead: int,
    next_leaf: Any,
    scratch: Scratch,
) -> tuple[Any, Any, Any]:
    """List the leaves that pass the sieve; returns how many, and from where on to prefetch leaves."""
    size, sieve = plan.record_sizes[level], scratch.sieve
    for start in range(0, rows, PIECE):
        count = min(rows - start, PIECE)
        ahead, next_leaf = _prefetch_leaves(tree, level, size, scratch.ranges, kept, ahead, next_leaf, count)
        sieve_leaves(
            tree.records, record + start * size, start, count, size, plan.sieve_index[level], sieve, limit
        )
    return list_set_bits(sieve.masks, rows, scratch.places), ahead, next_leaf


@inlined
def _node_limit(
    tree: Tree,
    plan: SearchPlan,
    columns: Any,
    level: int,
    record: Any,
    rows: int,
    base: Any,
    bound: Any,
    sieve: Sieve,
) -> Any:
    """What the sieve lets pass of leaves of one node; FULL where they are not to be sieved."""
    size = plan.record_sizes[level]
    last = record + (rows + SIEVED) * size + READ_AHEAD
    sieved = plan.sieved and plan.norm_bytes < 4 and size <= SIEVE_BYTES and last <= len(tree.records)
    if sieved and rows >= SIEVE_ROWS and bound != NO_BOUND:
        return _fitted_limit(tree, plan, columns, level, base, bound, sieve)
    return np.float32(FULL)


@kernel
def scan_nodes(
    tree: Tree,
    plan: SearchPlan,
    table: Any,
    level: int,
    kept: int,
    scratch: Scratch,
    within: RowBits,
    count: int,
    bound: Any,
) -> tuple[Any, Any, Any]:
    """Score the leaves of the kept nodes; returns answers held, their bound, and leaves looked at."""
    size, norm_bytes, step = plan.record_sizes[level], plan.norm_bytes, tree.norm_step[level]
    columns = table[plan.first_columns + LABELS * (level - 1) :]
    ranges, parts, places = scratch.ranges, scratch.parts, scratch.places
    reset_sieve(scratch.sieve)
    node, leaf, looked_at = 0, ranges.first_leaf[0], 0
    ahead, next_leaf = _prefetch_leaves(tree, level, size, ranges, kept, 0, leaf, AHEAD_LEAVES)
    while node < kept:
        # Leaves of one node after another, until they are worth a look; a large node comes in pieces.
        filled, part = 0, 0
        plain = bound == NO_BOUND or not plan.sieved
        enough, piece = (CHUNK, CHUNK) if plain else (NEAR_CHUNK, SIEVE_PIECE)
        while node < kept and filled < enough:
            rows = min(ranges.leaf_stop[node] - leaf, piece)
            base = _leaf_base(tree, level, scratch.nodes, node, norm_bytes)
            record = tree.record_start[level] + (leaf - tree.level_leaf[level]) * size
            limit = _node_limit(tree, plan, columns, level, record, rows, base, bound, scratch.sieve)
            if limit >= FULL:
                rows = min(rows, CHUNK)
                _add_part(parts, part, filled, leaf, record, base)
                part, filled = part + (rows > 0), filled + rows
            elif limit >= 0:
                near, ahead, next_leaf = _sieve_node(
                    tree, plan, level, record, rows, limit, kept, ahead, next_leaf, scratch
                )
                for i in range(near):
                    _add_part(parts, part + i, filled + i, leaf + places[i], record + places[i] * size, base)
                part, filled = part + near, filled + near
            if limit >= FULL or limit < 0:
                ahead, next_leaf = _prefetch_leaves(tree, level, size, ranges, kept, ahead, next_leaf, rows)
            leaf, looked_at = leaf + rows, looked_at + rows
            if leaf == ranges.leaf_stop[node]:
                node += 1
                leaf = ranges.first_leaf[node] if node < kept else 0
        parts.places[part] = filled
        leaf_values(tree.records, parts, part, size, norm_bytes, step, columns, scratch.values)
        count, bound = _take_leaves(scratch, filled, part == filled, tree.ids, within, plan.k, count, bound)
    return count, bound, looked_at
