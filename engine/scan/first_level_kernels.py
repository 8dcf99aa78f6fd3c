"""Kernel of the first level: the nearest level-1 nodes of a query, in one stage or two.

A level of up to a few thousand nodes is scored whole, in the query's distance table. A wider one is
grouped: the table scores the groups' centres, and only the words of the nearest groups are multiplied.
What that takes is reading them, so they are kept in a byte per dimension, relative to their centroid, and
multiplied with the query's values in bytes; the nodes that are kept are scored again by their words
themselves.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.scan.leaf_kernels import passing
from aggtree.engine.scan.records import Best, FirstLevel, FirstScratch
from aggtree.engine.scan.table_kernels import query_bytes
from aggtree.engine.scan.top_k_kernels import (
    add_best,
    cut_best,
    cut_beyond,
    pruning_bound,
    rank_bound,
    rank_of,
)
from aggtree.engine.simd.compiled import inlined, kernel
from aggtree.engine.simd.instructions.byte_products import QUAD, VECTORS, score_bytes
from aggtree.engine.simd.intrinsics import prefetch, prefetch_early
from aggtree.engine.simd.vector_code import LANES

# Pairs of a query and a group that are scored between the prefetch of a group and its use.
PAIRS_AHEAD = 12
# Least ranks that estimate how far the nearest nodes are, a multiple of LANES.
LEAST = 4 * LANES


@kernel
def _columns_of(first: FirstLevel, scratch: FirstScratch, row: int, count: int) -> None:
    """Find the columns of the first `count` places, which ascend, and prefetch the numbers of their nodes."""
    i, starts, chosen = 0, scratch.starts[row], scratch.chosen[row]
    for j in range(count):
        place = scratch.places[j]
        while starts[i + 1] <= place:
            i += 1
        column = first.group_start[chosen[i]] + place - starts[i]
        prefetch(first.numbers, column * first.numbers.itemsize)
        scratch.columns[j] = column


@kernel
def _keep_nearest(
    first: FirstLevel,
    scratch: FirstScratch,
    row: int,
    count: int,
    limit: int,
    pruning_ratio: Any,
    inside: bool,
    best: Best,
) -> Any:
    """Fill `best` with the `limit` best unpruned ones of a query's first `count` ranks; return how many.

    A rank is of the node or group of its place or, with `inside`, of a node in one of the chosen groups.
    """
    ranks, places = scratch.ranks[row], scratch.places
    bound = pruning_bound(ranks, count, pruning_ratio, scratch.minima)
    found = passing(ranks, count, bound, places)
    if found > 2 * limit:
        bound = rank_bound(ranks, count, limit, limit)[0]
        found = passing(ranks, count, bound, places)
    if inside:
        _columns_of(first, scratch, row, found)
    kept, last = 0, bound
    for j in range(found):
        number = first.numbers[scratch.columns[j]] if inside else places[j]
        rank = ranks[places[j]]
        kept, last = add_best(best, kept, last, rank, np.uint64(number), limit, scratch.no_names)
    return cut_beyond(best, cut_best(best, kept, limit, 0, scratch.no_names)[0], pruning_ratio)


@inlined
def score_group(
    query: NDArray[np.int8],
    query_sum: Any,
    quads: NDArray[np.uint8],
    offsets: NDArray[np.float32],
    base: Any,
    step: Any,
    unit: Any,
    ranks: NDArray[np.int32],
    place: int,
) -> None:
    """Set ranks[place + j] to that of base + step · (offsets[j] + unit · query · difference j).

    query_sum : int32; quads : (d / QUAD, w, QUAD), w a multiple of LANES; base, step, unit : float32
    """
    column, vectors = 0, len(offsets) // LANES
    while vectors > 0:
        # Two sweeps of half the columns take less time than one of most and one of few.
        count = vectors if vectors <= VECTORS else min(VECTORS, (vectors + 1) // 2)
        score_bytes(query, query_sum, quads, column, count, offsets, base, step, unit, ranks, place + column)
        column, vectors = column + count * LANES, vectors - count


@kernel
def _choose_groups(
    first: FirstLevel,
    table: Any,
    square: Any,
    probes: int,
    group_pruning_ratio: Any,
    scratch: FirstScratch,
    row: int,
) -> None:
    """Note the nearest groups of a query in ascending order, and where their ranks will be."""
    ranks, chosen, starts = scratch.ranks[row], scratch.chosen[row], scratch.starts[row]
    for i in range(first.groups):
        ranks[i] = rank_of(table[i] + square)
    count = _keep_nearest(
        first, scratch, row, first.groups, probes, group_pruning_ratio, False, scratch.groups
    )
    for i in range(count):
        # In order already, but for groups that are equally far.
        group, place = np.int64(scratch.groups.numbers[i]), i
        while place > 0 and chosen[place - 1] > group:
            chosen[place] = chosen[place - 1]
            place -= 1
        chosen[place] = group
    starts[0] = 0
    for i in range(count):
        starts[i + 1] = starts[i] + first.members[chosen[i]]
    scratch.counts[row] = count


@kernel
def order_pairs(
    chosen: NDArray[np.int64],
    counts: NDArray[np.int64],
    rows: int,
    ends: NDArray[np.int64],
    queries: NDArray[np.int64],
    places: NDArray[np.int64],
) -> Any:
    """List the pairs (row, i) of chosen[row, i], i < counts[row], by group and row; return how many.

    chosen : (t, p) int64, ascending in each row; counts : (t,) int64, ends : (groups + 1,) int64, scratch
    queries, places : (t * p,) int64, row and i of each pair
    """
    if rows == 1:
        for i in range(counts[0]):
            queries[i], places[i] = 0, i
        return counts[0]
    ends[:] = 0
    for row in range(rows):
        for i in range(counts[row]):
            ends[chosen[row, i] + 1] += 1
    for group in range(1, len(ends)):
        ends[group] += ends[group - 1]
    for row in range(rows):
        for i in range(counts[row]):
            group = chosen[row, i]
            queries[ends[group]], places[ends[group]] = row, i
            ends[group] += 1
    return ends[len(ends) - 1]


@inlined
def _prefetch_group(first: FirstLevel, group: int, size: int) -> None:
    """Prefetch the words of a group, and what is added to them."""
    start, stop = first.group_start[group], first.group_start[group + 1]
    for place in range(start * size, stop * size, 64):
        prefetch_early(first.quads, place)
    for place in range(4 * start, 4 * stop, 64):
        prefetch_early(first.offsets, place)


@kernel
def _score_pairs(
    first: FirstLevel,
    tables: NDArray[np.float32],
    squares: NDArray[np.float32],
    count: int,
    scratch: FirstScratch,
) -> None:
    """Rank the nodes of each of the first `count` pairs' group for its query, nearly."""
    queries, places = scratch.pair_queries, scratch.pair_places
    size, chosen, prefetched = scratch.queries.shape[1], scratch.chosen, -1
    for number in range(count):
        row, i = queries[number], places[number]
        if number + PAIRS_AHEAD < count:
            later = chosen[queries[number + PAIRS_AHEAD], places[number + PAIRS_AHEAD]]
            if later != prefetched:
                _prefetch_group(first, later, size)
            prefetched = later
        group = chosen[row, i]
        start, stop = first.group_start[group], first.group_start[group + 1]
        quads = first.quads[start * size : stop * size].reshape(size // QUAD, stop - start, QUAD)
        # Columns of no node are ranked too; the query's next group, which comes later, takes their places.
        score_group(
            scratch.queries[row],
            scratch.sums[row],
            quads,
            first.offsets[start:stop],
            tables[row, group] + squares[row],
            np.float32(-2) * first.steps[group],
            scratch.units[row],
            scratch.ranks[row],
            scratch.starts[row, i],
        )


@kernel
def probe_groups(
    first: FirstLevel,
    queries: NDArray[np.float32],
    tables: NDArray[np.float32],
    squares: NDArray[np.float32],
    limit: int,
    pruning_ratio: Any,
    probes: int,
    group_pruning_ratio: Any,
    scratch: FirstScratch,
    nodes: Best,
) -> None:
    """Find the level-1 nodes near to each of up to t queries, where they have groups: `scratch.near`.

    What takes time is reading the groups: each is read once, for all queries that look into it.
    queries : (q, d) float32; tables : (>= q, >= groups) float32, scores of the groups' centres, less ‖q‖²;
    squares : (>= q,) float32, ‖q‖²; limit, pruning_ratio : as of `nearest_nodes`; probes : most
    groups visited; group_pruning_ratio : see `cut_beyond`; nodes : scratch
    """
    for row in range(len(queries)):
        _choose_groups(first, tables[row], squares[row], probes, group_pruning_ratio, scratch, row)
        scratch.units[row], scratch.sums[row] = query_bytes(queries[row], scratch.queries[row])
    count = order_pairs(
        scratch.chosen,
        scratch.counts,
        len(queries),
        scratch.ends,
        scratch.pair_queries,
        scratch.pair_places,
    )
    _score_pairs(first, tables, squares, count, scratch)
    for row in range(len(queries)):
        inside = scratch.starts[row, scratch.counts[row]]
        kept = _keep_nearest(first, scratch, row, inside, limit, pruning_ratio, True, nodes)
        scratch.near_counts[row] = kept
        for i in range(kept):
            scratch.near[row, i] = nodes.numbers[i]


@kernel
def _score_exactly(
    first: FirstLevel, query: NDArray[np.float32], square: Any, nodes: Best, kept: int
) -> None:
    """Rank the kept nodes by their words: the additions of `multiply_columns` in their order.

    Four nodes at once: each addition waits for the one before it. The last node fills up the last four.
    """
    minus_two = np.float32(-2)
    for i in range(0, kept, 4):
        j, k, m = min(i + 1, kept - 1), min(i + 2, kept - 1), min(i + 3, kept - 1)
        a, b = np.int64(nodes.numbers[i]), np.int64(nodes.numbers[j])
        c, d = np.int64(nodes.numbers[k]), np.int64(nodes.numbers[m])
        word_a, word_b = first.words[np.int64(first.labels[a])], first.words[np.int64(first.labels[b])]
        word_c, word_d = first.words[np.int64(first.labels[c])], first.words[np.int64(first.labels[d])]
        at_a, at_b, at_c, at_d = first.norms[a], first.norms[b], first.norms[c], first.norms[d]
        for t in range(len(word_a)):
            at_a += query[t] * (minus_two * word_a[t])
            at_b += query[t] * (minus_two * word_b[t])
            at_c += query[t] * (minus_two * word_c[t])
            at_d += query[t] * (minus_two * word_d[t])
        nodes.ranks[i], nodes.ranks[j] = rank_of(at_a + square), rank_of(at_b + square)
        nodes.ranks[k], nodes.ranks[m] = rank_of(at_c + square), rank_of(at_d + square)


@kernel
def nearest_nodes(
    first: FirstLevel,
    query: NDArray[np.float32],
    table: NDArray[np.float32],
    square: float,
    limit: int,
    pruning_ratio: Any,
    scratch: FirstScratch,
    row: int,
    nodes: Best,
) -> tuple[Any, Any]:
    """Keep the `limit` nearest unpruned level-1 nodes; returns how many, and how many were scored.

    table : scores of the nodes, less ‖q‖², where they have no groups; square : ‖q‖²; pruning_ratio :
    see `cut_beyond`
    row : of the query among those `probe_groups` was given, where there are groups
    """
    if first.groups == 0:
        for i in range(first.nodes):
            scratch.ranks[0, i] = rank_of(table[i] + square)
        return _keep_nearest(first, scratch, 0, first.nodes, limit, pruning_ratio, False, nodes), first.nodes
    kept = scratch.near_counts[row]
    for i in range(kept):
        nodes.numbers[i] = scratch.near[row, i]
    _score_exactly(first, query, square, nodes, kept)
    return kept, first.groups + scratch.starts[row, scratch.counts[row]]
