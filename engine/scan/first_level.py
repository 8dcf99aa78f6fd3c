"""The first level made ready for queries: words as columns of the distance tables, grouped when very wide.

With 65,536 words a product with every word would cost more than the rest of a query. Their nodes are
clustered once, when a tree is built or, failing that, opened, and a query multiplies only the words of
the nearest groups.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import Dictionaries
from aggtree.engine.scan.records import LABELS, ByteWords, FirstLevel, TableWords
from aggtree.engine.scan.table_kernels import DIMENSION_STEP
from aggtree.engine.simd.instructions.byte_products import PANEL, QUAD, ZERO
from aggtree.engine.simd.vector_code import LANES
from aggtree.engine.tree.layout import Tree

# Level-1 nodes scored in one stage.
ONE_STAGE = 4096
WORDS_PER_GROUP = 64
GROUP_ROUNDS = 3
BLOCK_ROWS = 8192
# Words a grouped query scores at least, and per node it keeps. Measured with 65,536 words in 1024 groups:
# scoring 2048 of them finds 95 % of the 32 nearest nodes, 4096 find 99 %, and 98 % of the 64 nearest.
LEAST_WORDS = 3072
WORDS_PER_NODE = 64
# With a pruning ratio groups are pruned too, and there may be more of them. Of 43 nodes within 1.25 of their
# mean, groups within 1.45 of theirs hold as many as 84 unpruned groups, and have a sixth fewer words.
GROUP_PRUNING_RATIO = 1.8
WORDS_PER_NEAR_NODE = 96
# By which queries of a batch are put in order; a multiple of LANES.
REGIONS = 64
# Differences of a word and its group's centre are kept as -127..127.
DIFFERENCES = 127
# Of a group whose words are all the same.
SMALLEST = 1e-6


def padded(count: int, step: int) -> int:
    """`count` rounded up to a multiple of `step`."""
    return -(-count // step) * step


def group_pruning_ratio(first: FirstLevel, limit: int, pruning_ratio: float) -> float:
    """How far groups may be when nodes may be so far; any when all nodes are kept."""
    return math.inf if limit >= first.nodes else 1 + GROUP_PRUNING_RATIO * (pruning_ratio - 1)


def group_probes(first: FirstLevel, limit: int, pruning_ratio: float) -> int:
    """Groups to look into so that `limit` nodes are found among many; all of them when nothing is cut."""
    if first.groups == 0 or limit >= first.nodes:
        return first.groups
    wanted = max(LEAST_WORDS, (WORDS_PER_NODE if pruning_ratio == math.inf else WORDS_PER_NEAR_NODE) * limit)
    return min(first.groups, max(1, round(wanted * first.groups / first.nodes)))


def regions(words: TableWords, groups: int) -> TableWords | None:
    """Columns of centres of the groups' centres, to find which queries are near each other; None of few.

    Each is beside the nearest of those before it that is not beside another: queries in the order of their
    nearest column stay near each other beyond a column's end.
    """
    if groups < REGIONS:
        return None
    centres = cluster(np.ascontiguousarray(words.rows[:, :groups].T) / np.float32(-2), REGIONS)[0]
    squares = np.vecdot(centres, centres)
    apart = squares + squares[:, None] - 2 * (centres @ centres.T)
    order, left = [0], set(range(1, len(centres)))
    while left:
        order.append(min(left, key=lambda number: (apart[order[-1], number], number)))
        left.remove(order[-1])
    rows = np.zeros((len(words.rows), REGIONS), np.float32)
    start = np.full(REGIONS, np.inf, np.float32)
    rows[:, : len(order)], start[: len(order)] = -2 * centres[order].T, squares[order]
    return TableWords(rows, panels_of(rows), start)


def panels_of(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Columns (d, columns) in panels of LANES, as `TableWords` has them."""
    return np.ascontiguousarray(rows.reshape(len(rows), -1, LANES).transpose(1, 0, 2))


class FirstGroups(NamedTuple):
    """The nodes of a first level in groups: centres (groups, d) float32; the others as in `FirstLevel`."""

    centres: NDArray[np.float32]
    group_start: NDArray[np.int64]
    steps: NDArray[np.float32]
    quads: NDArray[np.uint8]
    offsets: NDArray[np.float32]
    numbers: NDArray[np.int64]


NO_GROUPS = FirstGroups(
    centres=np.empty((0, 0), np.float32),
    group_start=np.zeros(1, np.int64),
    steps=np.empty(0, np.float32),
    quads=np.empty(0, np.uint8),
    offsets=np.empty(0, np.float32),
    numbers=np.empty(0, np.int64),
)


def prepare(
    tree: Tree,
    dictionaries: Dictionaries,
    one_stage: int = ONE_STAGE,
    groups: FirstGroups | None = None,
    labels: int = LABELS,
) -> tuple[FirstLevel, TableWords]:
    """Group the level-1 nodes if there are more than `one_stage`; lay out the words for distance tables.

    groups : what `group_nodes` made of this tree before, to be used instead
    labels : columns of the tables for each dictionary but the first
    """
    nodes = len(tree.first_labels)
    if groups is None and nodes <= one_stage:
        norms = np.array(tree.norms[1 : 1 + nodes], np.float32)
        words = table_words(dictionaries.part(0)[tree.first_labels], norms, dictionaries, labels)
        return first_level(NO_GROUPS, tree, dictionaries), words
    if groups is None:
        groups = group_nodes(tree.first_labels, tree.norms[1 : 1 + nodes], dictionaries)
    else:
        check_groups(groups, nodes, dictionaries.dimension)
    squares = np.vecdot(groups.centres, groups.centres)
    words = table_words(groups.centres, squares, dictionaries, labels)
    return first_level(groups, tree, dictionaries), words


def first_level(groups: FirstGroups, tree: Tree, dictionaries: Dictionaries) -> FirstLevel:
    """What queries read of the first level: read-only like mapped arrays, so that all share one kernel."""

    def view(array: NDArray[Any]) -> NDArray[Any]:
        plain = np.asarray(array).view()
        plain.flags.writeable = False
        return plain

    nodes = len(tree.first_labels)
    own = (dictionaries.part(0), tree.first_labels, tree.norms[1 : 1 + nodes])
    arrays = (groups.group_start, members_of(groups), *groups[2:], *own)
    return FirstLevel(nodes, len(groups.centres), *(view(array) for array in arrays))


def members_of(groups: FirstGroups) -> NDArray[np.int64]:
    """How many nodes each group has, (groups,) int64."""
    before = np.concatenate(([0], np.cumsum(groups.numbers >= 0)))
    return np.diff(before[groups.group_start]).astype(np.int64)


def group_nodes(
    labels: NDArray[np.uint16], norms: NDArray[np.float32], dictionaries: Dictionaries
) -> FirstGroups:
    """Group the level-1 nodes of these first labels (n,) and norms (n,); the same for the same input."""
    words = dictionaries.part(0)[labels]
    centres, groups = cluster(words, max(1, len(words) // WORDS_PER_GROUP))
    return lay_out_groups(words, np.asarray(norms, np.float32), groups, centres)


def check_groups(groups: FirstGroups, nodes: int, dimension: int) -> None:
    """Raise ValueError unless the arrays fit together, so that no query leaves them."""
    starts, count = groups.group_start, len(groups.centres)
    columns = int(starts[-1]) if len(starts) else 0
    shapes: dict[str, tuple[int, ...]] = {
        "centres": (count, dimension),
        "group_start": (count + 1,),
        "steps": (count,),
        "quads": (columns * padded(dimension, DIMENSION_STEP),),
        "offsets": (columns,),
        "numbers": (columns,),
    }
    for name, shape in shapes.items():
        found = getattr(groups, name).shape
        if found != shape:
            raise ValueError(f"{name} of the first level's groups of shape {found}: expected {shape}")
    widths = np.diff(starts)
    if count < 1 or starts[0] != 0 or (widths < 0).any() or (widths % LANES).any():
        raise ValueError("groups of the first level overlap or are no whole columns")
    if not np.array_equal(np.sort(groups.numbers[groups.numbers >= 0]), np.arange(nodes)):
        raise ValueError(f"groups of the first level do not hold each of {nodes} nodes once")
    ends = np.repeat(starts[:-1] + members_of(groups), widths)
    if not np.array_equal(groups.numbers >= 0, np.arange(columns) < ends):
        raise ValueError("groups of the first level do not begin with their nodes")


def table_words(
    first: NDArray[np.float32], start: NDArray[np.float32], dictionaries: Dictionaries, labels: int = LABELS
) -> TableWords:
    """Columns of the tables: start - 2 q·w for `first`, then -2 q·w for words of each other dictionary.

    first : (f, d) float32, start : (f,) float32; labels : columns of each of these dictionaries
    """
    sizes = dictionaries.layout.words
    offset = padded(len(first), LANES)
    dimension = padded(dictionaries.dimension, DIMENSION_STEP)
    rows = np.zeros((dimension, offset + labels * (len(sizes) - 1)), np.float32)
    rows[: dictionaries.dimension, : len(first)] = -2 * first.T
    for number in range(1, len(sizes)):
        column = offset + labels * (number - 1)
        rows[: dictionaries.dimension, column : column + sizes[number]] = -2 * dictionaries.part(number).T
        if labels < LABELS:  # columns of no word must not widen the range of those that are used
            rows[:, column + sizes[number] : column + labels] = rows[:, column : column + 1]
    starts = np.zeros(rows.shape[1], np.float32)
    starts[: len(first)] = start
    return TableWords(rows, panels_of(rows), starts)


def byte_words(words: TableWords) -> ByteWords:
    """The same columns in bytes, each in a unit of its own."""
    dimension, columns = words.rows.shape
    width = padded(columns, PANEL)
    rows, start, units = np.zeros((dimension, width), np.float32), np.zeros(width, np.float32), np.ones(width)
    rows[:, :columns], start[:columns] = words.rows, words.start
    with np.errstate(all="ignore"):  # a damaged file may hold anything
        largest = np.abs(rows).max(axis=0)
        units = np.where((largest > 0) & (largest < np.inf), largest, 1).astype(np.float32) / DIFFERENCES
        values = np.nan_to_num(np.rint(rows / units)).clip(-DIFFERENCES, DIFFERENCES).astype(np.int8)
    panels = values.reshape(dimension // QUAD, QUAD, -1, PANEL).transpose(2, 0, 3, 1)
    quads = np.ascontiguousarray(panels).view(np.uint8) ^ np.uint8(ZERO)
    return ByteWords(quads, units.astype(np.float32), start)


def cluster(words: NDArray[np.float32], groups: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Centres (g, d) of at most `groups` clusters of words (w, d), and the cluster of each word (w,).

    A few rounds from evenly spaced words: the groups only have to be compact, not optimal. Not by `kmeans`,
    whose sums are rounded differently: groups are stored in indexes, whose bytes must not change.
    """
    centres = words[np.linspace(0, len(words) - 1, groups).astype(np.int64)]
    for _ in range(GROUP_ROUNDS):
        labels = nearest_centre(words, centres)
        order = np.argsort(labels, kind="stable")
        used, starts = np.unique(labels[order], return_index=True)
        sums = np.add.reduceat(words[order], starts, axis=0)
        centres = (sums / np.diff([*starts, len(words)])[:, None]).astype(np.float32)
    labels = nearest_centre(words, centres)
    used, labels = np.unique(labels, return_inverse=True)
    return np.ascontiguousarray(centres[used]), labels


def nearest_centre(words: NDArray[np.float32], centres: NDArray[np.float32]) -> NDArray[np.int64]:
    """The centre nearest to each word, (w,) int64."""
    squares = np.vecdot(centres, centres)
    blocks = [words[start : start + BLOCK_ROWS] for start in range(0, len(words), BLOCK_ROWS)]
    return np.concatenate([np.argmin(squares - 2 * (block @ centres.T), axis=1) for block in blocks])


def as_quads(differences: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Differences (d, columns) of one group in the order of `FirstLevel.quads`, flat."""
    quads = differences.reshape(len(differences) // QUAD, QUAD, -1).transpose(0, 2, 1)
    return (quads.ravel().view(np.uint8) ^ np.uint8(ZERO)).ravel()


def lay_out_groups(
    words: NDArray[np.float32],
    norms: NDArray[np.float32],
    labels: NDArray[np.int64],
    centres: NDArray[np.float32],
) -> FirstGroups:
    """Words (w, d) and norms (w,) of the level-1 nodes, laid out group by group."""
    counts = np.bincount(labels, minlength=len(centres))
    widths = [padded(int(count), LANES) for count in counts]
    start = np.concatenate(([0], np.cumsum(widths))).astype(np.int64)
    dimension = padded(words.shape[1], DIMENSION_STEP)
    quads = np.empty(int(start[-1]) * dimension, np.uint8)
    steps = np.empty(len(centres), np.float32)
    offsets = np.zeros(start[-1], np.float32)
    numbers = np.full(start[-1], -1, np.int64)
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(counts)
    for group, centre in enumerate(centres):
        members = order[ends[group] - counts[group] : ends[group]]
        apart = words[members] - centre
        steps[group] = step = max(float(np.abs(apart).max(initial=0)), SMALLEST) / DIFFERENCES
        differences = np.zeros((dimension, widths[group]), np.int8)
        differences[: words.shape[1], : len(members)] = np.rint(apart / step).T
        quads[start[group] * dimension : start[group + 1] * dimension] = as_quads(differences)
        columns = slice(start[group], start[group] + len(members))
        offsets[columns] = (norms[members] - np.vecdot(centre, centre)) / (-2 * step)
        numbers[columns] = members
    return FirstGroups(centres, start, steps, quads, offsets, numbers)
