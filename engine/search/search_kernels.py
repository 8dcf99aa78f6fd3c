"""Kernels that answer queries from a tree.

A corrupt file must cause an error or a wrong answer, never a crash, and nothing here checks bounds. So:

- the range of children (leaves) read from a node is cut to the next level (the node's own level), whose
  ends were checked when the tree was opened; a range that runs backwards is empty;
- nodes of a level share no child and no leaf, so all ranges of a level together are cut to its length: a
  query never does more than pass once over the tree, whatever the offsets hold;
- a label is a byte and each dictionary but the first has 256 columns of the distance tables, used or not;
- lists are cut when they are full, even where there is no limit.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.scan.first_level_kernels import nearest_nodes, probe_groups
from aggtree.engine.scan.leaf_kernels import passing
from aggtree.engine.scan.records import (
    CHUNK,
    LABELS,
    Best,
    FirstLevel,
    FirstScratch,
    NodeRanges,
    RowBits,
    Scratch,
    SearchPlan,
    TableWords,
)
from aggtree.engine.scan.scan_kernels import scan_nodes
from aggtree.engine.scan.table_kernels import distance_tables
from aggtree.engine.scan.top_k_kernels import (
    NO_BOUND,
    add_best,
    copy_best,
    cut_best,
    distance_of,
    rank_of,
    sort_best,
)
from aggtree.engine.simd.compiled import kernel
from aggtree.engine.simd.intrinsics import prefetch, prefetch_early
from aggtree.engine.tree.layout import Tree

# Nodes whose children are prefetched ahead, and bytes of each.
AHEAD = 4
PREFETCH = 512


@kernel
def _clamped(starts: NDArray[np.unsignedinteger], node: int, first: int, last: int) -> tuple[Any, Any]:
    """The range a node names, cut to first..last; whatever the file holds, start <= stop."""
    start = min(max(np.int64(starts[node]), first), last)
    return start, min(max(np.int64(starts[node + 1]), start), last)


@kernel
def _prefetch_range(array: Any, start: Any, stop: Any, most: int) -> None:
    """Prefetch the bytes start..stop of an array, `most` of them at most."""
    for place in range(start, min(stop, start + most), 64):
        prefetch(array, place)


@kernel
def _prefetch_starts(tree: Tree, level: int, numbers: NDArray[np.uint64], kept: int) -> None:
    """Prefetch the offsets of the kept nodes, which are far apart in memory."""
    for i in range(kept):
        node = tree.level_start[level] + np.int64(numbers[i])
        prefetch(tree.leaf_start, node * tree.leaf_start.itemsize)
        prefetch(tree.child_start, node * tree.child_start.itemsize)


@kernel
def _prefetch_query(tree: Tree, first: FirstLevel, scratch: FirstScratch, row: int) -> None:
    """Prefetch the words and offsets of the first nodes of a query, which are far apart in memory."""
    size = first.words.shape[1] * first.words.itemsize
    for i in range(scratch.near_counts[row]):
        word = np.int64(first.labels[np.int64(scratch.near[row, i])])
        for place in range(word * size, (word + 1) * size, 64):
            prefetch_early(first.words, place)
    _prefetch_starts(tree, 1, scratch.near[row], scratch.near_counts[row])


@kernel
def node_ranges(tree: Tree, plan: SearchPlan, level: int, nodes: Best, kept: int, ranges: NodeRanges) -> None:
    """Read where the leaves and children of the kept nodes lie."""
    first = tree.level_start[level]
    child = tree.level_start[level + 1]
    last = tree.level_start[min(level + 2, len(tree.level_start) - 1)]
    leaf, last_leaf = tree.level_leaf[level], tree.level_leaf[level + 1]
    leaves_left, children_left = last_leaf - leaf, last - child
    for i in range(kept):
        node = first + np.int64(nodes.numbers[i])
        start, stop = _clamped(tree.child_start, node, child, last)
        stop = min(stop, start + children_left)
        children_left -= stop - start
        ranges.first_child[i], ranges.child_stop[i] = start, stop
        start, stop = _clamped(tree.leaf_start, node, leaf, last_leaf)
        stop = min(stop, start + leaves_left)
        leaves_left -= stop - start
        ranges.first_leaf[i], ranges.leaf_stop[i] = start, stop


@kernel
def _append(best: Best, count: int, values: NDArray[np.float32], rows: int, number: int) -> Any:
    """Append entries number, number + 1, ... as far as there is room; return the new length."""
    ranks, numbers = best.ranks[count : count + rows], best.numbers[count : count + rows]
    for j in range(rows):
        # What a corrupt file makes no number of is far away.
        ranks[j] = NO_BOUND if np.isnan(values[j]) else rank_of(values[j])
    for j in range(rows):
        numbers[j] = np.uint64(number + j)
    return count + rows


@kernel
def _expand_nodes(
    tree: Tree, plan: SearchPlan, table: Any, level: int, kept: int, scratch: Scratch
) -> tuple[Any, Any]:
    """Score the children of the kept nodes, keep the nearest; returns how many, and how many were scored."""
    ranges, values, places = scratch.ranges, scratch.values, scratch.places
    limit, room = plan.limits[level], plan.room[level]
    children = Best(scratch.children.ranks[:room], scratch.children.numbers[:room])
    columns = table[plan.first_columns + LABELS * (level - 1) :]
    first = tree.level_start[level + 1]
    count, bound, scored = 0, NO_BOUND, 0
    for i in range(kept):
        if i + AHEAD < kept:
            start, stop = ranges.first_child[i + AHEAD], ranges.child_stop[i + AHEAD]
            _prefetch_range(tree.labels, start, stop, PREFETCH)
            _prefetch_range(tree.norms, 4 * start, 4 * stop, PREFETCH)
        start, stop = ranges.first_child[i], ranges.child_stop[i]
        if start == stop:
            continue
        scored += stop - start
        node = tree.level_start[level] + np.int64(scratch.nodes.numbers[i])
        rest = distance_of(scratch.nodes.ranks[i]) - tree.norms[node]
        for child in range(start, stop, CHUNK):
            rows = min(stop - child, CHUNK)
            for j in range(rows):
                values[j] = rest + tree.norms[child + j] + columns[tree.labels[child + j]]
            if bound == NO_BOUND and count + rows < room:
                count = _append(children, count, values, rows, child - first)
                continue
            for j in range(passing(values, rows, distance_of(bound), places)):
                number = np.uint64(child + places[j] - first)
                rank = rank_of(values[places[j]])
                count, bound = add_best(children, count, bound, rank, number, limit, scratch.first.no_names)
    return cut_best(children, count, limit, 0, scratch.first.no_names)[0], scored


@kernel
def _search_one(
    tree: Tree,
    plan: SearchPlan,
    query: Any,
    table: Any,
    square: Any,
    scratch: Scratch,
    row: int,
    within: RowBits,
) -> tuple[Any, Any, Any]:
    """Answer one query into the scratch; return how many answers there are, sorted.

    And how many nodes and leaves were scored.

    row : of the query in the scratch of the first level
    """
    levels = len(plan.limits)
    nodes, children = scratch.nodes, scratch.children
    kept, nodes_scored = nearest_nodes(
        plan.first,
        query,
        table,
        square,
        plan.limits[0],
        plan.pruning_ratio,
        scratch.first,
        row,
        nodes,
    )
    count, bound, leaves_scored = 0, NO_BOUND, 0
    for level in range(1, levels + 1):
        _prefetch_starts(tree, level, nodes.numbers, kept)
        if level == 1:
            # Nearest first: the bounds are tight early, and fewer pass them. Deeper nodes come in the order
            # of these and of the tree: their leaves, a few each, are read as they lie in memory.
            sort_best(nodes, kept, scratch.bins, scratch.spare)
        node_ranges(tree, plan, level, nodes, kept, scratch.ranges)
        count, bound, scored = scan_nodes(tree, plan, table, level, kept, scratch, within, count, bound)
        leaves_scored += scored
        if level == levels:
            break
        kept, scored = _expand_nodes(tree, plan, table, level, kept, scratch)
        nodes_scored += scored
        if kept == 0:
            break
        copy_best(children, nodes, kept)
    count = cut_best(scratch.answers, count, plan.k, 0, tree.ids)[0]
    for i in range(count):
        scratch.answers.numbers[i] = tree.ids[np.int64(scratch.answers.numbers[i])]
    sort_best(scratch.answers, count, scratch.bins, scratch.spare)
    return count, nodes_scored, leaves_scored


@kernel
def search_tree(
    tree: Tree,
    plan: SearchPlan,
    words: TableWords,
    queries: NDArray[np.float32],
    scratch: Scratch,
    within: RowBits,
    ids: NDArray[np.int64],
    distances: NDArray[np.float32],
    visits: NDArray[np.int64],
) -> None:
    """Answer queries, a block of distance tables at a time.

    queries : (>= q, d) float32, one or two rows or whole tiles
    within : which rows may be answers
    ids, distances : (q, k) int64 and float32, nearest first, -1 and inf where there are fewer
    visits : (q, 2) int64, nodes and leaves scored
    """
    answers, first = scratch.answers, scratch.first
    block, together, rows = len(scratch.squares), len(first.ranks), 0
    for i in range(len(ids)):
        place = i % block
        if place == 0:
            distance_tables(queries[i : i + block], words, scratch.tables, scratch.squares)
        row = place % together
        if row == 0 and plan.first.groups > 0:
            rows = min(together, block - place, len(ids) - i)
            probe_groups(
                plan.first,
                queries[i : i + rows],
                scratch.tables[place:],
                scratch.squares[place:],
                plan.limits[0],
                plan.pruning_ratio,
                plan.probes,
                plan.group_pruning_ratio,
                first,
                scratch.nodes,
            )
            _prefetch_query(tree, plan.first, first, 0)
        table, square = scratch.tables[place], scratch.squares[place]
        count, visits[i, 0], visits[i, 1] = _search_one(
            tree, plan, queries[i], table, square, scratch, row, within
        )
        if row + 1 < rows:
            # What the next query begins with is fetched while the answers are written.
            _prefetch_query(tree, plan.first, first, row + 1)
        for j in range(ids.shape[1]):
            ids[i, j] = np.int64(answers.numbers[j]) if j < count else -1
            distances[i, j] = distance_of(answers.ranks[j]) if j < count else np.inf
