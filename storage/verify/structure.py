"""Check that the arrays of a tree are consistent, in blocks, with memory for one block.

The start arrays must be monotone over all nodes, and at the beginning of a level they must point exactly to
the beginning of the next level's nodes and of the level's leaves. Together these conditions put every range
inside its level, and the ranges cover the level.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import SHORT_WORDS
from aggtree.engine.simd.instructions.planes import BLOCK_LEAVES
from aggtree.engine.tree.check_kernels import disordered_leaf, mark_ids
from aggtree.engine.tree.layout import Tree
from aggtree.engine.tree.planes import plane_count, unpack_leaves
from aggtree.engine.tree.unpacked import node_blocks, unpacked
from aggtree.storage.index.format import TreeCounts
from aggtree.storage.index.segment_manifest import SegmentManifest

ROWS = 1 << 20
NODES = 1 << 18
LABELS = 256
PARENTS = 1 << 14
"""Nodes whose children, at most 256 each, are checked at a time."""

Report = Callable[[str, int, str], None]
"""Called with the array, the element and what is wrong with it."""


Check = Callable[[], None]


def offset_checks(tree: Tree, segment: SegmentManifest, report: Report) -> list[Check]:
    """Checks of the offsets, on which all other checks rely; each reports the first damage it finds."""
    counts = segment.counts
    return [
        lambda: _check_starts("child_start", tree.child_start, counts.level_start[1:], counts, report),
        lambda: _check_starts("leaf_start", tree.leaf_start, counts.level_leaf, counts, report),
    ]


def content_checks(tree: Tree, segment: SegmentManifest, report: Report) -> list[Check]:
    """Independent checks that require correct offsets; each reports the first damage it finds."""
    checks = [
        lambda: _check_no_empty_node(tree, report),
        lambda: _check_labels(tree, segment, report),
        lambda: _check_norms(tree, report),
        lambda: _check_records(tree, segment, report),
    ]
    # The longest first, so that all workers end together.
    checks = _leaf_order_checks(tree, segment, report) + checks
    checks.insert(0, lambda: _check_ids(tree.ids, segment.source_rows, report))
    return checks


def _blocks(length: int) -> Iterator[tuple[int, int]]:
    for start in range(0, length, ROWS):
        yield start, min(start + ROWS, length)


def _first(wrong: NDArray[np.bool_]) -> int:
    """Place of the first True, or -1."""
    return int(wrong.argmax()) if wrong.any() else -1


def _check_starts(
    name: str, starts: NDArray[Any], targets: tuple[int, ...], counts: TreeCounts, report: Report
) -> None:
    """Starts are monotone, and at the beginning of each level equal to the level's target."""
    for level, node in enumerate(counts.level_start[:-1]):
        target = targets[min(level, len(targets) - 1)]
        if counts.level_nodes[level] and int(starts[node]) != target:
            report(name, node, f"{int(starts[node])} at the begin of level {level}, expected {target}")
            return
    if int(starts[-1]) != targets[-1]:
        report(name, len(starts) - 1, f"{int(starts[-1])} at the end, expected {targets[-1]}")
        return
    for start, stop in _blocks(len(starts) - 1):
        block = starts[start : stop + 1]
        place = _first(block[1:] < block[:-1])
        if place >= 0:
            report(
                name, start + place + 1, f"{block[place + 1]} after {block[place]}, expected rising numbers"
            )
            return


def _check_no_empty_node(tree: Tree, report: Report) -> None:
    for start, stop in _blocks(len(tree.labels)):
        children, leaves = tree.child_start[start : stop + 1], tree.leaf_start[start : stop + 1]
        place = _first((children[1:] == children[:-1]) & (leaves[1:] == leaves[:-1]))
        if place >= 0:
            report("leaf_start", start + place, f"node {start + place} has neither children nor leaves")
            return


def _check_labels(tree: Tree, segment: SegmentManifest, report: Report) -> None:
    """Labels are within their dictionaries and strictly increasing below each parent."""
    if tree.labels[0] != 0:
        report("labels", 0, f"label {tree.labels[0]} of the root, expected 0")
    first = tree.first_labels
    place = _first(first[1:] <= first[:-1])
    if place >= 0:
        report(
            "first_labels",
            place + 1,
            f"label {first[place + 1]} after {first[place]}, expected rising labels",
        )
    place = _first(tree.labels[1 : 1 + len(first)] != (first & 0xFF))
    if place >= 0:
        report("labels", 1 + place, f"label {tree.labels[1 + place]}, first_labels has {first[place]}")
    level_start = segment.counts.level_start
    for level in range(2, len(segment.words) + 1):
        size = segment.words[level - 1]
        for start in range(level_start[level - 1], level_start[level], PARENTS):
            stop = min(start + PARENTS, level_start[level])
            if not _check_siblings(tree, start, stop, size, report):
                return


def _check_siblings(tree: Tree, start: int, stop: int, size: int, report: Report) -> bool:
    """Check the children of the nodes start..stop; False if one is damaged."""
    bounds = tree.child_start[start : stop + 1].astype(np.int64)
    most = int(np.diff(bounds).max(initial=0))
    if most > LABELS:
        report("child_start", start, f"{most} children of one of the nodes {start} to {stop}")
        return False
    labels = tree.labels[bounds[0] : bounds[-1]]
    wrong = np.zeros(len(labels), np.bool_)
    wrong[1:] = labels[1:] <= labels[:-1]
    begins = bounds[:-1] - bounds[0]
    wrong[begins[begins < len(labels)]] = False  # the first child follows a child of another parent
    place = _first(wrong)
    if place >= 0:
        message = f"label {labels[place]} after {labels[place - 1]} below one parent, expected rising labels"
        report("labels", int(bounds[0]) + place, message)
        return False
    place = _first(labels >= size) if size < 256 else -1
    if place >= 0:
        report("labels", int(bounds[0]) + place, f"label {labels[place]} of a dictionary of {size} words")
    return place < 0


def _check_norms(tree: Tree, report: Report) -> None:
    if tree.norms[0] != 0:
        report("norms", 0, f"norm {tree.norms[0]} of the root, expected 0")
    for start, stop in _blocks(len(tree.norms)):
        block = tree.norms[start:stop]
        place = _first(~np.isfinite(block) | (block < 0))
        if place >= 0:
            report("norms", start + place, f"norm {block[place]}, expected a finite number of 0 or more")
            return


def _check_records(tree: Tree, segment: SegmentManifest, report: Report) -> None:
    """Exact norms are finite; labels of suffixes are within their dictionaries."""
    counts, norm_bytes = segment.counts, segment.norm_bytes
    if segment.planes:
        _check_planes(tree, segment, report)
        return
    for level in range(1, len(segment.words) + 1):
        size = counts.record_bytes(level)
        small = [(norm_bytes + j, words) for j, words in enumerate(segment.words[level:]) if words < 256]
        if not small and norm_bytes < 4:
            continue
        first, last = counts.record_start[level : level + 2]
        for start in range(first, last, ROWS * size):
            rows = tree.records[start : min(start + ROWS * size, last)].reshape(-1, size)
            for column, words in small:
                place = _first(rows[:, column] >= words)
                if place >= 0:
                    message = f"label {rows[place, column]} of a dictionary of {words} words"
                    report("records", start + place * size + column, message)
                    return
            place = _first(~np.isfinite(rows[:, :4].copy().view("<f4")[:, 0])) if norm_bytes == 4 else -1
            if place >= 0:
                report("records", start + place * size, "a norm that is not finite")
                return


def _check_planes(tree: Tree, segment: SegmentManifest, report: Report) -> None:
    """Labels in planes are within their dictionaries."""
    small = [(number, words) for number, words in enumerate(segment.words[1:]) if words < SHORT_WORDS]
    for start, stop in _blocks(len(tree.ids)) if small else ():
        leaves = np.arange(start, stop)
        labels = unpack_leaves(tree.records, leaves, segment.layout, segment.norm_bytes)
        for number, words in small:
            place = _first(labels[:, segment.norm_bytes + number] >= words)
            if place >= 0:
                label = labels[place, segment.norm_bytes + number]
                block = (start + place) // BLOCK_LEAVES * BLOCK_LEAVES
                message = f"leaf {start + place} has label {label} of a dictionary of {words} words"
                report("records", block * plane_count(segment.layout, segment.norm_bytes), message)
                return


def _leaf_order_checks(tree: Tree, segment: SegmentManifest, report: Report) -> list[Check]:
    """One check for each block of nodes, each of which reports the first damage of its own."""
    starts = segment.counts.level_start
    return [
        partial(_check_leaf_order, tree, level, first, min(first + NODES, starts[level + 1]), segment, report)
        for level in range(1, len(segment.words) + 1)
        for first in range(starts[level], starts[level + 1], NODES)
    ]


def _check_leaf_order(
    tree: Tree, level: int, first: int, stop: int, segment: SegmentManifest, report: Report
) -> None:
    """Leaves of a node are in (code, id) order, and those that could be below a child are."""
    counts = segment.counts
    size = counts.record_bytes(level)
    if segment.planes:
        for start, end, leaf, last in node_blocks(tree, first, stop):
            rows = unpacked(tree, leaf, last, segment.layout, segment.norm_bytes)
            wrong = disordered_leaf(rows, level, start, end, segment.norm_bytes, size)
            if wrong >= 0:
                block = wrong // BLOCK_LEAVES * BLOCK_LEAVES
                place = block * plane_count(segment.layout, segment.norm_bytes)
                report("records", place, f"leaf {wrong} is not in the order of (code, id) below its node")
                return
        return
    leaf = disordered_leaf(tree, level, first, stop, segment.norm_bytes, size)
    if leaf >= 0:
        place = counts.record_start[level] + (leaf - counts.level_leaf[level]) * counts.record_bytes(level)
        report("records", place, f"leaf {leaf} is not in the order of (code, id) below its node")


def _check_ids(ids: NDArray[Any], limit: int, report: Report) -> None:
    """Ids are distinct row numbers; a bit per row marks which were seen."""
    seen = np.zeros(-(-limit // 8), np.uint8)
    for start, stop in _blocks(len(ids)):
        place = mark_ids(ids[start:stop], limit, seen)
        if place >= 0:
            number = int(ids[start + place])
            reason = f"there are {limit} rows" if number >= limit else "it was there before"
            report("ids", start + place, f"row {number}, but {reason}")
            return
