"""Rows stored one after the other behind a header: big-ann files and .npy files."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.byte_reader import ByteReader
from aggtree.storage.errors import SourceError
from aggtree.storage.sources.base import MappedVectors, VectorSource, convert, map_rows, served_dtype

# Values that must be converted pass through a buffer of this size.
PIECE_BYTES = 1024 * 1024


class FlatRows(VectorSource):
    """A matrix at `offset`, row after row, or (`columns`) column after column as Fortran writes it."""

    def __init__(
        self,
        reader: ByteReader,
        *,
        offset: int,
        rows: int,
        dimension: int,
        stored: np.dtype[Any],
        columns: bool = False,
    ) -> None:
        self.spec = reader.name
        self.rows = rows
        self.dimension = dimension
        self.dtype = served_dtype(reader.name, stored)
        self._reader = reader
        self._offset = offset
        self._stored = stored
        self._columns = columns

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        out = np.empty((stop - start, self.dimension), self.dtype)
        if self._columns:
            self._read_columns(start, out)
        elif self._stored == self.dtype:
            self._reader.read_into(self._offset + start * out.itemsize * self.dimension, out)
        else:
            self._read_converted(start, out)
        return out

    def _read_converted(self, start: int, out: NDArray[Any]) -> None:
        row_bytes = self.dimension * self._stored.itemsize
        step = max(1, PIECE_BYTES // row_bytes)
        buffer = np.empty((min(step, len(out)), self.dimension), self._stored)
        for low in range(0, len(out), step):
            piece = buffer[: len(out) - low]
            self._reader.read_into(self._offset + (start + low) * row_bytes, piece)
            convert(piece, out[low : low + step])

    def _read_columns(self, start: int, out: NDArray[Any]) -> None:
        buffer = np.empty(len(out), self._stored)
        for column in range(self.dimension):
            self._reader.read_into(
                self._offset + (column * self.rows + start) * self._stored.itemsize, buffer
            )
            convert(buffer, out[:, column])

    def mapped(self) -> MappedVectors | None:
        if self._columns:
            return None
        row_bytes = self.dimension * self._stored.itemsize
        return map_rows(self._reader, self, self._stored, offset=self._offset, row_bytes=row_bytes)

    def read_integers(self) -> NDArray[np.int64]:
        """The whole matrix as int64, for ids: never through float32, which is exact only below 2**24."""
        if self._stored.kind not in "iu":
            raise SourceError(f"{self.spec}: holds {self._stored.name}, ids must be integers: convert it")
        shape = (self.dimension, self.rows) if self._columns else (self.rows, self.dimension)
        values = self._reader.read_array(self._offset, shape, self._stored)
        return np.ascontiguousarray(values.T if self._columns else values, dtype=np.int64)

    def close(self) -> None:
        self._reader.close()
