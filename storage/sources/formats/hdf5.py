"""HDF5 files as ann-benchmarks writes them: data sets `train`, `test`, `neighbors`. Needs h5py.

`file.hdf5` is its data set `train`; `file.hdf5::test` another one.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.byte_reader import check_local_file, reason
from aggtree.storage.errors import SourceError
from aggtree.storage.sources.formats.chunked_rows import ChunkedRows

# Contiguous data sets are read in pieces of this many bytes.
PIECE_BYTES = 1024 * 1024


class Hdf5Source(ChunkedRows):
    """A two-dimensional data set; h5py lets one thread read at a time."""

    def __init__(self, location: str, name: str) -> None:
        spec = f"{location}::{name}"
        self._file, self._values = open_data_set(location, name)
        shape = tuple(self._values.shape or ())
        row_bytes = max(1, int(np.prod(shape[1:], dtype=object)) * self._values.dtype.itemsize)
        chunk = self._values.chunks[0] if self._values.chunks else max(1, PIECE_BYTES // row_bytes)
        try:
            super().__init__(spec, shape, self._values.dtype, chunk)
        except SourceError:
            self.close()
            raise

    def _decode(self, start: int, stop: int) -> NDArray[Any]:
        return np.asarray(self._values[start:stop])

    def close(self) -> None:
        self._file.close()


def open_data_set(location: str, name: str) -> tuple[Any, Any]:
    """The open file and its data set `name`."""
    try:
        import h5py
    except ImportError as error:
        raise SourceError(f"{location}: HDF5 files need h5py: pip install 'aggtree[hdf5]'") from error
    check_local_file(location, "HDF5")
    try:
        file = h5py.File(location, "r")
    except Exception as error:  # h5py turns errors of the C library into several types
        raise SourceError(f"{location}: cannot be opened as HDF5: {reason(error)}: copy it again") from error
    try:
        values = file.get(name)
        if not isinstance(values, h5py.Dataset):
            raise SourceError(
                f"{location}: no data set {name!r}, choose with ::NAME among {sorted(file.keys())}"
            )
    except Exception as error:
        file.close()
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{location}: data set {name!r} cannot be opened: {reason(error)}") from error
    return file, values


def open_vectors(location: str, name: str) -> Hdf5Source:
    """Open a data set as vectors."""
    return Hdf5Source(location, name or "train")


def read_ids(location: str, name: str) -> NDArray[np.int64]:
    """All ids of a data set of integers."""
    file, values = open_data_set(location, name or "neighbors")
    try:
        if values.ndim != 2 or values.dtype.kind not in "iu":
            raise SourceError(
                f"{location}: {values.name} holds {values.dtype} {values.shape}, expected integers (q, k)"
            )
        return np.asarray(values[:]).astype(np.int64)
    except OSError as error:
        raise SourceError(f"{location}: {values.name} cannot be read: {reason(error)}") from error
    finally:
        file.close()
