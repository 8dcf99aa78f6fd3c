"""Compare the tree with the code store: both must have the same code for each row.

Both sides are read once, in their own order, and a hash of (row, code) is added up for each shard. Equal
sums mean equal codes, but for one chance in 2⁶⁴; memory is a bit per row. The bytes and the structure must
have been checked.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.tree.check_kernels import add_leaf_sums, code_sum, mark_ids
from aggtree.engine.tree.layout import Tree
from aggtree.engine.tree.unpacked import node_blocks, unpacked
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.verify.norms import path_labels

BLOCK_NODES = 1 << 16

Advance = Callable[[int], None]
"""Called with the number of bytes compared."""


def rows_of_other_codes(
    tree: Tree, segment: SegmentManifest, codes: str | Path, advance: Advance
) -> list[tuple[int, int]]:
    """Ranges of rows, one per shard, in which the codes of tree and store differ."""
    store = CodeStore.open(codes)
    sums = _tree_sums(tree, segment, store, advance)
    seen = np.zeros(-(-segment.source_rows // 8), np.uint8)
    mark_ids(tree.ids, segment.source_rows, seen)
    different = []
    for shard in range(store.shards):
        start, stop = store.shard_range(shard)
        total = np.uint64(0)
        with np.errstate(over="ignore"):  # sums are modulo 2⁶⁴
            for first in range(start, stop, store.chunk_rows):
                last = min(first + store.chunk_rows, stop)
                total += np.uint64(code_sum(store.read(first, last), first, seen))
                advance((last - first) * store.width)
        if total != sums[shard]:
            different.append((start, stop))
    return different


def _tree_sums(
    tree: Tree, segment: SegmentManifest, store: CodeStore, advance: Advance
) -> NDArray[np.uint64]:
    """Sum of each shard, from the leaves of the tree, (shards,) uint64."""
    counts, layout = segment.counts, segment.layout
    sums = np.zeros(store.shards, np.uint64)
    for level in range(1, layout.levels + 1):
        first, stop = counts.level_start[level : level + 2]
        for start, end, read in _node_runs(tree, segment, first, stop):
            nodes = np.arange(start, end)
            labels = np.zeros((len(nodes), layout.levels), np.uint16)
            labels[:, :level] = np.stack(path_labels(tree, level, nodes), axis=1)
            prefixes = layout.pack(labels)[:, : layout.prefix_bytes(level)]
            size = counts.record_bytes(level)
            add_leaf_sums(
                read,
                level,
                start,
                np.ascontiguousarray(prefixes),
                segment.norm_bytes,
                size,
                store.shard_rows,
                sums,
            )
            advance(int(tree.leaf_start[nodes[-1] + 1] - tree.leaf_start[start]) * size)
    return sums


def _node_runs(
    tree: Tree, segment: SegmentManifest, first: int, stop: int
) -> Iterator[tuple[int, int, Tree]]:
    """Runs of the nodes first..stop of a level, with the tree whose records their leaves are read from."""
    if segment.planes:
        for start, end, leaf, last in node_blocks(tree, first, stop):
            yield start, end, unpacked(tree, leaf, last, segment.layout, segment.norm_bytes)
        return
    for start in range(first, stop, BLOCK_NODES):
        yield start, min(start + BLOCK_NODES, stop), tree
