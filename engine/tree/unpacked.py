"""Unpack leaves in planes, for checks that read them one by one."""

from collections.abc import Iterator

import numpy as np

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.tree.layout import Tree
from aggtree.engine.tree.planes import unpack_leaves

LEAVES = 1 << 16
"""Leaves of the nodes that are unpacked together, unless one node has more."""


def unpacked(tree: Tree, first: int, stop: int, layout: CodeLayout, norm_bytes: int) -> Tree:
    """The tree with records of leaves first..stop only, a norm and a byte for each label.

    Its `record_start` locates the record of a leaf by its number, as in trees without planes.
    """
    size = norm_bytes + layout.levels - 1
    rows = unpack_leaves(tree.records, np.arange(first, stop), layout, norm_bytes)
    starts = np.full_like(tree.record_start, (stop - first) * size)
    starts[:2] = -first * size
    return tree._replace(records=rows.ravel(), record_start=starts)


def node_blocks(tree: Tree, first: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Cut the level-1 nodes first..stop into runs of few leaves: their nodes, and their leaves."""
    while first < stop:
        leaf = int(tree.leaf_start[first])
        ends = tree.leaf_start[first + 1 : stop + 1].astype(np.int64)
        count = max(1, int(np.searchsorted(ends, leaf + LEAVES, side="right")))
        yield first, first + count, leaf, int(ends[count - 1])
        first += count
