"""From partitions to a committed index: copy the levels of all partitions one after another, add offsets.

A node that spans partitions is written by the partition that holds its first row, and ends where the next
node begins, so stitching is concatenation per level. Memory is one block, whatever the size.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.params import Metric
from aggtree.engine.simd.instructions.planes import BLOCK_LEAVES, SPARE_BYTES
from aggtree.engine.tree.layout import TreeShape, tree_shape
from aggtree.engine.tree.planes import pack_planes
from aggtree.storage.array_file import ArrayFile
from aggtree.storage.atomic import NewFile, explained, make_directory, replace_file
from aggtree.storage.checksums import BLOCK, BlockChecksums
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.dictionary_file import DICTIONARY_KIND, load_dictionaries
from aggtree.storage.index.file_record import FileRecord, RemoteCodes
from aggtree.storage.index.first_groups import write_first_groups
from aggtree.storage.index.format import DICTIONARIES, TREE, build_name
from aggtree.storage.index.manifest import IndexManifest, commit_manifest
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.work.partitions import PartitionFile, open_partition

ROWS = 1 << 20
"""Elements copied at a time."""


@dataclass(frozen=True, kw_only=True)
class StitchedTree:
    """The properties of the tree's files that the manifest records."""

    norm_bytes: int
    planes: bool
    level_nodes: tuple[int, ...]
    level_leaves: tuple[int, ...]
    files: tuple[FileRecord, ...]


def stitch_partitions(
    index: Path,
    build: str,
    partitions: Sequence[Path],
    layout: CodeLayout,
    *,
    norm_bytes: int,
    planes: bool = False,
    metric: Metric = "l2",
    progress: Callable[[int, int], None] | None = None,
) -> StitchedTree:
    """Write build-<id>/tree from the partitions of consecutive ranges of the (code, id) order.

    The checksums of the partitions are verified first. `progress` is called with the number of slices copied
    so far and the number of all slices; a slice is one level of one partition.
    """
    nodes, leaves, id_dtype = _count(partitions, layout)
    shape = tree_shape(nodes, leaves, layout, norm_bytes, planes)
    dtypes = _dtypes(shape, id_dtype)
    lengths = _lengths(shape)
    directory = index / build_name(build) / TREE
    make_directory(directory)
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(replace_file(directory / name, lengths[name] * dtypes[name].itemsize))
            for name in dtypes
        }
        blocks = PlaneBlocks(files["records"], norm_bytes + layout.levels - 1, norm_bytes) if planes else None
        slices = [(level, number) for level in range(layout.levels + 1) for number in range(len(partitions))]
        for done, (level, number) in enumerate(slices, start=1):
            offsets = {
                "child_start": int(shape.first_node[number, level + 1]),
                "leaf_start": int(shape.first_leaf[number, level]),
            }
            with open_partition(partitions[number]) as partition:
                _copy_level(partition, level, files, offsets, dtypes["child_start"], blocks)
            if progress:
                progress(done, len(slices))
        if blocks:
            blocks.end()
        files["child_start"].write(np.array([shape.level_start[-1]], dtypes["child_start"]))
        files["leaf_start"].write(np.array([shape.level_leaf[-1]], dtypes["leaf_start"]))
    records = tuple(
        FileRecord.of(f"{build_name(build)}/{TREE}/{name}", file.checksums, dtypes[name].str, lengths[name])
        for name, file in files.items()
    )
    by_angle = planes and metric == "cosine"
    records += write_first_groups(index, build, lengths["first_labels"], by_angle=by_angle)
    return StitchedTree(
        norm_bytes=norm_bytes,
        planes=planes,
        level_nodes=_counts(shape.level_start),
        level_leaves=_counts(shape.level_leaf),
        files=records,
    )


def file_record(index: Path, path: str) -> FileRecord:
    """The manifest entry of an existing file, computed from its bytes."""
    checksums = BlockChecksums()
    with explained(index / path), (index / path).open("rb") as file:
        while data := file.read(BLOCK):
            checksums.add(data)
    return FileRecord.of(path, checksums)


def commit_index(index: Path, build: str, **facts: Any) -> IndexManifest:
    """Commit a build as the only segment of the index; arguments as of `describe_build`."""
    manifest = IndexManifest(segments=(describe_build(index, build, **facts),))
    commit_manifest(index, manifest)
    return manifest


def describe_build(
    index: Path,
    build: str,
    *,
    tree: StitchedTree,
    codes: Iterable[FileRecord],
    source_rows: int,
    parameters: Mapping[str, Any],
    source: Mapping[str, Any],
    own_ids: FileRecord | None = None,
    remote_codes: RemoteCodes | None = None,
    vectors: str = "",
    vectors_seal: str = "",
    metric: Metric = "l2",
) -> SegmentManifest:
    """The segment of a build whose dictionaries, codes and tree are in place.

    codes : files of the code store inside the index; none if it has `remote_codes`.
    vectors : what opens the source again, or "". vectors_seal : that of the user who named it.
    own_ids : the file of own ids, if there is one.
    """
    path = f"{build_name(build)}/{DICTIONARIES}"
    with ArrayFile(index / path, DICTIONARY_KIND) as file:
        file.check()
    dictionaries, _ = load_dictionaries(index / path)
    return SegmentManifest(
        build=build,
        rows=sum(tree.level_leaves),
        source_rows=source_rows,
        own_ids=own_ids is not None,
        dimension=dictionaries.dimension,
        words=dictionaries.layout.words,
        norm_bytes=tree.norm_bytes,
        planes=tree.planes,
        transformed=not dictionaries.transform.plain,
        level_nodes=tree.level_nodes,
        level_leaves=tree.level_leaves,
        files=(file_record(index, path), *codes, *tree.files, *((own_ids,) if own_ids else ())),
        parameters=dict(parameters),
        source=dict(source),
        codes=remote_codes,
        vectors=vectors,
        vectors_seal=vectors_seal,
        metric=metric,
    )


def _count(
    partitions: Sequence[Path], layout: CodeLayout
) -> tuple[NDArray[np.int64], NDArray[np.int64], np.dtype[Any]]:
    """Nodes and leaves (partitions, M + 1) int64, and the dtype of the ids."""
    if not partitions:
        raise ValueError("a tree needs at least one partition")
    nodes, leaves = np.zeros((2, len(partitions), layout.levels + 1), np.int64)
    id_dtypes = set()
    for number, path in enumerate(partitions):
        with open_partition(path) as partition:
            partition.check()
            if len(partition.level_nodes) != layout.levels + 1:
                raise IndexFormatError(
                    f"{path}: {len(partition.level_nodes) - 1} levels, expected {layout.levels}"
                )
            nodes[number], leaves[number] = partition.level_nodes, partition.level_leaves
            id_dtypes.add(partition.id_dtype)
    if len(id_dtypes) > 1:
        raise IndexFormatError(f"{partitions[0].parent}: partitions with ids of {len(id_dtypes)} dtypes")
    return nodes, leaves, id_dtypes.pop()


def _dtypes(shape: TreeShape, id_dtype: np.dtype[Any]) -> dict[str, np.dtype[Any]]:
    start = shape.start_dtype.newbyteorder("<")
    return {
        "first_labels": np.dtype("<u2"),
        "labels": np.dtype("|u1"),
        "norms": np.dtype("<f4"),
        "child_start": start,
        "leaf_start": start,
        "records": np.dtype("|u1"),
        "ids": id_dtype,
    }


def _lengths(shape: TreeShape) -> dict[str, int]:
    nodes, leaves, size = (
        int(starts[-1]) for starts in (shape.level_start, shape.level_leaf, shape.record_start)
    )
    lengths = {"labels": nodes, "norms": nodes, "child_start": nodes + 1, "leaf_start": nodes + 1}
    return lengths | {"records": size, "ids": leaves, "first_labels": int(shape.level_start[2] - 1)}


def _copy_level(
    partition: PartitionFile,
    level: int,
    files: Mapping[str, NewFile],
    offsets: Mapping[str, int],
    start_dtype: np.dtype[Any],
    blocks: "PlaneBlocks | None",
) -> None:
    """Append one level of one partition to the tree's files; `offsets` are added to the start arrays.

    blocks : takes the records of leaves that are stored in planes.
    """
    for labels in _slices(partition, "labels", "level_start", level):
        files["labels"].write((labels & 0xFF).astype(np.uint8))
        if level == 1:
            files["first_labels"].write(labels)
    for name, starts in (("norms", "level_start"), ("records", "record_start"), ("ids", "level_leaf")):
        for block in _slices(partition, name, starts, level):
            if blocks and name == "records":
                blocks.add(block)
            else:
                files[name].write(block)
    for name, offset in offsets.items():
        for block in _slices(partition, name, "level_start", level):
            files[name].write(shifted(block, offset, start_dtype))


class PlaneBlocks:
    """Writes the records of leaves, as they come from partitions, in blocks of planes.

    Leaves that do not fill a block are kept for the next, so blocks do not depend on the partitions.
    """

    def __init__(self, file: NewFile, size: int, norm_bytes: int) -> None:
        self._file, self._size, self._norm_bytes = file, size, norm_bytes
        self._waiting = np.empty(0, np.uint8)

    def add(self, records: NDArray[np.uint8]) -> None:
        """Write all full blocks; `records` may end inside a leaf."""
        records = np.concatenate((self._waiting, records))
        whole = len(records) // (BLOCK_LEAVES * self._size) * BLOCK_LEAVES * self._size
        self._write(records[:whole])
        self._waiting = records[whole:]

    def end(self) -> None:
        """Write the remaining leaves, and the padding that may be read behind them."""
        self._write(self._waiting)
        self._file.write(np.zeros(SPARE_BYTES, np.uint8))

    def _write(self, records: NDArray[np.uint8]) -> None:
        if len(records):
            self._file.write(pack_planes(records.reshape(-1, self._size), self._norm_bytes))


def shifted(starts: NDArray[np.uint32], offset: int, dtype: np.dtype[Any]) -> NDArray[np.unsignedinteger]:
    """Starts local to a partition as starts in the whole tree; 64 bits wide if necessary."""
    return (starts.astype(np.uint64) + np.uint64(offset)).astype(dtype)


def _slices(partition: PartitionFile, name: str, starts: str, level: int) -> Iterator[NDArray[Any]]:
    """One level of an array in blocks."""
    start, stop = (int(value) for value in partition.starts[starts][level : level + 2])
    for first in range(start, stop, ROWS):
        yield partition.file.read(name, first, min(first + ROWS, stop))


def _counts(starts: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(int(count) for count in np.diff(starts))
