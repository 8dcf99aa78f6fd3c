"""The A-Tree as flat arrays: building a partition of it from sorted codes, and joining partitions.

The nodes of all levels lie one after another, each level in code order, so both start arrays are
monotone and the children and the leaves of a node end where those of the next node begin:

    node        | root | level 1 ........ | level 2 ............... | ... | end
    child_start |  1   | a    b    c ...  | ...                           | N
    leaf_start  |  0   | 0    x    y ...  | ...                           | n
                          children of the first level-1 node are a..b, its leaves 0..x

A leaf of a level-m node is a record: its norm, then the labels m+1..M, its suffix. Leaves are numbered
level after level too, so all records of a level have one length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.params import TreeParams
from aggtree.engine.simd.instructions.planes import SPARE_BYTES
from aggtree.engine.tree.build_kernels import (
    SUMS,
    FillState,
    SortedRows,
    TreePartition,
    Words,
    common_labels,
    fill_partition,
    hang_levels,
    level_counts,
)
from aggtree.engine.tree.code_order import check_rows, sort_codes
from aggtree.engine.tree.planes import allows_planes, pack_planes, plane_bytes, plane_count

__all__ = [
    "Tree",
    "TreePartition",
    "TreeShape",
    "build_bytes",
    "build_tree",
    "build_tree_partition",
    "check_tree",
    "join_partitions",
    "norm_steps",
    "record_sizes",
    "tree_shape",
]


NO_BUCKET = 2**62
"""No node is split: in planes all leaves hang from nodes of level 1."""


class Tree(NamedTuple):
    """A whole A-Tree of N nodes and n leaves.

    first_labels : (N1,) uint16, label of each level-1 node
    labels : (N,) uint8, low byte of the last label of each node; the root is node 0
    norms : (N,) float32, squared norm of the reconstruction of each node's labels
    child_start : (N + 1,) uint32 or uint64, first child of each node
    leaf_start : (N + 1,) uint32 or uint64, first leaf of each node
    records : (B,) uint8, norm and suffix of each leaf
    ids : (n,) uint32 or uint64, id of each leaf
    level_start, level_leaf, record_start : (M + 2,) int64, first node, leaf, record byte of levels 0..M; end
    norm_low, norm_step : (M + 1,) float32: the norm of a leaf that hangs from a node of level m is
        norms[node] + norm_low[m] + norm_step[m] * (stored number), unless stored exactly in 4 bytes
    """

    first_labels: NDArray[np.uint16]
    labels: NDArray[np.uint8]
    norms: NDArray[np.float32]
    child_start: NDArray[np.unsignedinteger]
    leaf_start: NDArray[np.unsignedinteger]
    records: NDArray[np.uint8]
    ids: NDArray[np.unsignedinteger]
    level_start: NDArray[np.int64]
    level_leaf: NDArray[np.int64]
    record_start: NDArray[np.int64]
    norm_low: NDArray[np.float32]
    norm_step: NDArray[np.float32]


def build_bytes(layout: CodeLayout, params: TreeParams, id_bytes: int) -> int:
    """Memory per row that `build_tree_partition` allocates at most, its result included."""
    nodes = layout.levels if params.direct_leaves == 1 else 1
    return 3 + nodes * (2 + 4 + 4 + 4) + params.norm_bytes + layout.width + id_bytes


def norm_steps(
    ranges: NDArray[np.float32], norm_bytes: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Lowest norm and step of each level, (M + 1,) float32 each, from norm ranges (M + 1, 2)."""
    low, high = np.ascontiguousarray(ranges.T, np.float32)
    if norm_bytes == 0:  # leaves without norms add nothing
        return np.zeros_like(low), np.zeros_like(low)
    return low, (high - low) / np.float32((1 << (8 * min(norm_bytes, 2))) - 1)


def record_sizes(layout: CodeLayout, norm_bytes: int, planes: bool = False) -> NDArray[np.int64]:
    """Bytes of a leaf record of levels 0..M, (M + 1,) int64; in planes all leaves have the same."""
    if planes:
        return np.full(layout.levels + 1, plane_count(layout, norm_bytes), np.int64)
    suffixes = [layout.width - layout.prefix_bytes(level) for level in range(layout.levels + 1)]
    return np.array(suffixes, np.int64) + norm_bytes


def build_tree_partition(
    codes: NDArray[np.uint8],
    ids: NDArray[np.unsignedinteger],
    dictionaries: Dictionaries,
    params: TreeParams,
    norm_ranges: NDArray[np.float32],
    before: NDArray[np.int64] | None = None,
    after: NDArray[np.int64] | None = None,
) -> TreePartition:
    """Build the partition of the tree for a range of the (code, id) order.

    codes, ids : (r, width) uint8 and (r,) uint32 or uint64, sorted by (code, id)
    norm_ranges : (M + 1, 2) float32, lowest and highest (leaf norm - node norm) of each level
    before, after : (M + 1,) int64, rows of earlier (later) partitions that share the first 0..M labels of the
        first (last) code; omitted if there are none. With them the partitions of any cut into ranges
        join to the same bytes.
    """
    check_rows(codes, ids)
    layout = dictionaries.layout
    if codes.shape[1] != layout.width:
        raise ValueError(f"codes of {codes.shape[1]} bytes: expected {layout.width} for words {layout.words}")
    levels = layout.levels
    if norm_ranges.shape != (levels + 1, 2):
        raise ValueError(f"norm ranges of shape {norm_ranges.shape}: expected ({levels + 1}, 2)")
    before = _neighbours(before, levels)
    after = _neighbours(after, levels)
    codes = np.ascontiguousarray(codes)
    common = np.empty(len(codes), np.int8)
    bad = common_labels(codes, ids, np.asarray(layout.words, np.int64), int(layout.wide), common)
    if bad >= 0:
        raise ValueError(
            f"row {bad} of the sorted codes is out of order or has a label outside its dictionary"
        )
    if len(common):
        common[0] = np.count_nonzero(before) - 1  # counts fall: this is the last level above zero
    hang = np.empty(len(codes), np.int8)
    bucket = NO_BUCKET if params.planes else params.bucket
    hang_levels(common, before, after, bucket, params.direct_leaves, np.empty(len(codes), np.bool_), hang)
    rows = SortedRows(codes, ids, common, hang)
    partition = _empty_partition(rows, layout, params.norm_bytes)
    low, step = norm_steps(norm_ranges, params.norm_bytes)
    words = np.ascontiguousarray(dictionaries.words, np.float32)
    state = FillState(
        prefixes=np.zeros((levels + 1, dictionaries.dimension), np.float32),
        norms=np.zeros(levels + 1, np.float32),
        chosen=np.empty(levels, np.int64),
        sums=np.empty(SUMS, np.float32),
        next_node=np.zeros(levels + 2, np.int64),
        next_leaf=np.zeros(levels + 1, np.int64),
    )
    known = Words(words, dictionaries.starts, int(layout.wide), params.norm_bytes, low, step)
    fill_partition(rows, known, state, partition)
    return partition


def _neighbours(counts: NDArray[np.int64] | None, levels: int) -> NDArray[np.int64]:
    if counts is None:
        return np.zeros(levels + 1, np.int64)
    counts = np.ascontiguousarray(counts, np.int64)
    if counts.shape != (levels + 1,) or (np.diff(counts) > 0).any() or counts[-1] < 0:
        raise ValueError(f"rows shared with other partitions {counts}: expected {levels + 1} falling counts")
    return counts


def _empty_partition(rows: SortedRows, layout: CodeLayout, norm_bytes: int) -> TreePartition:
    """Arrays of exactly the size the partition needs."""
    nodes, leaves = np.zeros((2, layout.levels + 1), np.int64)
    level_counts(rows.common, rows.hang, nodes, leaves)
    level_start, level_leaf = _starts(nodes), _starts(leaves)
    record_start = _starts(leaves * record_sizes(layout, norm_bytes))
    return TreePartition(
        labels=np.empty(level_start[-1], np.uint16),
        norms=np.empty(level_start[-1], np.float32),
        child_start=np.empty(level_start[-1], np.uint32),
        leaf_start=np.empty(level_start[-1], np.uint32),
        records=np.empty(record_start[-1], np.uint8),
        ids=np.empty(level_leaf[-1], rows.ids.dtype),
        level_start=level_start,
        level_leaf=level_leaf,
        record_start=record_start,
    )


def record_starts(
    leaves: NDArray[np.int64], layout: CodeLayout, norm_bytes: int, planes: bool
) -> NDArray[np.int64]:
    """First byte of the records of levels 0..M and their end, (M + 2,) int64, for leaves (M + 1,) a level."""
    if not planes:
        return _starts(leaves * record_sizes(layout, norm_bytes))
    starts = np.zeros(layout.levels + 2, np.int64)
    starts[2:] = plane_bytes(int(leaves.sum()), layout, norm_bytes)
    return starts


def _joined_records(
    slices: list[NDArray[np.uint8]], layout: CodeLayout, params: TreeParams
) -> NDArray[np.uint8]:
    records = np.concatenate(slices)
    if not params.planes:
        return records
    rows = records.reshape(-1, params.norm_bytes + layout.levels - 1)
    return np.concatenate((pack_planes(rows, params.norm_bytes), np.zeros(SPARE_BYTES, np.uint8)))


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


@dataclass(frozen=True, eq=False)
class TreeShape:
    """Positions of the levels in a joined tree, and of each partition's share of a level.

    level_start, level_leaf, record_start : (M + 2,) int64, as in `Tree`
    first_node : (partitions, M + 2) int64, number in the tree of the partition's first node of levels 0..M;
        column M + 1 is N. A partition's child_start of level m is shifted by column m + 1.
    first_leaf : (partitions, M + 1) int64, number in the tree of the partition's first leaf of levels 0..M.
        A partition's leaf_start of level m is shifted by column m.
    start_dtype, id_dtype : of child_start and leaf_start, and of ids
    """

    level_start: NDArray[np.int64]
    level_leaf: NDArray[np.int64]
    record_start: NDArray[np.int64]
    first_node: NDArray[np.int64]
    first_leaf: NDArray[np.int64]
    start_dtype: np.dtype[np.unsignedinteger]
    id_dtype: np.dtype[np.unsignedinteger]


def tree_shape(
    nodes: NDArray[np.int64],
    leaves: NDArray[np.int64],
    layout: CodeLayout,
    norm_bytes: int,
    planes: bool = False,
) -> TreeShape:
    """Lay out the tree whose partitions have `nodes` and `leaves`, (partitions, M + 1) int64 each."""
    level_start, level_leaf = _starts(nodes.sum(axis=0)), _starts(leaves.sum(axis=0))
    earlier_nodes, earlier_leaves = np.cumsum(nodes, axis=0) - nodes, np.cumsum(leaves, axis=0) - leaves
    ends = np.full((len(nodes), 1), level_start[-1])
    small = max(level_start[-1], level_leaf[-1]) < 2**32
    return TreeShape(
        level_start=level_start,
        level_leaf=level_leaf,
        record_start=record_starts(leaves.sum(axis=0), layout, norm_bytes, planes),
        first_node=np.hstack([earlier_nodes + level_start[:-1], ends]),
        first_leaf=earlier_leaves + level_leaf[:-1],
        start_dtype=np.dtype(np.uint32 if small else np.uint64),
        id_dtype=np.dtype(np.uint32 if level_leaf[-1] <= 2**32 else np.uint64),
    )


def join_partitions(
    partitions: Sequence[TreePartition],
    layout: CodeLayout,
    params: TreeParams,
    norm_ranges: NDArray[np.float32],
) -> Tree:
    """Join the partitions of consecutive ranges of the (code, id) order into one tree, in memory.

    The width of the ids is kept even if row numbers need less, because they may be the user's own.
    """
    shape = tree_shape(
        np.array([np.diff(partition.level_start) for partition in partitions]),
        np.array([np.diff(partition.level_leaf) for partition in partitions]),
        layout,
        params.norm_bytes,
        params.planes,
    )
    if shape.level_leaf[-1] == 0:
        raise ValueError("a tree of no rows: expected at least one code")
    low, step = norm_steps(norm_ranges, params.norm_bytes)
    pairs = [(number, level) for level in range(layout.levels + 1) for number in range(len(partitions))]

    def nodes(name: str, number: int, level: int) -> NDArray[np.generic]:
        start, stop = partitions[number].level_start[level : level + 2]
        values: NDArray[np.generic] = getattr(partitions[number], name)[start:stop]
        return values

    def joined(name: str, first: NDArray[np.int64], next_level: int, end: int) -> NDArray[np.unsignedinteger]:
        shifts = first.astype(np.uint64)
        shifted = [nodes(name, p, m) + shifts[p, m + next_level] for p, m in pairs]
        return np.concatenate([*shifted, [end]]).astype(shape.start_dtype)

    labels = np.concatenate([nodes("labels", *pair) for pair in pairs])
    leaf_slices = [(partitions[p], slice(*partitions[p].level_leaf[m : m + 2])) for p, m in pairs]
    record_slices = [(partitions[p], slice(*partitions[p].record_start[m : m + 2])) for p, m in pairs]
    ids = np.concatenate([partition.ids[where] for partition, where in leaf_slices])
    return Tree(
        first_labels=labels[shape.level_start[1] : shape.level_start[2]].astype(np.uint16),
        labels=(labels & 0xFF).astype(np.uint8),
        norms=np.concatenate([nodes("norms", *pair) for pair in pairs]).astype(np.float32),
        child_start=joined("child_start", shape.first_node, 1, shape.level_start[-1]),
        leaf_start=joined("leaf_start", shape.first_leaf, 0, shape.level_leaf[-1]),
        records=_joined_records(
            [partition.records[where] for partition, where in record_slices], layout, params
        ),
        ids=ids.astype(shape.id_dtype) if ids.max() < 2**32 else ids,
        level_start=shape.level_start,
        level_leaf=shape.level_leaf,
        record_start=shape.record_start,
        norm_low=low,
        norm_step=step,
    )


def build_tree(
    codes: NDArray[np.uint8],
    ids: NDArray[np.unsignedinteger],
    dictionaries: Dictionaries,
    params: TreeParams,
    norm_ranges: NDArray[np.float32],
) -> Tree:
    """Build a tree in memory from codes (n, width) uint8 and ids (n,) in any order."""
    partition = build_tree_partition(*sort_codes(codes, ids), dictionaries, params, norm_ranges)
    return join_partitions([partition], dictionaries.layout, params, norm_ranges)


def check_tree(tree: Tree, layout: CodeLayout, planes: bool = False) -> int:
    """Check that the arrays have the lengths their levels need; return the bytes of a leaf's norm.

    planes : whether leaves are stored in planes.

    The offsets of the nodes are not checked: search stays inside the arrays whatever they hold.
    """
    levels = layout.levels
    for name in ("level_start", "level_leaf", "record_start"):
        starts = getattr(tree, name)
        if starts.shape != (levels + 2,) or starts[0] != 0 or (np.diff(starts) < 0).any():
            raise ValueError(f"{name} {starts}: expected {levels + 2} rising offsets from 0")
    nodes, leaves, size = int(tree.level_start[-1]), int(tree.level_leaf[-1]), int(tree.record_start[-1])
    expected = {
        "first_labels": int(tree.level_start[2] - tree.level_start[1]),
        "labels": nodes,
        "norms": nodes,
        "child_start": nodes + 1,
        "leaf_start": nodes + 1,
        "records": size,
        "ids": leaves,
        "norm_low": levels + 1,
        "norm_step": levels + 1,
    }
    for name, length in expected.items():
        if getattr(tree, name).shape != (length,):
            raise ValueError(f"{name} of shape {getattr(tree, name).shape}: expected ({length},)")
    if tree.level_start[1] != 1 or tree.level_leaf[1] != 0 or leaves < 1:
        raise ValueError("expected one root without leaves of its own, and at least one leaf")
    if int(tree.first_labels.max(initial=0)) >= layout.words[0]:
        raise ValueError(f"first_labels up to {tree.first_labels.max()}: expected below {layout.words[0]}")
    if planes and (not allows_planes(layout) or tree.level_leaf[2] != leaves):
        raise ValueError("leaves in planes: expected dictionaries of 16 words, and all leaves in level 1")
    counts = np.diff(tree.level_leaf)
    for norm_bytes in (0, 1) if planes else (1, 2, 4):
        if (tree.record_start == record_starts(counts, layout, norm_bytes, planes)).all():
            return norm_bytes
    raise ValueError(f"{size} bytes of records do not fit {leaves} leaves of {layout.width}-byte codes")
