"""Sorted runs: the codes of a shard with their row numbers, in (code, id) order."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.array_file import ArrayFile, OpenArrays, read_exactly, write_arrays
from aggtree.storage.atomic import explained
from aggtree.storage.checksums import BlockChecksums
from aggtree.storage.errors import IndexFormatError

RUN_KIND = "run"
ID_DTYPES = ("<u4", "<u8")


@dataclass(frozen=True)
class Run(OpenArrays):
    """An open run: `codes` (r, width) uint8 and `ids` (r,), mapped for searching."""

    codes: NDArray[np.uint8]
    ids: NDArray[Any]
    file: ArrayFile

    @property
    def count(self) -> int:
        """Number of codes."""
        return len(self.codes)

    @property
    def places(self) -> tuple[int, int, int]:
        """First byte of the codes and of the ids in the file, and the bytes of an id; see `read_slice`."""
        return self.file.offset("codes"), self.file.offset("ids"), self.ids.dtype.itemsize


def write_run(path: Path, codes: NDArray[np.uint8], ids: NDArray[Any]) -> BlockChecksums:
    """Write codes (r, width) uint8 and ids (r,) uint32 or uint64, sorted by the caller."""
    if (
        codes.ndim != 2
        or codes.dtype != np.uint8
        or ids.dtype.str not in ID_DTYPES
        or ids.shape != codes.shape[:1]
    ):
        raise ValueError(f"run of codes {codes.dtype}{codes.shape} and ids {ids.dtype}{ids.shape}")
    return write_arrays(path, RUN_KIND, {"codes": codes, "ids": ids})


def open_run(path: Path) -> Run:
    """Open a run; IndexFormatError when its header or its size is wrong."""
    file = ArrayFile(path, RUN_KIND)
    codes, ids = file.array("codes"), file.array("ids")
    if codes.ndim != 2 or codes.dtype != np.uint8 or ids.dtype.str not in ID_DTYPES or len(ids) != len(codes):
        file.close()
        raise IndexFormatError(
            f"{path}: codes {codes.dtype}{codes.shape} and ids {ids.dtype}{ids.shape} are no run"
        )
    return Run(codes, ids, file)


def read_slice(
    path: Path, places: NDArray[np.int64], start: int, codes: NDArray[np.uint8], ids: NDArray[Any]
) -> None:
    """Fill codes (n, width) and ids (n,) with the rows from `start` on of a run whose `places` are known.

    For many short slices of many runs: the header is not parsed again, and nothing is mapped.
    """
    with explained(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        read_exactly(path, descriptor, codes, int(places[0]) + start * codes.shape[1])
        read_exactly(path, descriptor, ids, int(places[1]) + start * ids.itemsize)
    finally:
        os.close(descriptor)
