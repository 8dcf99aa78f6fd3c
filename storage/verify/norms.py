"""Check the norms of the tree against the norms of reconstructions, for a sample of the nodes or for all.

A node's labels are found by climbing: the parent of a node is the last one whose children begin at or
before it. The offsets and labels must have been checked.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import Dictionaries
from aggtree.engine.tree.layout import Tree
from aggtree.engine.tree.planes import unpack_leaves
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.verify.structure import Check, Report

SAMPLE = 1024
"""Nodes of each level that are looked at when it is a sample."""
BLOCK_NODES = 4096
TOLERANCE = 1e-4
"""Sums of floats in another order differ by less, relative to the largest norm there may be."""


def norm_checks(
    tree: Tree, dictionaries: Dictionaries, segment: SegmentManifest, report: Report, *, every_node: bool
) -> list[Check]:
    """One check for each block of nodes: their norms, and those of the first leaf of each."""
    return [
        _check(tree, dictionaries, segment, report, level, nodes)
        for level in range(1, len(segment.words) + 1)
        for nodes in _chosen(*segment.counts.level_start[level : level + 2], every_node=every_node)
    ]


def _chosen(first: int, stop: int, *, every_node: bool) -> Iterator[Callable[[], NDArray[np.int64]]]:
    """Blocks of nodes of a level, generated lazily."""
    if not every_node and stop - first > SAMPLE:
        yield lambda: np.linspace(first, stop - 1, SAMPLE).astype(np.int64)
        return
    for start in range(first, stop, BLOCK_NODES):
        yield lambda start=start: np.arange(start, min(start + BLOCK_NODES, stop))  # type: ignore[misc]


def _check(
    tree: Tree,
    dictionaries: Dictionaries,
    segment: SegmentManifest,
    report: Report,
    level: int,
    chosen: Callable[[], NDArray[np.int64]],
) -> Check:
    def check() -> None:
        nodes = chosen()
        vectors = _reconstructed(tree, dictionaries, level, nodes)
        slack = TOLERANCE * _largest_norm(dictionaries)
        stored = tree.norms[nodes]
        wrong = _first(np.abs(np.vecdot(vectors, vectors) - stored) > slack)
        if wrong >= 0:
            expected = np.vecdot(vectors[wrong], vectors[wrong])
            report("norms", int(nodes[wrong]), f"norm {stored[wrong]:.6g}, its labels give {expected:.6g}")
            return
        _check_first_leaves(tree, dictionaries, segment, report, level, nodes, vectors, slack)

    return check


def _check_first_leaves(
    tree: Tree,
    dictionaries: Dictionaries,
    segment: SegmentManifest,
    report: Report,
    level: int,
    nodes: NDArray[np.int64],
    vectors: NDArray[np.float32],
    slack: float,
) -> None:
    """Check the norm of the first leaf of each node, computed from the node's norm and the record."""
    counts, norm_bytes = segment.counts, segment.norm_bytes
    has_leaves = tree.leaf_start[nodes] < tree.leaf_start[nodes + 1]
    nodes, vectors = nodes[has_leaves], vectors[has_leaves]
    if norm_bytes == 0:
        return
    size = counts.record_bytes(level)
    places = counts.record_start[level] + (tree.leaf_start[nodes] - counts.level_leaf[level]) * size
    if segment.planes:
        leaves = tree.leaf_start[nodes].astype(np.int64)
        records = unpack_leaves(tree.records, leaves, segment.layout, norm_bytes)
    else:
        records = tree.records[places[:, None].astype(np.int64) + np.arange(size)]
    for number in range(level, len(segment.words)):
        vectors = vectors + dictionaries.part(number)[records[:, norm_bytes + number - level]]
    exact = np.vecdot(vectors, vectors)
    if norm_bytes == 4:
        stored, slacks = records[:, :4].copy().view("<f4")[:, 0], np.full(len(nodes), slack)
    else:
        steps = records[:, :norm_bytes].copy().view(f"<u{norm_bytes}")[:, 0].astype(np.float32)
        stored = tree.norms[nodes] + tree.norm_low[level] + tree.norm_step[level] * steps
        # The lowest and the highest step stand for everything beyond them.
        beyond = (steps == 0) & (exact < stored) | (steps == 256**norm_bytes - 1) & (exact > stored)
        slacks = np.where(beyond, np.inf, tree.norm_step[level] + slack)
    wrong = _first(np.abs(exact - stored) > slacks)
    if wrong >= 0:
        report(
            "records",
            int(places[wrong]),
            f"norm {stored[wrong]:.6g} of a leaf, its labels give {exact[wrong]:.6g}",
        )


def _reconstructed(
    tree: Tree, dictionaries: Dictionaries, level: int, nodes: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Sums of the words of the nodes' labels, (n, d) float32."""
    vectors = np.zeros((len(nodes), dictionaries.dimension), np.float32)
    for number, labels in enumerate(path_labels(tree, level, nodes)):
        vectors += dictionaries.part(number)[labels]
    return vectors


def path_labels(tree: Tree, level: int, nodes: NDArray[np.int64]) -> list[NDArray[np.uint16]]:
    """The labels of dictionaries 1..level on the way to each node of a level, (n,) uint16 each."""
    labels: list[NDArray[np.uint16]] = []
    for now in range(level, 1, -1):
        labels.append(tree.labels[nodes].astype(np.uint16))
        first = int(tree.level_start[now - 1])
        starts = tree.child_start[first : int(tree.level_start[now])]
        # In the dtype of the offsets: another would make a copy of all of them.
        nodes = first + np.searchsorted(starts, nodes.astype(starts.dtype), side="right") - 1
    labels.append(tree.first_labels[nodes - 1])
    return labels[::-1]


def _largest_norm(dictionaries: Dictionaries) -> float:
    """An upper bound of the squared norm of all reconstructions."""
    parts = [dictionaries.part(number) for number in range(dictionaries.layout.levels)]
    return float(sum(np.sqrt(np.vecdot(part, part).max()) for part in parts) ** 2)


def _first(wrong: NDArray[np.bool_]) -> int:
    """Place of the first True, or -1."""
    return int(wrong.argmax()) if wrong.any() else -1
