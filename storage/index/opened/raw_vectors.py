"""Exact distances from the rows of one source of vectors.

The rows a batch of queries needs are few and far apart. A local file that stores rows as they are served
is mapped, and distances are computed in place. From any other source each row is read once per
block of queries, in ascending order.
"""

import mmap
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.exact.neighbours_kernels import FlatVectors, Nearest, touch_rows
from aggtree.engine.params import Metric
from aggtree.engine.search.rerank import Reranker
from aggtree.storage.errors import SourceError
from aggtree.storage.index.opened.memory_maps import limit_read_ahead
from aggtree.storage.sources.base import VectorSource

GATHER_BYTES = 32 << 20
"""Rows of a block of queries that are in memory at once."""
READERS = 16
"""Reads of a slow medium that are under way at once."""


class RawVectors:
    """The rows behind the ids of an index; safe to use from several threads."""

    def __init__(self, source: VectorSource, metric: Metric = "l2") -> None:
        self.source = source
        self.metric = metric
        self._reranker = Reranker(metric)
        self._mapped = source.mapped()
        # A file that does not fit into memory is read from the disk row by row, many reads at once as fast as
        # one.
        pages = self._mapped.pages if self._mapped is not None else None
        self._cold = pages is not None and limit_read_ahead([pages])

    @property
    def in_place(self) -> bool:
        """Whether rows lie in memory or in a local file, and distances are computed where they lie."""
        return self._mapped is not None

    def nearest(self, queries: ArrayLike, candidates: NDArray[np.int64], k: int, threads: int = 1) -> Nearest:
        """The k nearest of each query's candidates (q, c), by exact distance, equal ones by id."""
        if self._mapped is not None:
            self._check_size()
            if self._cold:
                self._fetch(np.unique(candidates))
            return self._reranker.nearest(queries, self._mapped.vectors, candidates, k, threads=threads)
        block = np.asarray(queries)
        block = block[None, :] if block.ndim == 1 else block
        row_bytes = self.source.dimension * self.source.dtype.itemsize
        step = max(1, GATHER_BYTES // (row_bytes * max(1, candidates.shape[1])))
        answers = [
            self._nearest_read(block[start : start + step], candidates[start : start + step], k, threads)
            for start in range(0, len(block), step)
        ]
        return Nearest(*(np.concatenate(parts) for parts in zip(*answers, strict=True)))

    def _nearest_read(
        self, queries: NDArray[Any], candidates: NDArray[np.int64], k: int, threads: int
    ) -> Nearest:
        """`nearest` from rows that are read, each once."""
        rows, places = np.unique(candidates, return_inverse=True)
        known = (rows >= 0) & (rows < self.source.rows)
        # Ids of no row are before and behind all others: their places are not among the rows.
        places = places.reshape(candidates.shape) - np.searchsorted(rows, 0)
        vectors = self.take(rows[known], threads)
        flat = FlatVectors(vectors.reshape(-1), 0, self.source.dimension, len(vectors), self.source.dimension)
        return self._reranker.nearest(queries, flat, candidates, k, places=places, threads=threads)

    def nearest_rows(self, queries: ArrayLike, rows: NDArray[np.int64], k: int, threads: int = 1) -> Nearest:
        """The k nearest of the same rows, which ascend and are not many, for every query."""
        if self._mapped is not None:
            self._check_size()
            if self._cold:
                self._fetch(rows)
            return self._reranker.nearest_rows(queries, self._mapped.vectors, rows, k, threads=threads)
        vectors = self.take(rows, threads)
        flat = FlatVectors(vectors.reshape(-1), 0, self.source.dimension, len(vectors), self.source.dimension)
        places = np.arange(len(rows))
        return self._reranker.nearest_rows(queries, flat, rows, k, places=places, threads=threads)

    def take(self, rows: NDArray[np.int64], threads: int = 1) -> NDArray[Any]:
        """The given rows, which ascend, read by several threads at once."""
        readers = max(threads, READERS) if "://" in self.source.spec else threads
        parts = np.array_split(rows, min(readers, max(1, len(rows))))
        if len(parts) == 1:
            return self.source.take(rows)
        with ThreadPoolExecutor(len(parts)) as pool:
            return np.concatenate(list(pool.map(self.source.take, parts)))

    def _check_size(self) -> None:
        """Refuse a mapped file that became shorter: reading behind its end would kill the process."""
        pages = self._mapped.pages if self._mapped is not None else None
        if pages is not None and pages.size() < len(pages):
            raise SourceError(f"{self.source.spec}: became shorter while it was open: open the index again")

    def _fetch(self, rows: NDArray[np.int64]) -> None:
        """Read rows into the page cache, several at once."""
        if self._mapped is None:
            return
        vectors = self._mapped.vectors
        page = mmap.PAGESIZE // vectors.values.itemsize
        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(lambda part: touch_rows(vectors, part, page), np.array_split(rows, READERS)))
