"""Kernel of the first level: the nearest level-1 nodes of a query, in one stage or two.

A level of up to a few thousand nodes is scored whole, in the query's look-up table. A wider one is
grouped: the table scores the groups' centres, and only the words of the nearest groups are multiplied.
What that takes is reading them, so they are kept in a byte per dimension, told from their centre, and
multiplied with the query's values in bytes; the nodes that are kept are scored again by their words
themselves.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.best_kernels import NO_BOUND, Best, add_best, cut_best, cut_beyond, rank_bound, rank_of
from aggtree.engine.byte_product_instructions import score_bytes
from aggtree.engine.compiled import kernel
from aggtree.engine.intrinsics import prefetch, prefetch_early
from aggtree.engine.leaf_kernels import passing
from aggtree.engine.vector_code import LANES

# A query's values, in bytes, reach from minus this to this.
QUERY_STEPS = 127


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

    ranks : (c + w,) int32, of the nodes scored, c of them at most, a multiple of LANES, and w columns in the
        widest group; places, columns : (c,) int64, of the nearest
    query : (d,) int8, the query in bytes
    groups : the nearest groups; starts : (groups + 1,) int64, how many nodes were scored before each
    no_names : (0,) uint64, see `cut_best`
    """

    ranks: NDArray[np.int32]
    places: NDArray[np.int64]
    columns: NDArray[np.int64]
    query: NDArray[np.int8]
    groups: Best
    starts: NDArray[np.int64]
    no_names: NDArray[np.uint64]


@kernel
def _columns_of(first: FirstLevel, scratch: FirstScratch, count: int) -> None:
    """Find the columns of the first `count` places, which ascend, and ask for the numbers of their nodes."""
    i, starts = 0, scratch.starts
    for j in range(count):
        place = scratch.places[j]
        while starts[i + 1] <= place:
            i += 1
        column = first.group_start[np.int64(scratch.groups.numbers[i])] + place - starts[i]
        prefetch(first.numbers, column * first.numbers.itemsize)
        scratch.columns[j] = column


@kernel
def _nearest(
    first: FirstLevel, scratch: FirstScratch, count: int, limit: int, groups: int, best: Best
) -> Any:
    """Fill `best` with the `limit` best of the first `count` ranks; return how many there are.

    A rank is of the node or group of its place or, with chosen `groups`, of a node in one of them.
    """
    ranks, places = scratch.ranks, scratch.places
    bound = rank_bound(ranks, count, limit, limit)[0] if limit < count else NO_BOUND
    found = passing(ranks, count, bound, places)
    if groups > 0:
        _columns_of(first, scratch, found)
    kept, last = 0, bound
    for j in range(found):
        number = first.numbers[scratch.columns[j]] if groups > 0 else places[j]
        rank = ranks[places[j]]
        kept, last = add_best(best, kept, last, rank, np.uint64(number), limit, scratch.no_names)
    return cut_best(best, kept, limit, 0, scratch.no_names)[0]


@kernel
def query_bytes(query: NDArray[np.float32], out: NDArray[np.int8]) -> Any:
    """Set out (d,) to the query's values as -127..127, rounded; returns the unit they are told in."""
    most = np.float32(0)
    for t in range(len(query)):
        most = max(most, abs(query[t]))
    unit = most / np.float32(QUERY_STEPS)
    if unit == 0:
        unit = np.float32(1)
    for t in range(len(query)):
        out[t] = np.int8(np.rint(query[t] / unit))
    return unit


@kernel
def score_group(
    query: NDArray[np.int8],
    columns: NDArray[np.int8],
    offsets: NDArray[np.float32],
    base: Any,
    step: Any,
    unit: Any,
    ranks: NDArray[np.int32],
    place: int,
) -> None:
    """Set ranks[place + j] to that of base + step · (offsets[j] + unit · query · columns[:, j]).

    columns : (d, w), d a multiple of 8, w one of LANES; base, step, unit : float32
    """
    column = 0
    while column + 4 * LANES <= len(offsets):
        score_bytes(query, columns, column, 4, offsets, base, step, unit, ranks, place + column)
        column += 4 * LANES
    if column + 2 * LANES <= len(offsets):
        score_bytes(query, columns, column, 2, offsets, base, step, unit, ranks, place + column)
        column += 2 * LANES
    if column < len(offsets):
        score_bytes(query, columns, column, 1, offsets, base, step, unit, ranks, place + column)


@kernel
def _score_groups(
    first: FirstLevel, query: NDArray[np.float32], table: Any, square: Any, scratch: FirstScratch, groups: int
) -> Any:
    """Rank the nodes of the chosen groups, nearly; return how many there are."""
    size, starts = len(query), scratch.starts
    unit = query_bytes(query, scratch.query)
    starts[0] = 0
    for i in range(groups):
        group = np.int64(scratch.groups.numbers[i])
        start, stop = first.group_start[group], first.group_start[group + 1]
        columns = first.differences[start * size : stop * size].reshape(size, stop - start)
        base, step = table[group] + square, np.float32(-2) * first.steps[group]
        # Columns of no node are ranked too; the next group takes their places.
        score_group(
            scratch.query, columns, first.offsets[start:stop], base, step, unit, scratch.ranks, starts[i]
        )
        starts[i + 1] = starts[i] + first.members[group]
    return starts[groups]


@kernel
def _prefetch_words(first: FirstLevel, nodes: Best, kept: int) -> None:
    """Ask for the words of the kept nodes, which are far apart in memory."""
    size = first.words.shape[1] * first.words.itemsize
    for i in range(kept):
        word = np.int64(first.labels[np.int64(nodes.numbers[i])])
        for place in range(word * size, (word + 1) * size, 64):
            prefetch_early(first.words, place)


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
    reach: Any,
    probes: int,
    group_reach: Any,
    scratch: FirstScratch,
    nodes: Best,
) -> tuple[Any, Any]:
    """Keep the `limit` nearest level-1 nodes within reach; returns how many, and how many were scored.

    table : scores of the nodes, or of the groups' centres, less ‖q‖²; square : ‖q‖²
    probes : groups looked into at most; reach, group_reach : see `cut_beyond`
    """
    count = first.groups if first.groups > 0 else first.nodes
    for i in range(count):
        scratch.ranks[i] = rank_of(table[i] + square)
    if first.groups == 0:
        return cut_beyond(nodes, _nearest(first, scratch, count, limit, 0, nodes), reach), count
    chosen = _nearest(first, scratch, count, probes, 0, scratch.groups)
    chosen = cut_beyond(scratch.groups, chosen, group_reach)
    inside = _score_groups(first, query, table, square, scratch, chosen)
    kept = cut_beyond(nodes, _nearest(first, scratch, inside, limit, chosen, nodes), reach)
    _score_exactly(first, query, square, nodes, kept)
    return kept, count + inside
