"""Reconstructions of single leaves, from the tree alone: the path above a leaf, then its suffix."""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import Dictionaries
from aggtree.engine.scan.filter_kernels import allowed_leaves
from aggtree.engine.scan.records import RowBits
from aggtree.engine.tree.layout import Tree, record_sizes
from aggtree.engine.tree.planes import unpack_leaves

BLOCK_LEAVES = 1 << 16


def leaf_vectors(
    tree: Tree, dictionaries: Dictionaries, norm_bytes: int, leaves: NDArray[np.int64], planes: bool = False
) -> NDArray[np.float32]:
    """Reconstructions (r, d) float32 of the given leaves (r,), in any order."""
    if planes:
        total = _node_vectors(tree, dictionaries, 1, _owners(tree, tree.leaf_start, 1, leaves))
        rows = unpack_leaves(tree.records, leaves, dictionaries.layout, norm_bytes)
        for number in range(1, dictionaries.layout.levels):
            total += _words(dictionaries, number, rows[:, norm_bytes + number - 1])
        return total
    out = np.zeros((len(leaves), dictionaries.dimension), np.float32)
    sizes = record_sizes(dictionaries.layout, norm_bytes)
    levels = np.searchsorted(tree.level_leaf, leaves, side="right") - 1
    for level in np.unique(levels).tolist():
        places = np.flatnonzero(levels == level)
        numbers = leaves[places]
        size = int(sizes[level])
        records = tree.record_start[level] + (numbers - tree.level_leaf[level]) * size
        total = _node_vectors(tree, dictionaries, level, _owners(tree, tree.leaf_start, level, numbers))
        for number in range(level, dictionaries.layout.levels):
            labels = tree.records[records + norm_bytes + number - level]
            total += _words(dictionaries, number, labels)
        out[places] = total
    return out


def _node_vectors(
    tree: Tree, dictionaries: Dictionaries, level: int, nodes: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Reconstructions of the prefixes of nodes of a level."""
    total = np.zeros((len(nodes), dictionaries.dimension), np.float32)
    for number in range(level, 1, -1):
        total += _words(dictionaries, number - 1, tree.labels[nodes])
        nodes = _owners(tree, tree.child_start, number - 1, nodes)
    # The nodes of level 1 come after the root.
    return total + _words(dictionaries, 0, tree.first_labels[nodes - 1])


def _words(
    dictionaries: Dictionaries, number: int, labels: NDArray[np.unsignedinteger]
) -> NDArray[np.float32]:
    """Words of a dictionary; an invalid label of a damaged file counts as the last."""
    words = dictionaries.part(number)
    chosen: NDArray[np.float32] = words[np.minimum(labels, len(words) - 1)]
    return chosen


def _owners(
    tree: Tree, starts: NDArray[np.unsignedinteger], level: int, numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The nodes of a level in whose ranges of leaves or children the numbers lie."""
    first, last = (int(start) for start in tree.level_start[level : level + 2])
    # In their own dtype, or the whole array would be converted.
    wanted = numbers.astype(starts.dtype)
    return np.searchsorted(starts[first:last], wanted, side="right").clip(1) - 1 + first


def find_leaves(tree: Tree, within: RowBits, count: int) -> NDArray[np.int64]:
    """Numbers of the leaves whose rows are allowed, ascending; at most `count` rows are allowed."""
    out = np.empty(min(count, len(tree.ids)) + 1, np.int64)
    return out[: allowed_leaves(tree.ids, within, 0, out)[1]]
