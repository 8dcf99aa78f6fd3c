"""Streams of rows from a source to the computation.

`as_dask_array` shows any source as a Dask array whose chunks are row ranges; `read_in_order` walks such an
array chunk by chunk, reading ahead in a thread so that reading and computing overlap. A numpy or Dask array
of the user is a source too.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.errors import SourceError
from aggtree.storage.sources.array import ArraySource
from aggtree.storage.sources.base import VectorSource, check_shape, open_source, served_dtype
from aggtree.storage.sources.joined import JoinedSource
from aggtree.storage.sources.unit_rows import plain_source

BATCH_ROWS = 100_000

VectorArray = NDArray[np.integer | np.floating]


class DaskArray(Protocol):
    """An array (rows, dimension) of Dask; only its chunks are used, so Dask need not be installed."""

    @property
    def dask(self) -> object:
        """The graph of its tasks."""

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Lengths of its chunks along each axis."""


OneSource = str | os.PathLike[str] | VectorSource | VectorArray | DaskArray
Source = OneSource | Sequence[OneSource]
"""Vectors: a path or name, an open source, an array, or a list of these whose rows follow one another."""


class DaskSource(VectorSource):
    """A Dask array of the user; rows are computed in this process when they are read, chunk by chunk."""

    def __init__(self, array: Any) -> None:
        if array.ndim != 2 or any(np.isnan(length) for length in array.shape):
            raise SourceError(f"Dask array of shape {array.shape}: expected known (rows, dimension)")
        self.spec = f"Dask array {array.shape[0]} x {array.shape[1]}"
        check_shape(self.spec, *array.shape)
        self.rows, self.dimension = (int(length) for length in array.shape)
        self.dtype = served_dtype(self.spec, array.dtype)
        self.chunk_rows = int(max(array.chunks[0]))
        self._array = array.rechunk({1: -1})

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        rows = self._array[start:stop].compute(scheduler="synchronous")
        return np.array(rows, self.dtype, order="C")


def as_source(source: Source) -> VectorSource:
    """A source from any argument of a user: a path or spec, a source, a numpy or Dask array, or a list."""
    if isinstance(source, VectorSource):
        return source
    if isinstance(source, (str, os.PathLike)):
        return open_source(source)
    if isinstance(source, np.ndarray):
        return ArraySource(source)
    if hasattr(source, "dask") and hasattr(source, "chunks"):
        return DaskSource(source)
    if isinstance(source, (list, tuple)):
        return JoinedSource([as_source(part) for part in source])
    raise SourceError(f"source of type {type(source).__name__}: expected a path, an array or a Dask array")


@contextmanager
def opened_source(source: Source) -> Iterator[VectorSource]:
    """The source, closed at the end unless the user had it open."""
    opened = as_source(source)
    try:
        yield opened
    finally:
        if opened is not source:
            opened.close()


def travels(source: VectorSource) -> bool:
    """Whether another process can open the source by its spec."""
    plain = plain_source(source)
    if isinstance(plain, JoinedSource):
        return all(travels(part) for part in plain.parts)
    return not isinstance(plain, (ArraySource, DaskSource))


class Rows:
    """A source with the interface of an array for Dask: slices are read, and it is pickled as its spec."""

    ndim = 2

    def __init__(self, source: VectorSource) -> None:
        self.source = source
        self.shape = (source.rows, source.dimension)
        self.dtype = source.dtype

    def __getitem__(self, key: tuple[slice, slice]) -> NDArray[Any]:
        start, stop, _ = key[0].indices(self.source.rows)
        return self.source.read(start, stop)[:, key[1]]

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return rows_of, (self.source.spec,)


def rows_of(spec: str) -> Rows:
    """Open a source in another process."""
    return Rows(open_source(spec))


def as_dask_array(source: VectorSource, chunk_rows: int | Sequence[int] = BATCH_ROWS) -> Any:
    """The source as a Dask array (rows, dimension) whose chunks are row ranges.

    chunk_rows : rows of every chunk, or of each one: Dask reads whole chunks even for a part of one.
    """
    import dask.array as da

    lengths = min(chunk_rows, source.rows) if isinstance(chunk_rows, int) else tuple(chunk_rows)

    return da.from_array(
        Rows(source),
        chunks=(lengths, source.dimension),
        name=False,
        asarray=False,
        fancy=False,
        meta=np.empty((0, 0), source.dtype),
    )


def read_in_order(array: Any, ranges: Sequence[tuple[int, int]], ahead: int = 1) -> Iterator[NDArray[Any]]:
    """Rows of each range of a Dask array, in order, reading `ahead` ranges in advance."""

    def compute(start: int, stop: int) -> NDArray[Any]:
        rows: NDArray[Any] = array[start:stop].compute(scheduler="synchronous")
        return np.ascontiguousarray(rows)

    if ahead == 0:
        for start, stop in ranges:
            yield compute(start, stop)
        return
    waiting: deque[Future[NDArray[Any]]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="read ahead") as pool:
        try:
            for start, stop in ranges:
                waiting.append(pool.submit(compute, start, stop))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def invalid_rows(spec: str, rows: NDArray[Any], first: int, *, allowed: bool) -> NDArray[np.int64]:
    """Positions of the rows with a NaN or infinite value, ascending; SourceError unless they are `allowed`.

    rows : (n, d), the rows of the source from number `first` on.
    """
    if rows.dtype.kind != "f":
        return np.empty(0, np.int64)
    # A sum is finite only if every term is; in float64 it does not overflow.
    suspects = np.flatnonzero(~np.isfinite(np.einsum("ij->i", rows, dtype=np.float64)))
    if len(suspects) and not allowed:
        raise SourceError(
            f"{spec}: row {first + suspects[0]} has a NaN or infinite value: "
            "repair it, or skip such rows with skip_invalid"
        )
    return suspects
