"""Sorted runs: the codes of a shard with their row numbers, in (code, id) order."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.array_file import ArrayFile, OpenArrays, write_arrays
from aggtree.storage.checksums import BlockChecksums
from aggtree.storage.errors import IndexFormatError

RUN_KIND = "run"
ID_DTYPES = ("<u4", "<u8")


@dataclass(frozen=True)
class Run(OpenArrays):
    """An open run. `codes` and `ids` are mapped, for searching; `read` copies a slice without mapping it."""

    codes: NDArray[np.uint8]
    ids: NDArray[Any]
    file: ArrayFile

    @property
    def count(self) -> int:
        """Number of codes."""
        return len(self.codes)

    def read(self, start: int, stop: int) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """Copies of codes (n, width) uint8 and ids (n,) of rows start..stop."""
        return self.file.read("codes", start, stop), self.file.read("ids", start, stop)


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
