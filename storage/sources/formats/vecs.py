"""fvecs, bvecs and ivecs: the formats of the TEXMEX sets (SIFT1M, GIST1M, BIGANN).

    | dimension int32 | value | value | ... |   one row, little endian; every row repeats the dimension

Every row that is read has its dimension checked, so a file with misaligned rows is detected at the first one.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.byte_reader import ByteReader, open_bytes
from aggtree.storage.errors import SourceError
from aggtree.storage.sources.base import (
    MAX_DIMENSION,
    MappedVectors,
    VectorSource,
    check_shape,
    map_rows,
    suffix_of,
)

HEADER = np.dtype("<i4")
STORED: dict[str, np.dtype[Any]] = {
    "fvecs": np.dtype("<f4"),
    "bvecs": np.dtype("u1"),
    "ivecs": np.dtype("<i4"),
}
SERVED: dict[str, np.dtype[Any]] = {
    "fvecs": np.dtype(np.float32),
    "bvecs": np.dtype(np.uint8),
    "ivecs": np.dtype(np.float32),
}

# Rows pass through a buffer of this size as they are copied out of the records.
PIECE_BYTES = 1024 * 1024


class VecsSource(VectorSource):
    """A vecs file, local or behind a URL."""

    def __init__(self, reader: ByteReader, suffix: str) -> None:
        self.spec = reader.name
        self._reader = reader
        self._stored = STORED[suffix]
        self.dtype = SERVED[suffix]
        self.dimension = int(reader.read_array(0, (1,), HEADER)[0])
        check_shape(self.spec, 1, self.dimension)
        self._record = HEADER.itemsize + self.dimension * self._stored.itemsize
        self.rows, rest = divmod(reader.size, self._record)
        if rest:
            raise SourceError(
                f"{self.spec}: {reader.size} bytes are no integer multiple of {self._record}-byte rows of "
                f"dimension {self.dimension}: it is cut off behind byte {reader.size - rest}, copy it again"
            )
        self.read_stored(self.rows - 1, self.rows, self._stored)

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        return self.read_stored(start, stop, self.dtype)

    def mapped(self) -> MappedVectors | None:
        return map_rows(self._reader, self, self._stored, offset=HEADER.itemsize, row_bytes=self._record)

    def read_stored(self, start: int, stop: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Rows start..stop converted to `dtype`."""
        out = np.empty((stop - start, self.dimension), dtype)
        step = max(1, PIECE_BYTES // self._record)
        buffer = np.empty((min(step, stop - start), self._record), np.uint8)
        for low in range(start, stop, step):
            records = buffer[: min(step, stop - low)]
            self._reader.read_into(low * self._record, records)
            self._check_dimensions(low, records[:, : HEADER.itemsize].view(HEADER)[:, 0])
            out[low - start : low - start + len(records)] = records[:, HEADER.itemsize :].view(self._stored)
        return out

    def _check_dimensions(self, first: int, dimensions: NDArray[np.int32]) -> None:
        wrong = np.flatnonzero(dimensions != self.dimension)
        if len(wrong):
            row = first + int(wrong[0])
            raise SourceError(
                f"{self.spec}: row {row} at byte {row * self._record} has dimension {dimensions[wrong[0]]}, "
                f"the rows before it have {self.dimension}: the file is damaged from there on, copy it again"
            )

    def close(self) -> None:
        self._reader.close()


def open_vectors(location: str, _name: str) -> VecsSource:
    """Open a .fvecs, .bvecs or .ivecs file as vectors."""
    reader = open_bytes(location)
    try:
        return VecsSource(reader, suffix_of(location))
    except SourceError:
        reader.close()
        raise


def read_ids(location: str, _name: str) -> NDArray[np.int64]:
    """All rows of an .ivecs file as integers."""
    with open_vectors(location, "") as source:
        return source.read_stored(0, source.rows, np.dtype(np.int64))


def write_vecs(vectors: NDArray[Any], suffix: str) -> bytes:
    """The bytes of a vecs file that holds `vectors` (n, d)."""
    rows, dimension = vectors.shape
    if not 1 <= dimension <= MAX_DIMENSION:
        raise ValueError(f"dimension {dimension}: expected 1 to {MAX_DIMENSION}")
    stored = STORED[suffix]
    records = np.empty((rows, HEADER.itemsize + dimension * stored.itemsize), np.uint8)
    records[:, : HEADER.itemsize] = np.array([dimension], HEADER).view(np.uint8)
    records[:, HEADER.itemsize :] = np.ascontiguousarray(vectors.astype(stored)).view(np.uint8)
    return records.tobytes()
