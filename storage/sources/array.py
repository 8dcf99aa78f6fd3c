"""A numpy array or memory map of this process as a source; other processes cannot open it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.exact.neighbours_kernels import FlatVectors
from aggtree.storage.errors import SourceError
from aggtree.storage.sources.base import (
    MappedVectors,
    VectorSource,
    check_shape,
    comparable,
    convert,
    half_bits,
    served_dtype,
)


class ArraySource(VectorSource):
    """The rows of an array (n, d)."""

    def __init__(self, array: NDArray[Any]) -> None:
        if array.ndim != 2:
            raise SourceError(f"array of shape {array.shape}: expected (rows, dimension)")
        self.spec = f"array {array.shape[0]} x {array.shape[1]}"
        check_shape(self.spec, *array.shape)
        self.rows, self.dimension = array.shape
        self.dtype = served_dtype(self.spec, array.dtype)
        self._array = array

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        out = np.empty((stop - start, self.dimension), self.dtype)
        convert(self._array[start:stop], out)
        return out

    def mapped(self) -> MappedVectors | None:
        if not comparable(self._array.dtype, self.dtype) or not self._array.flags.c_contiguous:
            return None
        values = np.asarray(self._array).reshape(-1).view(half_bits(self._array.dtype))
        values.flags.writeable = False
        vectors = FlatVectors(values, 0, self.dimension, self.rows, self.dimension)
        return MappedVectors(vectors, None)
