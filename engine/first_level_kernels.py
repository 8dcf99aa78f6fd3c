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
from aggtree.engine.leaf_kernels import passing
from aggtree.engine.look_up_kernels import multiply_columns


class FirstLevel(NamedTuple):
    """Level-1 nodes by group; without groups, only their number counts.

    nodes : number of level-1 nodes, groups : number of groups, 0 for none
    group_start : (groups + 1,) int64, first column of each group, multiples of LANES
    steps : (groups,) float32; differences : (columns * d,) int8, for each group an array (d, columns of the
        group) of words less the centre: a word is centre + step * difference, rounded
    offsets : (columns,) float32, (‖x̂‖² of the node - ‖centre‖²) / (-2 step)
    numbers : (columns,) int64, of the nodes, -1 for columns of no node
    words : (K, d) float32, of the first dictionary; labels : (nodes,) uint16, the word of each node
    norms : (nodes,) float32
    """

    nodes: int
    groups: int
    group_start: NDArray[np.int64]
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
def _score_groups(
    first: FirstLevel, query: NDArray[np.float32], table: Any, square: Any, scratch: FirstScratch, groups: int
) -> Any:
    """Rank the nodes of the chosen groups, nearly; return how many there are."""
    count, size = 0, len(query)
    for i in range(groups):
        group = np.int64(scratch.groups.numbers[i])
        start, stop = first.group_start[group], first.group_start[group + 1]
        scores = scratch.scores[: stop - start]
        differences = first.differences[start * size : stop * size].reshape(size, stop - start)
        multiply_columns(query, differences, first.offsets[start:stop], scores)
        base, step = table[group] + square, np.float32(-2) * first.steps[group]
        for j in range(stop - start):
            number = first.numbers[start + j]
            scratch.ranks[count] = rank_of(base + step * scores[j])
            scratch.numbers[count] = number
            count += number >= 0
    return count


@kernel
def _score_exactly(
    first: FirstLevel, query: NDArray[np.float32], square: Any, nodes: Best, kept: int
) -> None:
    """Rank the kept nodes by their words: the additions of `multiply_columns` in their order."""
    for i in range(kept):
        number = np.int64(nodes.numbers[i])
        word = first.words[np.int64(first.labels[number])]
        value = first.norms[number]
        for t in range(len(word)):
            value += query[t] * (np.float32(-2) * word[t])
        nodes.ranks[i] = rank_of(value + square)


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
