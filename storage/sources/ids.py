"""Ids of the user's own, one for each row: a companion file of int64, read in blocks.

    .npy                 int64, shape (n,) or (n, 1), as numpy.save writes it
    .i64                 int64 after int64, little endian, no header
    x.hdf5::name         one-dimensional data set of int64
    x.parquet::name      column of int64 without missing values
    an int64 array

-1 is not a valid id: it stands for "no answer".
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.byte_reader import ByteReader, open_bytes
from aggtree.storage.checksums import crc32c
from aggtree.storage.errors import SourceError
from aggtree.storage.sources.base import absolute, split_name, suffix_of
from aggtree.storage.sources.formats.npy import npy_layout

BLOCK_ROWS = 1 << 19
STORED = np.dtype("<i8")

Ids = str | os.PathLike[str] | NDArray[np.int64]
"""Ids of all rows: a file, or an array (rows,)."""


class IdSource(ABC):
    """Ids by row."""

    spec: str
    rows: int

    @abstractmethod
    def blocks(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """All ids in order: first row, and the ids from there on, at least one."""

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ids of the given rows, in their shape; -1 stays -1. All ids are read once, in order."""
        out = np.full(rows.shape, -1, np.int64)
        for start, ids in self.blocks():
            inside = (rows >= start) & (rows < start + len(ids))
            out[inside] = ids[rows[inside] - start]
        return out

    def fingerprint(self) -> dict[str, int | str]:
        """Identifies these ids: a checksum of all of them."""
        checksum = 0
        for _, ids in self.blocks():
            checksum = crc32c(ids.astype(STORED, copy=False), checksum)
        return {"ids": self.rows, "ids_crc32c": f"{checksum:08x}"}

    def close(self) -> None:  # noqa: B027  (an array has nothing to close)
        """Close the file."""


class _FileIds(IdSource):
    """Consecutive int64 values behind a header."""

    def __init__(self, reader: ByteReader, offset: int, rows: int) -> None:
        self.spec, self.rows = reader.name, rows
        self._reader, self._offset = reader, offset

    def blocks(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        for start in range(0, self.rows, BLOCK_ROWS):
            count = min(BLOCK_ROWS, self.rows - start)
            yield start, self._reader.read_array(self._offset + 8 * start, (count,), STORED)

    def close(self) -> None:
        self._reader.close()


class _ArrayIds(IdSource):
    """An array or an array-like object; `file` is closed with it."""

    def __init__(self, spec: str, values: Any, file: Any = None) -> None:
        self.spec, self.rows = spec, len(values)
        self._values, self._file = values, file

    def blocks(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        for start in range(0, self.rows, BLOCK_ROWS):
            yield start, np.asarray(self._values[start : start + BLOCK_ROWS])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _ParquetIds(IdSource):
    """A column of a parquet file, a row group at a time."""

    def __init__(self, spec: str, file: Any, column: str) -> None:
        self.spec, self.rows = spec, file.metadata.num_rows
        self._file, self._column = file, column

    def blocks(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        start = 0
        for group in range(self._file.num_row_groups):
            column = self._file.read_row_group(group, columns=[self._column], use_threads=False).column(0)
            if column.null_count:
                raise SourceError(f"{self.spec}: ids are missing from row {start} on: fill them")
            if len(column):
                yield start, column.to_numpy()
            start += len(column)

    def close(self) -> None:
        self._file.close()


def open_ids(ids: Ids) -> IdSource:
    """Open a companion file or an array of ids; SourceError for anything but int64."""
    if isinstance(ids, np.ndarray):
        _check_kind("ids array", ids.dtype, ids.shape)
        return _ArrayIds("ids array", ids.reshape(-1))
    location, name = split_name(os.fspath(ids))
    location = absolute(location)
    suffix = suffix_of(location)
    if suffix in ("hdf5", "h5"):
        return _open_hdf5(location, name or "ids")
    if suffix == "parquet":
        return _open_parquet(location, name or "id")
    if suffix not in ("npy", "i64") or name:
        raise SourceError(f"{ids}: ids are read from .npy, .i64, .hdf5::NAME or .parquet::NAME")
    reader = open_bytes(location)
    try:
        if suffix == "npy":
            stored, shape, offset, _ = npy_layout(reader)
            _check_kind(location, stored, shape)
        else:
            offset, shape = 0, (reader.size // 8,)
        if reader.size != offset + 8 * shape[0]:
            raise SourceError(f"{location}: {reader.size} bytes are no {shape[0]} ids of 8: copy it again")
        return _FileIds(reader, offset, shape[0])
    except SourceError:
        reader.close()
        raise


def _check_kind(name: str, stored: np.dtype[Any], shape: tuple[int, ...]) -> None:
    if stored != STORED or not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)):
        raise SourceError(f"{name}: holds {stored} {shape}, expected int64 of shape (rows,): convert it")


def _open_hdf5(location: str, name: str) -> IdSource:
    from aggtree.storage.sources.formats.hdf5 import open_data_set

    file, values = open_data_set(location, name)
    try:
        if values.ndim != 1 or values.dtype != STORED:
            held = f"{values.dtype} {values.shape}"
            raise SourceError(f"{location}: {name} holds {held}, expected int64 of shape (rows,): convert it")
    except SourceError:
        file.close()
        raise
    return _ArrayIds(f"{location}::{name}", values, file)


def _open_parquet(location: str, name: str) -> IdSource:
    from aggtree.storage.sources.formats.parquet import open_file

    file = open_file(location)
    kinds = {field.name: str(field.type) for field in file.schema_arrow}
    if kinds.get(name) != "int64":
        file.close()
        known = [column for column, kind in kinds.items() if kind == "int64"]
        raise SourceError(f"{location}: no column {name!r} of int64, choose with ::NAME among {known}")
    return _ParquetIds(f"{location}::{name}", file, name)
