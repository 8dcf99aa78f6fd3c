"""Kernel of the first level: the nearest level-1 nodes of a query, in one stage or two.

A level of up to a few thousand nodes is scored whole, in the query's look-up table. A wider one is
grouped: the table scores the groups' centres, and only the words of the nearest groups are multiplied.
What that takes is reading them, so they are kept in a byte per dimension, told from their centre; the
nodes that are kept are scored again by their words themselves.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.best_kernels import NO_BOUND, Best, add_best, cut_best, rank_bound, rank_of
from aggtree.engine.compiled import kernel
from aggtree.engine.intrinsics import prefetch
from aggtree.engine.leaf_kernels import passing
from aggtree.engine.product_instructions import multiply_bytes
from aggtree.engine.vector_code import LANES


class FirstLevel(NamedTuple):
    """Level-1 nodes by group; without groups, only their number counts.

    nodes : number of level-1 nodes, groups : number of groups, 0 for none
    group_start : (groups + 1,) int64, first column of each group, multiples of LANES
    members : (groups,) int64, nodes of each group, in its first columns
    steps : (groups,) float32; differences : (columns * d,) int8, for each group an array (d, columns of the
        group) of words less the centre: a word is centre + step * difference, rounded
    offsets : (columns,) float32, (‖x̂‖² of the node - ‖centre‖²) / (-2 step)
    numbers : (columns,) int64, of the nodes; what columns of no node hold is not read
    words : (K, d) float32, of the first dictionary; labels : (nodes,) uint16, the word of each node
    norms : (nodes,) float32
    """

    nodes: int
    groups: int
    group_start: NDArray[np.int64]
    members: NDArray[np.int64]
    steps: NDArray[np.float32]
    differences: NDArray[np.int8]
    offsets: NDArray[np.float32]
    numbers: NDArray[np.int64]
    words: NDArray[np.float32]
    labels: NDArray[np.uint16]
    norms: NDArray[np.float32]


class FirstScratch(NamedTuple):
    """Memory of one thread for the first level.

    ranks : (c,) int32, numbers : (c,) int64, of the nodes scored, c a multiple of 16
    places : (c,) int64, of the nearest
    scores : (columns of the widest group,) float32
    groups : the nearest groups
    no_names : (0,) uint64, see `cut_best`
    """

    ranks: NDArray[np.int32]
    numbers: NDArray[np.int64]
    places: NDArray[np.int64]
    scores: NDArray[np.float32]
    groups: Best
    no_names: NDArray[np.uint64]


@kernel
def _nearest(scratch: FirstScratch, count: int, limit: int, best: Best) -> Any:
    """Fill `best` with the `limit` best of the first `count` ranks and numbers; return how many there are."""
    ranks, numbers, places = scratch.ranks, scratch.numbers, scratch.places
    bound = rank_bound(ranks, count, limit, limit)[0] if limit < count else NO_BOUND
    kept, last = 0, bound
    for j in range(passing(ranks, count, bound, places)):
        place = places[j]
        kept, last = add_best(
            best, kept, last, ranks[place], np.uint64(numbers[place]), limit, scratch.no_names
        )
    return cut_best(best, kept, limit, 0, scratch.no_names)[0]


@kernel
def multiply_group(
    query: NDArray[np.float32],
    columns: NDArray[np.int8],
    start: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Set out[j] to start[j] + query · columns[:, j]; columns (d, w), w a multiple of LANES."""
    column = 0
    while column + 2 * LANES <= len(out):
        multiply_bytes(query, columns, start, out, column, 2)
        column += 2 * LANES
    if column < len(out):
        multiply_bytes(query, columns, start, out, column, 1)


@kernel
def _score_groups(
    first: FirstLevel, query: NDArray[np.float32], table: Any, square: Any, scratch: FirstScratch, groups: int
) -> Any:
    """Rank the nodes of the chosen groups, nearly; return how many there are."""
    count, size = 0, len(query)
    for i in range(groups):
        group = np.int64(scratch.groups.numbers[i])
        start, stop = first.group_start[group], first.group_start[group + 1]
        differences = first.differences[start * size : stop * size].reshape(size, stop - start)
        multiply_group(query, differences, first.offsets[start:stop], scratch.scores[: stop - start])
        base, step = table[group] + square, np.float32(-2) * first.steps[group]
        members = first.members[group]
        ranks, numbers = scratch.ranks[count : count + members], scratch.numbers[count : count + members]
        for j in range(members):
            ranks[j] = rank_of(base + step * scratch.scores[j])
        for j in range(members):
            numbers[j] = first.numbers[start + j]
        count += members
    return count


@kernel
def _prefetch_words(first: FirstLevel, nodes: Best, kept: int) -> None:
    """Ask for the words of the kept nodes, which are far apart in memory."""
    size = first.words.shape[1] * first.words.itemsize
    for i in range(kept):
        word = np.int64(first.labels[np.int64(nodes.numbers[i])])
        for place in range(word * size, (word + 1) * size, 64):
            prefetch(first.words, place)


@kernel
def _score_exactly(
    first: FirstLevel, query: NDArray[np.float32], square: Any, nodes: Best, kept: int
) -> None:
    """Rank the kept nodes by their words: the additions of `multiply_columns` in their order.

    Four nodes at once: each addition waits for the one before it. The last node fills up the last four.
    """
    _prefetch_words(first, nodes, kept)
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
def nearest_first(
    first: FirstLevel,
    query: NDArray[np.float32],
    table: NDArray[np.float32],
    square: float,
    limit: int,
    probes: int,
    scratch: FirstScratch,
    nodes: Best,
) -> tuple[Any, Any]:
    """Keep the `limit` nearest level-1 nodes; returns how many, and how many were scored.

    table : scores of the nodes, or of the groups' centres, less ‖q‖²; square : ‖q‖²
    probes : groups looked into
    """
    ranks, numbers = scratch.ranks, scratch.numbers
    count = first.groups if first.groups > 0 else first.nodes
    for i in range(count):
        ranks[i] = rank_of(table[i] + square)
        numbers[i] = i
    if first.groups == 0:
        return _nearest(scratch, count, limit, nodes), count
    chosen = _nearest(scratch, count, probes, scratch.groups)
    inside = _score_groups(first, query, table, square, scratch, chosen)
    kept = _nearest(scratch, inside, limit, nodes)
    _score_exactly(first, query, square, nodes, kept)
    return kept, count + inside
