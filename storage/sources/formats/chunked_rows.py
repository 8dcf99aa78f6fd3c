"""Rows stored in chunks that can only be decoded whole: zarr, HDF5 and parquet."""

from abc import abstractmethod
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.byte_reader import reason
from aggtree.storage.errors import SourceError, UnreachableError
from aggtree.storage.remote_files import is_url
from aggtree.storage.sources.base import VectorSource, check_shape, served_dtype


class ChunkedRows(VectorSource):
    """A source that is read chunk by chunk, and whose scattered rows need each chunk once.

    Memory beyond the result: one decoded chunk, the smallest piece that can be read.
    """

    def __init__(self, spec: str, shape: tuple[int, ...], stored: np.dtype[Any], chunk_rows: int) -> None:
        self.spec = spec
        if len(shape) != 2:
            raise SourceError(f"{spec}: holds an array of shape {shape}, expected rows of vectors (n, d)")
        self.rows, self.dimension = (int(length) for length in shape)
        check_shape(spec, self.rows, self.dimension)
        self.dtype = served_dtype(spec, stored)
        self._chunk_rows = max(1, chunk_rows)

    @abstractmethod
    def _decode(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop of one chunk, in the stored dtype; may raise anything."""

    def _chunk_numbers(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The chunk in which each row lies."""
        return rows // self._chunk_rows

    def _chunk_edges(self, start: int, stop: int) -> list[int]:
        """`start`, the first row of each chunk between, and `stop`."""
        step = self._chunk_rows
        return [start, *range((start // step + 1) * step, stop, step), stop]

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        out = np.empty((stop - start, self.dimension), self.dtype)
        for low, high in pairwise(self._chunk_edges(start, stop)):
            try:
                values = self._decode(low, high)
            except SourceError:
                raise
            except Exception as error:  # codecs and file libraries have error types of their own
                kind = UnreachableError if is_url(self.spec) else SourceError
                raise kind(f"{self.spec}: rows {low} to {high} cannot be read: {reason(error)}") from error
            with np.errstate(over="ignore"):
                out[low - start : high - start] = values
        return out

    def _take_runs(self, ordered: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        changes = np.flatnonzero(np.diff(self._chunk_numbers(ordered))) + 1
        return pairwise([0, *changes.tolist(), len(ordered)] if len(ordered) else [])
