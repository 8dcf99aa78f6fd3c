"""Kernels of the checks that read a whole index."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.simd.compiled import kernel
from aggtree.engine.tree.layout import Tree


@kernel
def mark_ids(ids: NDArray[np.unsignedinteger], limit: int, seen: NDArray[np.uint8]) -> int:
    """Mark ids (n,) in the bits `seen`; return the place of the first too large or seen before, or -1.

    seen : (ceil(limit / 8),) uint8, changed up to that place
    """
    for place in range(len(ids)):
        number = np.uint64(ids[place])
        if number >= np.uint64(limit):
            return place
        bit = np.uint8(1) << np.uint8(number & np.uint64(7))
        byte = number >> np.uint64(3)
        if seen[byte] & bit:
            return place
        seen[byte] |= bit
    return -1


@kernel
def disordered_leaf(tree: Tree, level: int, first: int, stop: int, norm_bytes: int, size: int) -> int:
    """The first leaf out of place among those of the nodes first..stop of a level, or -1.

    Leaves of a node are in the order of (suffix, id), and none has the label of one of its children next.
    The offsets of the tree must have been checked.
    size : bytes of a record of the level
    """
    records, ids = tree.records, tree.ids
    suffix = size - norm_bytes
    start = tree.record_start[level] - tree.level_leaf[level] * size + norm_bytes
    for node in range(first, stop):
        child, last = np.int64(tree.child_start[node]), np.int64(tree.child_start[node + 1])
        begin = np.int64(tree.leaf_start[node])
        for leaf in range(begin, np.int64(tree.leaf_start[node + 1])):
            place = start + leaf * size
            if leaf > begin:
                j = 0
                while j < suffix and records[place + j] == records[place + j - size]:
                    j += 1
                if j == suffix:
                    if ids[leaf] < ids[leaf - 1]:
                        return leaf
                elif records[place + j] < records[place + j - size]:
                    return leaf
            while child < last and tree.labels[child] < records[place]:
                child += 1
            if child < last and tree.labels[child] == records[place]:
                return leaf
    return -1


@kernel
def _mixed(number: Any) -> Any:
    """A number whose bits all depend on all bits of `number`, one to one (the finalizer of MurmurHash3)."""
    number ^= number >> np.uint64(33)
    number *= np.uint64(0xFF51AFD7ED558CCD)
    number ^= number >> np.uint64(33)
    number *= np.uint64(0xC4CEB9FE1A85EC53)
    return number ^ (number >> np.uint64(33))


@kernel
def add_leaf_sums(
    tree: Tree,
    level: int,
    first: int,
    prefixes: NDArray[np.uint8],
    norm_bytes: int,
    size: int,
    shard_rows: int,
    sums: NDArray[np.uint64],
) -> None:
    """Add a hash of (id, code) of each leaf of some nodes of a level to the sum of the id's shard.

    prefixes : (nodes, bytes of a prefix) uint8, the first bytes of the codes below the nodes from `first` on
    sums : (shards,) uint64; ids outside all shards are skipped
    """
    suffix = size - norm_bytes
    start = tree.record_start[level] - tree.level_leaf[level] * size + norm_bytes
    for i in range(len(prefixes)):
        node = first + i
        for leaf in range(np.int64(tree.leaf_start[node]), np.int64(tree.leaf_start[node + 1])):
            shard = np.uint64(tree.ids[leaf]) // np.uint64(shard_rows)
            if shard >= np.uint64(len(sums)):
                continue
            place = start + leaf * size
            number = np.uint64(tree.ids[leaf])
            for j in range(prefixes.shape[1]):
                number = _mixed(number) + np.uint64(prefixes[i, j])
            for j in range(suffix):
                number = _mixed(number) + np.uint64(tree.records[place + j])
            sums[shard] += _mixed(number)


@kernel
def code_sum(codes: NDArray[np.uint8], first_id: int, seen: NDArray[np.uint8]) -> Any:
    """The sum of `add_leaf_sums` for codes (n, width) of the rows from `first_id` on, from the store.

    seen : a bit for each row; rows without it are skipped
    """
    total = np.uint64(0)
    for i in range(len(codes)):
        row = np.uint64(first_id + i)
        if not (seen[row >> np.uint64(3)] >> np.uint8(row & np.uint64(7))) & 1:
            continue
        number = row
        for j in range(codes.shape[1]):
            number = _mixed(number) + np.uint64(codes[i, j])
        total += _mixed(number)
    return total
