"""The first level made ready for queries: words as columns of the look-up tables, grouped when very wide.

With 65,536 words a product with every word would cost more than the rest of a query. Their nodes are
clustered once, when a tree is built or, failing that, opened, and a query multiplies only the words of
the nearest groups.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import Dictionaries
from aggtree.engine.first_level_kernels import FirstLevel
from aggtree.engine.look_up_kernels import DIMENSION_STEP, LookUpWords
from aggtree.engine.tree import Tree
from aggtree.engine.vector_instructions import LANES

LABELS = 256
# Level-1 nodes scored in one stage.
ONE_STAGE = 4096
WORDS_PER_GROUP = 256
GROUP_ROUNDS = 3
BLOCK_ROWS = 8192
# Words a grouped query scores at least, and per node it keeps. Measured with 65,536 SIFT vectors as words:
# scoring 4,000 of them finds 94 % of the 8 nearest, 8,000 find 98 %, in 6/10 of the time of scoring all.
LEAST_WORDS = 8192
WORDS_PER_NODE = 40


def padded(count: int, step: int) -> int:
    """`count` rounded up to a multiple of `step`."""
    return -(-count // step) * step


def group_probes(first: FirstLevel, limit: int) -> int:
    """Groups to look into so that `limit` nodes are found among many; all of them when nothing is cut."""
    if first.groups == 0 or limit >= first.nodes:
        return first.groups
    wanted = max(LEAST_WORDS, WORDS_PER_NODE * limit)
    return min(first.groups, max(1, round(wanted * first.groups / first.nodes)))


class FirstGroups(NamedTuple):
    """A first level in groups, and the groups' centres (groups, d) float32."""

    first: FirstLevel
    centres: NDArray[np.float32]


def prepare(
    tree: Tree,
    dictionaries: Dictionaries,
    one_stage: int = ONE_STAGE,
    groups: FirstGroups | None = None,
) -> tuple[FirstLevel, LookUpWords]:
    """Group the level-1 nodes if there are more than `one_stage`; lay out the words for look-up tables.

    groups : what `group_nodes` made of this tree before, to be used instead
    """
    nodes = len(tree.first_labels)
    if groups is None and nodes <= one_stage:
        empty, norms = np.empty(0, np.float32), np.array(tree.norms[1 : 1 + nodes], np.float32)
        first = FirstLevel(nodes, 0, np.zeros(1, np.int64), empty, empty, np.empty(0, np.int64))
        words = look_up_words(dictionaries.part(0)[tree.first_labels], norms, dictionaries)
        return _read_only(first), words
    if groups is None:
        groups = group_nodes(tree.first_labels, tree.norms[1 : 1 + nodes], dictionaries)
    else:
        check_groups(groups, nodes, dictionaries.dimension)
    squares = np.vecdot(groups.centres, groups.centres)
    return _read_only(groups.first), look_up_words(groups.centres, squares, dictionaries)


def _read_only(first: FirstLevel) -> FirstLevel:
    """The same arrays, read-only like mapped ones, so that both share one compiled kernel."""

    def view(array: NDArray[Any]) -> NDArray[Any]:
        plain = np.asarray(array).view()
        plain.flags.writeable = False
        return plain

    return FirstLevel(first.nodes, first.groups, *(view(array) for array in first[2:]))


def group_nodes(
    labels: NDArray[np.uint16], norms: NDArray[np.float32], dictionaries: Dictionaries
) -> FirstGroups:
    """Group the level-1 nodes of these first labels (n,) and norms (n,); the same for the same input."""
    words = dictionaries.part(0)[labels]
    centres, groups = cluster(words, max(1, len(words) // WORDS_PER_GROUP))
    return FirstGroups(grouped(words, np.asarray(norms, np.float32), groups, len(centres)), centres)


def check_groups(groups: FirstGroups, nodes: int, dimension: int) -> None:
    """Raise ValueError unless the arrays fit together, so that no query leaves them."""
    first, starts = groups.first, groups.first.group_start
    shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
        "centres": (groups.centres, (first.groups, dimension)),
        "group_start": (starts, (first.groups + 1,)),
    }
    columns = int(starts[-1]) if len(starts) else 0
    shapes["norms"] = (first.norms, (columns,))
    shapes["numbers"] = (first.numbers, (columns,))
    shapes["words"] = (first.words, (columns * padded(dimension, DIMENSION_STEP),))
    for name, (array, shape) in shapes.items():
        if array.shape != shape:
            raise ValueError(f"{name} of the first level's groups of shape {array.shape}: expected {shape}")
    widths = np.diff(starts)
    if first.groups < 1 or starts[0] != 0 or (widths < 0).any() or (widths % LANES).any():
        raise ValueError("groups of the first level overlap or are no whole columns")
    if first.nodes != nodes or not np.array_equal(
        np.sort(first.numbers[first.numbers >= 0]), np.arange(nodes)
    ):
        raise ValueError(f"groups of the first level do not hold each of {nodes} nodes once")


def look_up_words(
    first: NDArray[np.float32], start: NDArray[np.float32], dictionaries: Dictionaries
) -> LookUpWords:
    """Columns of the tables: start - 2 q·w for `first`, then -2 q·w for 256 words of each other dictionary.

    first : (f, d) float32, start : (f,) float32
    """
    sizes = dictionaries.layout.words
    offset = padded(len(first), LANES)
    dimension = padded(dictionaries.dimension, DIMENSION_STEP)
    rows = np.zeros((dimension, offset + LABELS * (len(sizes) - 1)), np.float32)
    rows[: dictionaries.dimension, : len(first)] = -2 * first.T
    for number in range(1, len(sizes)):
        column = offset + LABELS * (number - 1)
        rows[: dictionaries.dimension, column : column + sizes[number]] = -2 * dictionaries.part(number).T
    starts = np.zeros(rows.shape[1], np.float32)
    starts[: len(first)] = start
    panels = np.ascontiguousarray(rows.reshape(dimension, -1, LANES).transpose(1, 0, 2))
    return LookUpWords(rows, panels, starts)


def cluster(words: NDArray[np.float32], groups: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Centres (g, d) of at most `groups` clusters of words (w, d), and the cluster of each word (w,).

    A few rounds from evenly spaced words: the groups only have to be compact, not best.
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


def grouped(
    words: NDArray[np.float32], norms: NDArray[np.float32], labels: NDArray[np.int64], groups: int
) -> FirstLevel:
    """Words (w, d) and norms (w,) of the level-1 nodes, laid out group by group."""
    counts = np.bincount(labels, minlength=groups)
    widths = [padded(int(count), LANES) for count in counts]
    start = np.concatenate(([0], np.cumsum(widths))).astype(np.int64)
    dimension = padded(words.shape[1], DIMENSION_STEP)
    flat = np.zeros(int(start[-1]) * dimension, np.float32)
    all_norms = np.zeros(start[-1], np.float32)
    numbers = np.full(start[-1], -1, np.int64)
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(counts)
    for group in range(groups):
        members = order[ends[group] - counts[group] : ends[group]]
        block = flat[start[group] * dimension : start[group + 1] * dimension].reshape(
            dimension, widths[group]
        )
        block[: words.shape[1], : len(members)] = -2 * words[members].T
        all_norms[start[group] : start[group] + len(members)] = norms[members]
        numbers[start[group] : start[group] + len(members)] = members
    return FirstLevel(len(words), groups, start, flat, all_norms, numbers)
