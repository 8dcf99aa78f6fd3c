"""A source whose rows are scaled to length 1 as they are read, for cosine: `unit:SPEC`.

Rows are scaled a piece at a time, so memory beyond the result is one piece of the inner source.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.exact.unit_kernels import scale_to_unit
from aggtree.engine.params import Metric
from aggtree.storage.sources.base import VectorSource, open_source

SCHEME = "unit:"
PIECE_BYTES = 1 << 20


class UnitRows(VectorSource):
    """The rows of another source, each divided by its length; zero rows become NaN, which builds refuse."""

    def __init__(self, inner: VectorSource) -> None:
        self.inner = inner
        self.spec = SCHEME + inner.spec
        self.rows, self.dimension = inner.rows, inner.dimension
        self.dtype = np.dtype(np.float32)
        self.chunk_rows = int(getattr(inner, "chunk_rows", 0))

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        out = np.empty((stop - start, self.dimension), np.float32)
        step = max(1, PIECE_BYTES // (self.dimension * self.inner.dtype.itemsize))
        for low in range(start, stop, step):
            high = min(low + step, stop)
            scale_to_unit(self.inner.read(low, high), out[low - start : high - start])
        return out

    def take(self, rows: ArrayLike) -> NDArray[Any]:
        """The given rows, scaled."""
        found = self.inner.take(rows)
        out = np.empty(found.shape, np.float32)
        scale_to_unit(found, out)
        return out

    def fingerprint(self) -> dict[str, int | str]:
        """That of the inner source, but for the type: scaling may differ in the last bit between machines."""
        return self.inner.fingerprint() | {"dtype": self.dtype.name}

    def close(self) -> None:
        self.inner.close()


def open_vectors(location: str, _name: str) -> UnitRows:
    """Open `unit:SPEC`."""
    return UnitRows(open_source(location.removeprefix(SCHEME)))


def metric_source(source: VectorSource, metric: Metric) -> VectorSource:
    """The rows that a tree of this metric is built from."""
    return UnitRows(source) if metric == "cosine" and not isinstance(source, UnitRows) else source


def plain_source(source: VectorSource) -> VectorSource:
    """The unscaled rows of the user."""
    return source.inner if isinstance(source, UnitRows) else source
