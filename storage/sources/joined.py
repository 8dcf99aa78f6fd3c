"""Several sources one after the other as one, `joined:SPEC,SPEC,...`, and a range of the rows of one.

A comma inside a spec is written %2C, and a percent sign %25.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.storage.errors import SourceError
from aggtree.storage.sources.base import MappedVectors, VectorSource, open_source

SCHEME = "joined:"


class JoinedSource(VectorSource):
    """The rows of the first source, then those of the second, and so on."""

    def __init__(self, parts: Sequence[VectorSource]) -> None:
        if not parts:
            raise SourceError(f"{SCHEME}: no sources: name them, separated by commas")
        self.parts = tuple(parts)
        self.spec = joined_spec([part.spec for part in parts])
        self.dimension = parts[0].dimension
        # Numbers of several kinds are served as floats.
        dtypes = {part.dtype for part in parts}
        self.dtype = parts[0].dtype if len(dtypes) == 1 else np.dtype(np.float32)
        for part in parts:
            if part.dimension != self.dimension:
                raise SourceError(
                    f"{part.spec}: rows of dimension {part.dimension}, but {parts[0].spec} has "
                    f"{self.dimension}: all parts must agree"
                )
        self.starts = [0, *accumulate(part.rows for part in parts)]
        self.rows = self.starts[-1]
        self.chunk_rows = max(int(getattr(part, "chunk_rows", 0)) for part in parts)

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        number = bisect_right(self.starts, start) - 1
        if stop <= self.starts[number + 1]:
            rows = self.parts[number].read(start - self.starts[number], stop - self.starts[number])
            return rows.astype(self.dtype, copy=False)
        out = np.empty((stop - start, self.dimension), self.dtype)
        row = start
        while row < stop:
            first, last = self.starts[number], self.starts[number + 1]
            end = min(stop, last)
            out[row - start : end - start] = self.parts[number].read(row - first, end - first)
            row, number = end, number + 1
        return out

    def close(self) -> None:
        for part in self.parts:
            part.close()


class RowRange(VectorSource):
    """Rows first..first + rows of another source, which it closes."""

    def __init__(self, inner: VectorSource, first: int, rows: int) -> None:
        self.inner, self.first, self.rows = inner, first, rows
        self.spec = f"{inner.spec}, rows {first} to {first + rows}"
        self.dimension, self.dtype = inner.dimension, inner.dtype

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        return self.inner.read(self.first + start, self.first + stop)

    def take(self, rows: ArrayLike) -> NDArray[Any]:
        """The given rows of the range."""
        return self.inner.take(np.asarray(rows) + self.first)

    def mapped(self) -> MappedVectors | None:
        whole = self.inner.mapped()
        if whole is None:
            return None
        flat = whole.vectors
        return whole._replace(
            vectors=flat._replace(first=flat.first + self.first * flat.step, rows=self.rows)
        )

    def close(self) -> None:
        self.inner.close()


def rows_of(source: VectorSource, first: int, rows: int) -> VectorSource:
    """Rows first..first + rows of a source: itself, one of those it was joined from, or a range of it."""
    if first == 0 and rows == source.rows:
        return source
    if isinstance(source, JoinedSource):
        for part, start in zip(source.parts, source.starts, strict=False):
            if (start, part.rows) == (first, rows):
                return part
    if first + rows > source.rows:
        raise SourceError(f"{source.spec}: {source.rows:,} rows, expected {first + rows:,} at least")
    return RowRange(source, first, rows)


def joined_spec(specs: Sequence[str]) -> str:
    """The spec of several sources one after the other."""
    return SCHEME + ",".join(spec.replace("%", "%25").replace(",", "%2C") for spec in specs)


def split_spec(spec: str) -> list[str]:
    """The specs of the sources that `joined_spec` joined."""
    parts = spec.removeprefix(SCHEME).split(",")
    return [part.replace("%2C", ",").replace("%25", "%") for part in parts]


def open_vectors(location: str, _name: str) -> JoinedSource:
    """Open `joined:SPEC,SPEC,...`."""
    specs = split_spec(location)
    parts: list[VectorSource] = []
    try:
        parts.extend(open_source(spec) for spec in specs if spec)
        return JoinedSource(parts)
    except SourceError:
        for part in parts:
            part.close()
        raise
