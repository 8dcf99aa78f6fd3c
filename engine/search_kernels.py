"""Kernels that answer queries from a tree.

A corrupt file must be an error or a wrong answer, never a crash, and nothing here checks bounds. So:

- the range of children (leaves) read from a node is cut to the next level (the node's own level), whose
  ends were checked when the tree was opened; a range that runs backwards is empty;
- a label is a byte and each dictionary but the first has 256 columns of the look-up tables, used or not;
- the first level's labels were checked when the tree was opened;
- lists are cut when they are full, even where there is no limit.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.compiled import kernel
from aggtree.engine.intrinsics import load_8_bytes
from aggtree.engine.tree import Tree

LABELS = 256
DIMENSION_STEP = 8


class SearchPlan(NamedTuple):
    """What all queries of a call share.

    limits : (M,) int64, nodes kept at level 1..M
    room : (M,) int64, nodes a list may hold before it is cut to the limit
    record_sizes : (M + 1,) int64, bytes of a leaf record of each level
    norm_bytes : bytes of a leaf's norm, first_columns : columns of the first dictionary in a table
    """

    limits: NDArray[np.int64]
    room: NDArray[np.int64]
    record_sizes: NDArray[np.int64]
    norm_bytes: int
    first_columns: int


class Scratch(NamedTuple):
    """Memory of one thread, sized by the limits and k, not by the tree.

    keys : (2, c) uint64, node scores (bits of a float32) above node numbers within the level: two lists
    sums : (2, c) float32, -2 q·(reconstruction) of the same nodes
    distances : (r,) float32, ids : (r,) uint64, the best leaves so far and then some
    """

    keys: NDArray[np.uint64]
    sums: NDArray[np.float32]
    distances: NDArray[np.float32]
    ids: NDArray[np.uint64]


@kernel
def look_up_tables(
    queries: NDArray[np.float32],
    words: NDArray[np.float32],
    tables: NDArray[np.float32],
    squares: NDArray[np.float32],
) -> None:
    """Set tables[i, j] to queries[i] · words[:, j] and squares[i] to ‖queries[i]‖².

    queries : (q, d) float32, words : (d, columns) float32, already times -2; d is a multiple of 8.
    """
    count, dimension = queries.shape
    columns = words.shape[1]
    for first in range(0, columns, LABELS):
        last = min(columns, first + LABELS)
        for i in range(count):
            query = queries[i]
            table = tables[i, first:last]
            table[:] = 0
            for t in range(0, dimension, DIMENSION_STEP):
                a, b, c, d = query[t], query[t + 1], query[t + 2], query[t + 3]
                e, f, g, h = query[t + 4], query[t + 5], query[t + 6], query[t + 7]
                block = words[t : t + DIMENSION_STEP, first:last]
                for j in range(last - first):
                    near = a * block[0, j] + b * block[1, j] + c * block[2, j] + d * block[3, j]
                    far = e * block[4, j] + f * block[5, j] + g * block[6, j] + h * block[7, j]
                    table[j] += near + far
    for i in range(count):
        square = np.float64(0)
        for t in range(dimension):
            square += np.float64(queries[i, t]) * np.float64(queries[i, t])
        squares[i] = square


@kernel
def _key(score: float, number: int) -> int:
    """One number that orders nodes by (score, node number); scores below zero count as zero."""
    bits = np.float32(score if score > 0 else 0).view(np.uint32)
    return (np.uint64(bits) << np.uint64(32)) | np.uint64(number)


@kernel
def _keep_smallest(keys: NDArray[np.uint64], sums: NDArray[np.float32], count: int, keep: int) -> int:
    """Move the `keep` smallest of the first `count` keys, with their sums, to the front; return the largest kept."""
    low, high = 0, count - 1
    place = keep - 1
    while low < high:
        pivot = keys[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while keys[i] < pivot:
                i += 1
            while keys[j] > pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                sums[i], sums[j] = sums[j], sums[i]
                i += 1
                j -= 1
        if place <= j:
            high = j
        elif place >= i:
            low = i
        else:
            break
    return keys[place]


@kernel
def _sort_nodes(keys: NDArray[np.uint64], sums: NDArray[np.float32], count: int) -> None:
    """Sort the first `count` keys with their sums, smallest first (Shell's sort)."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            key, value = keys[i], sums[i]
            j = i
            while j >= gap and keys[j - gap] > key:
                keys[j], sums[j] = keys[j - gap], sums[j - gap]
                j -= gap
            keys[j], sums[j] = key, value
        gap //= 3


@kernel
def _nearer(distance: float, number: int, other: float, other_number: int) -> bool:
    """The order of answers: by distance, then by id."""
    return distance < other or (distance == other and number < other_number)


@kernel
def _keep_nearest(distances: NDArray[np.float32], ids: NDArray[np.uint64], count: int, keep: int) -> None:
    """Move the `keep` first of the first `count` answers, by (distance, id), to the front."""
    low, high = 0, count - 1
    place = keep - 1
    while low < high:
        middle = (low + high) // 2
        pivot, pivot_id = distances[middle], ids[middle]
        i, j = low, high
        while i <= j:
            while _nearer(distances[i], ids[i], pivot, pivot_id):
                i += 1
            while _nearer(pivot, pivot_id, distances[j], ids[j]):
                j -= 1
            if i <= j:
                distances[i], distances[j] = distances[j], distances[i]
                ids[i], ids[j] = ids[j], ids[i]
                i += 1
                j -= 1
        if place <= j:
            high = j
        elif place >= i:
            low = i
        else:
            break


@kernel
def _sort_answers(distances: NDArray[np.float32], ids: NDArray[np.uint64], count: int) -> None:
    """Sort the first `count` answers by (distance, id) (Shell's sort)."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            distance, number = distances[i], ids[i]
            j = i
            while j >= gap and _nearer(distance, number, distances[j - gap], ids[j - gap]):
                distances[j], ids[j] = distances[j - gap], ids[j - gap]
                j -= gap
            distances[j], ids[j] = distance, number
        gap //= 3


@kernel
def _worst(distances: NDArray[np.float32], count: int) -> float:
    worst = distances[0]
    for i in range(1, count):
        worst = max(worst, distances[i])
    return worst


@kernel
def _stored_norm(records: NDArray[np.uint8], place: int, norm_bytes: int, low: float, step: float) -> float:
    """What a leaf's record adds to the base of its node; see `_scan_leaves`."""
    if norm_bytes == 1:
        return low + step * np.float32(records[place])
    if norm_bytes == 2:
        number = np.uint32(records[place]) | (np.uint32(records[place + 1]) << np.uint32(8))
        return low + step * np.float32(number)
    bits = np.uint32(0)
    for j in range(4):
        bits |= np.uint32(records[place + j]) << np.uint32(8 * j)
    return np.uint32(bits).view(np.float32)


@kernel
def _scan_leaves(
    tree: Tree,
    plan: SearchPlan,
    level: int,
    start: int,
    stop: int,
    base: float,
    table: NDArray[np.float32],
    answers: Scratch,
    count: int,
    bound: float,
    k: int,
) -> tuple[int, float]:
    """Score the leaves start..stop of a node of `level` and keep those that may be among the k nearest.

    base : what all of them share, ‖q‖² - 2 q·(prefix), plus the node's norm unless norms are exact
    count, bound : answers held so far, and a distance that k of them do not exceed; returned anew
    """
    size = plan.record_sizes[level]
    suffix = size - plan.norm_bytes
    column = plan.first_columns + LABELS * (level - 1)
    low, step = tree.norm_low[level], tree.norm_step[level]
    place = tree.record_start[level] + (start - tree.level_leaf[level]) * size
    for leaf in range(start, stop):
        distance = base + _stored_norm(tree.records, place, plan.norm_bytes, low, step)
        for j in range(suffix):
            distance += table[column + LABELS * j + tree.records[place + plan.norm_bytes + j]]
        place += size
        if distance <= bound:
            answers.distances[count] = distance if distance > 0 else np.float32(0)
            answers.ids[count] = tree.ids[leaf]
            count += 1
            if count == len(answers.ids):
                _keep_nearest(answers.distances, answers.ids, count, k)
                count = k
                bound = _worst(answers.distances, count)
    return count, bound


@kernel
def _clamped(starts: NDArray[np.unsignedinteger], node: int, first: int, last: int) -> tuple[int, int]:
    """The range a node names, cut to first..last; whatever the file holds, start <= stop."""
    start = min(max(np.int64(starts[node]), first), last)
    return start, min(max(np.int64(starts[node + 1]), start), last)


@kernel
def _first_level(
    tree: Tree,
    limit: int,
    table: NDArray[np.float32],
    square: float,
    keys: NDArray[np.uint64],
    sums: NDArray[np.float32],
) -> int:
    """Score the nodes of level 1 and keep the `limit` nearest; return how many there are."""
    count = 0
    bound = ~np.uint64(0)
    for number in range(len(tree.first_labels)):
        value = table[tree.first_labels[number]]
        key = _key(square + tree.norms[number + 1] + value, number)
        if key < bound:
            keys[count] = key
            sums[count] = value
            count += 1
            if count == len(keys):
                bound = _keep_smallest(keys, sums, count, limit)
                count = limit
    if count > limit:
        _keep_smallest(keys, sums, count, limit)
        count = limit
    return count


@kernel
def _search_one(
    tree: Tree,
    plan: SearchPlan,
    table: NDArray[np.float32],
    square: float,
    k: int,
    scratch: Scratch,
    visits: NDArray[np.int64],
) -> int:
    """Answer one query into the scratch; return how many answers there are, sorted."""
    levels = len(plan.limits)
    now = 0
    kept = _first_level(tree, plan.limits[0], table, square, scratch.keys[0, : plan.room[0]], scratch.sums[0])
    visits[0], visits[1] = len(tree.first_labels), 0
    answers = 0
    bound = np.float32(np.inf)
    for level in range(1, levels + 1):
        keys, sums = scratch.keys[now], scratch.sums[now]
        room = plan.room[min(level, levels - 1)]
        next_keys, next_sums = scratch.keys[1 - now, :room], scratch.sums[1 - now]
        # Nearest first: the bounds are tight early, and fewer candidates pass them.
        _sort_nodes(keys, sums, kept)
        first_node, first_child = tree.level_start[level], tree.level_start[level + 1]
        last_child = tree.level_start[level + 2] if level < levels else first_child
        limit = plan.limits[level] if level < levels else 0
        column = plan.first_columns + LABELS * (level - 1)
        children, node_bound = 0, ~np.uint64(0)
        for i in range(kept):
            node = first_node + np.int64(keys[i] & np.uint64(0xFFFFFFFF))
            start, stop = _clamped(tree.leaf_start, node, tree.level_leaf[level], tree.level_leaf[level + 1])
            base = square + sums[i]
            if plan.norm_bytes < 4:
                base += tree.norms[node]
            answers, bound = _scan_leaves(
                tree, plan, level, start, stop, base, table, scratch, answers, bound, k
            )
            visits[1] += stop - start
            start, stop = _clamped(tree.child_start, node, first_child, last_child)
            visits[0] += stop - start
            for child in range(start, stop):
                value = sums[i] + table[column + tree.labels[child]]
                key = _key(square + tree.norms[child] + value, child - first_child)
                if key < node_bound:
                    next_keys[children] = key
                    next_sums[children] = value
                    children += 1
                    if children == len(next_keys):
                        node_bound = _keep_smallest(next_keys, next_sums, children, limit)
                        children = limit
        if children > limit:
            _keep_smallest(next_keys, next_sums, children, limit)
            children = limit
        kept = children
        now = 1 - now
    if answers > k:
        _keep_nearest(scratch.distances, scratch.ids, answers, k)
        answers = k
    _sort_answers(scratch.distances, scratch.ids, answers)
    return answers


@kernel
def search_tree(
    tree: Tree,
    plan: SearchPlan,
    tables: NDArray[np.float32],
    squares: NDArray[np.float32],
    scratch: Scratch,
    ids: NDArray[np.int64],
    distances: NDArray[np.float32],
    visits: NDArray[np.int64],
) -> None:
    """Answer a block of queries from their look-up tables.

    tables : (q, columns) float32, squares : (q,) float32, from `look_up_tables`
    ids, distances : (q, k) int64 and float32, nearest first, -1 and inf where there are fewer
    visits : (q, 2) int64, nodes and leaves scored
    """
    k = ids.shape[1]
    for i in range(len(tables)):
        count = _search_one(tree, plan, tables[i], squares[i], k, scratch, visits[i])
        for j in range(k):
            ids[i, j] = np.int64(scratch.ids[j]) if j < count else -1
            distances[i, j] = scratch.distances[j] if j < count else np.inf
