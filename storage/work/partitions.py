"""Partitions of a tree: the arrays of a `TreePartition` in one array file."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.tree.layout import TreePartition
from aggtree.storage.array_file import ArrayFile, OpenArrays, write_arrays
from aggtree.storage.checksums import BlockChecksums
from aggtree.storage.errors import IndexFormatError

PARTITION_KIND = "partition"
DTYPES = {
    "labels": ("<u2",),
    "norms": ("<f4",),
    "child_start": ("<u4",),
    "leaf_start": ("<u4",),
    "records": ("|u1",),
    "ids": ("<u4", "<u8"),
    "level_start": ("<i8",),
    "level_leaf": ("<i8",),
    "record_start": ("<i8",),
}


class PartitionFile(OpenArrays):
    """An open partition. `level_nodes` and `level_leaves` are (M + 1,) int64 counts of levels 0..M."""

    def __init__(self, path: Path) -> None:
        self.file = ArrayFile(path, PARTITION_KIND)
        try:
            _check(self.file)
            starts = {
                name: np.array(self.file.array(name))
                for name in ("level_start", "level_leaf", "record_start")
            }
        except BaseException:
            self.file.close()
            raise
        self.starts: dict[str, NDArray[np.int64]] = starts

    @property
    def level_nodes(self) -> NDArray[np.int64]:
        return np.diff(self.starts["level_start"])

    @property
    def level_leaves(self) -> NDArray[np.int64]:
        return np.diff(self.starts["level_leaf"])

    @property
    def id_dtype(self) -> np.dtype[Any]:
        return self.file.dtype("ids")

    def arrays(self) -> TreePartition:
        """The arrays, mapped read-only."""
        return TreePartition(**self.file.arrays())


def write_partition(path: Path, partition: TreePartition) -> BlockChecksums:
    """Write a partition of a tree."""
    return write_arrays(path, PARTITION_KIND, partition._asdict())


def open_partition(path: Path) -> PartitionFile:
    """Open a partition; IndexFormatError when its header, its size or its counts are wrong."""
    return PartitionFile(path)


def _check(file: ArrayFile) -> None:
    for name, dtypes in DTYPES.items():
        if file.dtype(name).str not in dtypes or len(file.shape(name)) != 1:
            raise IndexFormatError(f"{file.path}: array {name} is {file.dtype(name)}{file.shape(name)}")
    lengths = {"labels": "level_start", "norms": "level_start", "child_start": "level_start"}
    lengths |= {"leaf_start": "level_start", "ids": "level_leaf", "records": "record_start"}
    for name, starts_name in lengths.items():
        starts = file.array(starts_name)
        rising = len(starts) >= 3 and starts[0] == 0 and bool((np.diff(starts) >= 0).all())
        if not rising or file.shape(name) != (starts[-1],):
            raise IndexFormatError(f"{file.path}: {starts_name} does not fit array {name}")
