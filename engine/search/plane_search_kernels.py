"""Kernel that answers queries from a tree whose leaves are stored in planes.

All leaves hang from nodes of level 1. The rules of `search_kernels` hold: the range of leaves read from a
node is clipped to the existing leaves, so that a damaged file gives a wrong answer and never a crash.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.scan.first_level_kernels import nearest_nodes, probe_groups
from aggtree.engine.scan.plane_kernels import exact_distances, fit_planes, prefetch_planes, scan_planes
from aggtree.engine.scan.records import ByteWords, PlaneTables, RowBits, Scratch, SearchPlan
from aggtree.engine.scan.table_kernels import byte_tables
from aggtree.engine.scan.top_k_kernels import NO_BOUND, cut_best, distance_of, sort_best
from aggtree.engine.search.search_kernels import node_ranges
from aggtree.engine.simd.compiled import kernel
from aggtree.engine.tree.layout import Tree

LEVEL = 1
# Leaves beyond k, by integer tables, whose distances are computed too: they may be among the k nearest.
SPARE = 16


@kernel
def _search_one(
    tree: Tree,
    plan: SearchPlan,
    query: Any,
    table: Any,
    square: Any,
    scratch: Scratch,
    planes: PlaneTables,
    row: int,
    within: RowBits,
) -> tuple[Any, Any, Any]:
    """Answer one query into the scratch; return how many answers there are, sorted.

    And how many nodes and leaves were scored.
    """
    nodes, ranges, answers = scratch.nodes, scratch.ranges, scratch.answers
    kept, nodes_scored = nearest_nodes(
        plan.first, query, table, square, plan.limits[0], plan.pruning_ratio, scratch.first, row, nodes
    )
    sort_best(nodes, kept, scratch.bins, scratch.spare)
    node_ranges(tree, plan, LEVEL, nodes, kept, ranges)
    size, norm_bytes, step = plan.record_sizes[LEVEL], plan.norm_bytes, tree.norm_step[LEVEL]
    columns = table[plan.first_columns :]
    lowest, scale = fit_planes(columns, norm_bytes, step, planes)
    found, bound, scored = 0, NO_BOUND, 0
    wanted = plan.k + plan.k // 4 + SPARE
    for i in range(kept):
        if i + 1 < kept:
            prefetch_planes(tree.records, ranges.first_leaf[i + 1], size)
        start, stop = ranges.first_leaf[i], ranges.leaf_stop[i]
        length = planes.lengths[np.int64(nodes.numbers[i])]
        rest = planes.base + (distance_of(nodes.ranks[i]) - planes.centre) * length
        rest += tree.norm_low[LEVEL] + lowest
        found, bound = scan_planes(
            tree.records,
            tree.ids,
            start,
            stop,
            size,
            norm_bytes,
            rest,
            scale,
            planes,
            within,
            answers,
            wanted,
            found,
            bound,
        )
        scored += stop - start
    found = cut_best(answers, found, wanted, 0, tree.ids)[0]
    exact_distances(tree.records, size, norm_bytes, step, columns, scale, planes, answers, found)
    for i in range(found):
        answers.numbers[i] = tree.ids[np.int64(answers.numbers[i])]
    sort_best(answers, found, scratch.bins, scratch.spare)
    return min(found, plan.k), nodes_scored, scored


@kernel
def search_planes(
    tree: Tree,
    plan: SearchPlan,
    words: ByteWords,
    queries: NDArray[np.float32],
    scratch: Scratch,
    planes: PlaneTables,
    within: RowBits,
    ids: NDArray[np.int64],
    distances: NDArray[np.float32],
    visits: NDArray[np.int64],
) -> None:
    """Answer queries, a block of distance tables at a time; see `search_tree`."""
    answers, first = scratch.answers, scratch.first
    block, together, rows = len(scratch.squares), len(first.ranks), 0
    for i in range(len(ids)):
        place = i % block
        if place == 0:
            byte_tables(queries[i : i + block], words, planes.query, scratch.tables, scratch.squares)
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
        table, square = scratch.tables[place], scratch.squares[place]
        count, visits[i, 0], visits[i, 1] = _search_one(
            tree, plan, queries[i], table, square, scratch, planes, row, within
        )
        for j in range(ids.shape[1]):
            ids[i, j] = np.int64(answers.numbers[j]) if j < count else -1
            distances[i, j] = distance_of(answers.ranks[j]) if j < count else np.inf
