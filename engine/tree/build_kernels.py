"""Kernels that turn sorted codes into the nodes and leaves of one partition of an A-Tree.

Two bytes per row decide everything: `common`, the labels a row shares with the row before it, and
`hang`, the level of the node the row hangs from as a leaf. The nodes that start at a row are those
of the levels common + 1 .. hang, so one pass over the rows writes every level in order.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.simd.compiled import kernel
from aggtree.engine.simd.instructions.vectors import add_squares

SUMS = 8


class SortedRows(NamedTuple):
    """Rows of one partition, sorted by (code, id).

    codes : (r, width) uint8
    ids : (r,) uint32 or uint64
    common : (r,) int8, labels shared with the row before; for row 0, with the partition before (-1: none)
    hang : (r,) int8, level of the node the row is a leaf of
    """

    codes: NDArray[np.uint8]
    ids: NDArray[np.unsignedinteger]
    common: NDArray[np.int8]
    hang: NDArray[np.int8]


class Words(NamedTuple):
    """The words of reconstructions, and the quantization of their norms.

    words : (ΣK, d) float32, starts : (M + 1,) int64, first word of each dictionary
    wide : bytes of a first label less one
    norm_bytes, norm_low, norm_step : how a leaf's norm is stored, (M + 1,) float32 per level
    """

    words: NDArray[np.float32]
    starts: NDArray[np.int64]
    wide: int
    norm_bytes: int
    norm_low: NDArray[np.float32]
    norm_step: NDArray[np.float32]


class TreePartition(NamedTuple):
    """The nodes and leaves of one range of the (code, id) order, level after level.

    labels : (N,) uint16, norms : (N,) float32, of the nodes whose first row lies in the partition
    child_start : (N,) uint32, number of the first child among the partition's nodes of the next level
    leaf_start : (N,) uint32, number of the first leaf among the partition's leaves of the same level
    records : (B,) uint8, ids : (n,) uint32 or uint64
    level_start, level_leaf, record_start : (M + 2,) int64, first node, leaf and record byte of each level
    """

    labels: NDArray[np.uint16]
    norms: NDArray[np.float32]
    child_start: NDArray[np.uint32]
    leaf_start: NDArray[np.uint32]
    records: NDArray[np.uint8]
    ids: NDArray[np.unsignedinteger]
    level_start: NDArray[np.int64]
    level_leaf: NDArray[np.int64]
    record_start: NDArray[np.int64]


class FillState(NamedTuple):
    """The state of `fill_partition` at a row.

    prefixes : (M + 1, d) float32, norms : (M + 1,) float32, the reconstruction of the row's first 0..M labels
        and its squared norm; prefixes[0] is zero
    chosen : (M,) int64, the row's words; sums : (8,) float32
    next_node : (M + 2,) int64, next_leaf : (M + 1,) int64, of each level, from zero
    """

    prefixes: NDArray[np.float32]
    norms: NDArray[np.float32]
    chosen: NDArray[np.int64]
    sums: NDArray[np.float32]
    next_node: NDArray[np.int64]
    next_leaf: NDArray[np.int64]


@kernel
def common_labels(
    codes: NDArray[np.uint8],
    ids: NDArray[np.unsignedinteger],
    sizes: NDArray[np.int64],
    wide: int,
    common: NDArray[np.int8],
) -> int:
    """Set common[i] to the labels row i shares with row i - 1, for i >= 1.

    Returns the first row that is out of order or has a label outside its dictionary (sizes), or -1.
    """
    rows, width = codes.shape
    for i in range(rows):
        same = 0
        if i > 0:
            while same < width and codes[i, same] == codes[i - 1, same]:
                same += 1
            if same == width:
                if ids[i] < ids[i - 1]:
                    return i
            elif codes[i, same] < codes[i - 1, same]:
                return i
            common[i] = max(0, same - wide)
        for level in range(max(0, same - wide), len(sizes)):
            label = np.int64(codes[i, level + wide])
            if wide and level == 0:
                label |= np.int64(codes[i, 0]) << 8
            if label >= sizes[level]:
                return i
    return -1


@kernel
def hang_levels(
    common: NDArray[np.int8],
    before: NDArray[np.int64],
    after: NDArray[np.int64],
    bucket: int,
    direct_leaves: int,
    splits: NDArray[np.bool_],
    hang: NDArray[np.int8],
) -> None:
    """Set hang[i] to the level of the node row i hangs from.

    The root is split; a node of more than `bucket` rows is split; a group of at most `direct_leaves` rows of
    a split node of level >= 1 stays with that node. before and after (M + 1,) count the rows of other
    partitions that share the first labels of the first and last row. splits (r,) is scratch.
    """
    rows = len(common)
    levels = len(before) - 1
    hang[:] = 0
    splits[:] = True
    for level in range(1, levels + 1):
        start = 0
        while start < rows:
            stop = start + 1
            while stop < rows and common[stop] >= level:
                stop += 1
            # Rows of one group hang from one node so far, so the first speaks for all.
            if splits[start]:
                count = stop - start
                if start == 0:
                    count += before[level]
                if stop == rows:
                    count += after[level]
                node = level == 1 or count > direct_leaves
                split = node and count > bucket and level < levels
                for i in range(start, stop):
                    if node:
                        hang[i] = level
                    splits[i] = split
            start = stop


@kernel
def level_counts(
    common: NDArray[np.int8],
    hang: NDArray[np.int8],
    nodes: NDArray[np.int64],
    leaves: NDArray[np.int64],
) -> None:
    """Count the nodes that start in the partition and its leaves, (M + 1,) int64 each, starting at zero."""
    for i in range(len(common)):
        leaves[hang[i]] += 1
        for level in range(common[i] + 1, hang[i] + 1):
            nodes[level] += 1


@kernel
def _squared_norm(vector: NDArray[np.float32]) -> Any:
    """Sum of squares in eight interleaved sums, so that the compiler can use vector registers."""
    a = b = c = d = e = f = g = h = np.float32(0)
    whole = len(vector) // SUMS * SUMS
    for j in range(0, whole, SUMS):
        a += vector[j] * vector[j]
        b += vector[j + 1] * vector[j + 1]
        c += vector[j + 2] * vector[j + 2]
        d += vector[j + 3] * vector[j + 3]
        e += vector[j + 4] * vector[j + 4]
        f += vector[j + 5] * vector[j + 5]
        g += vector[j + 6] * vector[j + 6]
        h += vector[j + 7] * vector[j + 7]
    for j in range(whole, len(vector)):
        a += vector[j] * vector[j]
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@kernel
def _label(codes: NDArray[np.uint8], row: int, level: int, wide: int) -> Any:
    """Label of a row in the dictionary of `level`, from 1."""
    label = np.int64(codes[row, level - 1 + wide])
    if level == 1 and wide:
        label |= np.int64(codes[row, 0]) << 8
    return label


@kernel
def _write_norm(
    records: NDArray[np.uint8], place: int, norm: float, delta: float, level: int, words: Words
) -> None:
    """Write a leaf's norm, little endian: exact (4 bytes), or its step over the node's norm (1 or 2)."""
    if words.norm_bytes == 4:
        bits = np.float32(norm).view(np.uint32)
    else:
        last = (1 << (8 * words.norm_bytes)) - 1
        step = words.norm_step[level]
        bits = np.uint32(0)
        if step > 0:
            number = np.floor((np.float32(delta) - words.norm_low[level]) / step + np.float32(0.5))
            bits = np.uint32(min(max(number, np.float32(0)), np.float32(last)))
    for j in range(words.norm_bytes):
        records[place + j] = (bits >> np.uint32(8 * j)) & np.uint32(255)


@kernel
def _norm_of_sum(
    start: NDArray[np.float32], words: Words, rows: NDArray[np.int64], first: int, sums: Any
) -> Any:
    """Squared norm of start + words[rows[first]] + ... + words[rows[-1]], in the order of `_squared_norm`."""
    add_squares(start, words.words, rows, first, len(rows), sums)
    a = sums[0]
    for j in range(len(start) // SUMS * SUMS, len(start)):
        value = start[j]
        for row in rows[first:]:
            value += words.words[row, j]
        a += value * value
    return ((a + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]))


@kernel
def _write_leaf(
    rows: SortedRows, words: Words, i: int, norm: Any, base: Any, leaf: Any, partition: TreePartition
) -> None:
    """Write row i as leaf number `leaf` of its level, below a node of norm `base`."""
    hang, width = rows.hang[i], rows.codes.shape[1]
    prefix_bytes = hang + words.wide
    place = partition.record_start[hang] + leaf * (words.norm_bytes + width - prefix_bytes)
    _write_norm(partition.records, place, norm, norm - base, hang, words)
    for j in range(prefix_bytes, width):
        partition.records[place + words.norm_bytes + j - prefix_bytes] = rows.codes[i, j]
    partition.ids[partition.level_leaf[hang] + leaf] = rows.ids[i]


@kernel
def fill_partition(rows: SortedRows, words: Words, state: FillState, partition: TreePartition) -> None:
    """Write every node and leaf of the partition in one pass.

    Only what follows the labels shared with the row before is computed again, and only what a node or the
    next row needs is stored; always by the same additions, so a norm does not depend on the rows around it.
    """
    prefixes, norms, chosen = state.prefixes, state.norms, state.chosen
    next_node, next_leaf = state.next_node, state.next_leaf
    codes, wide, levels = rows.codes, words.wide, len(prefixes) - 1
    for i in range(len(rows.ids)):
        hang = rows.hang[i]
        known = rows.common[i] if i > 0 else 0
        kept = max(known, hang, rows.common[i + 1] if i + 1 < len(rows.ids) else 0)
        for level in range(known + 1, levels + 1):
            chosen[level - 1] = words.starts[level - 1] + _label(codes, i, level, wide)
        for level in range(known + 1, kept + 1):
            word = words.words[chosen[level - 1]]
            before, prefix = prefixes[level - 1], prefixes[level]
            for j in range(len(prefix)):
                prefix[j] = before[j] + word[j]
            if level <= hang or level == levels:
                norms[level] = _squared_norm(prefix)
        if kept < levels:
            norms[levels] = _norm_of_sum(prefixes[kept], words, chosen, kept, state.sums)
        for level in range(rows.common[i] + 1, hang + 1):
            node = partition.level_start[level] + next_node[level]
            partition.labels[node] = _label(codes, i, level, wide) if level > 0 else 0
            partition.norms[node] = norms[level]
            partition.child_start[node] = next_node[level + 1]
            partition.leaf_start[node] = next_leaf[level]
            next_node[level] += 1
        _write_leaf(rows, words, i, norms[levels], norms[hang], next_leaf[hang], partition)
        next_leaf[hang] += 1
