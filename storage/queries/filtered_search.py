"""Search among a set of rows: through the tree, or row by row when the set is small.

Through the tree, a leaf that is not allowed is passed over before it could take the place of an answer,
and the limits are widened by the share of allowed rows; queries that still find few look further, up to
the whole tree. So k allowed rows are found whenever there are k.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.exact.neighbours_kernels import FlatVectors
from aggtree.engine.params import Metric, SearchParams
from aggtree.engine.search.filters import Filter, look_further, widened, widening
from aggtree.engine.search.rerank import Reranker, as_answer
from aggtree.engine.search.searcher import Answer, SearchCounts, check_queries
from aggtree.engine.search.segments import AnySearcher
from aggtree.storage.index.own_ids import OwnIds
from aggtree.storage.queries.index_vectors import IndexVectors
from aggtree.storage.sources.base import absolute
from aggtree.storage.sources.formats.npy import read_numbers

Within = NDArray[Any] | Sequence[int] | range | str | os.PathLike[str] | Filter

SCAN_ROWS = 2500
"""Allowed rows that are compared one by one, at a share of 1; measured, with the limits of `widened`."""
EVIDENCE = 4
"""Allowed rows that must be in reach for each one wanted: fewer say that the allowed rows are elsewhere."""


def make_filter(within: Within, rows: int, own_ids: OwnIds | None) -> Filter:
    """The rows a user allows: a boolean array over rows, ids as a range, an array or a .npy file of both."""
    if isinstance(within, Filter):
        if within.rows != rows:
            raise ValueError(f"within: a filter of {within.rows} rows for an index of {rows}")
        return within
    if isinstance(within, (str, os.PathLike)):
        within = read_numbers(absolute(os.fspath(within)))
    if isinstance(within, range):
        if within.step != 1:
            raise ValueError(f"within: {within}: expected a range of step 1")
        return _of_range(within, rows, own_ids)
    values = np.asarray(within)
    if values.dtype == np.bool_:
        if values.shape != (rows,):
            raise ValueError(
                f"within: booleans of shape {values.shape}: expected ({rows},), one for each row"
            )
        return Filter.of_mask(values)
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise ValueError(f"within: {values.dtype} of shape {values.shape}: expected booleans or ids")
    if own_ids is not None:
        values = _rows_of(own_ids, values)
    return Filter.of_rows(values.astype(np.int64), rows)


def _rows_of(own_ids: OwnIds, ids: NDArray[np.integer]) -> NDArray[np.int64]:
    try:
        return own_ids.rows_of(ids)
    except ValueError as error:
        raise ValueError(f"within: {error}") from error


def _of_range(ids: range, rows: int, own_ids: OwnIds | None) -> Filter:
    if own_ids is not None:
        return Filter.of_mask(own_ids.between(ids.start, ids.stop))
    mask = np.zeros(rows, np.bool_)
    mask[max(0, ids.start) : max(0, ids.stop)] = True
    return Filter.of_mask(mask)


def scans(within: Filter, wanted: int) -> bool:
    """Whether so few rows are allowed that all of them are compared."""
    return within.count <= wanted or within.count <= SCAN_ROWS * widening(within.share)


@dataclass(frozen=True, kw_only=True)
class FilteredSearch:
    """Searches of one index among some of its rows.

    raw : the vectors themselves, if they are there; distances of rows compared one by one are then exact.
    """

    searcher: AnySearcher
    raw: IndexVectors | None
    metric: Metric = "l2"

    def search(
        self,
        queries: ArrayLike,
        wanted: int,
        params: SearchParams | None,
        threads: int,
        within: Filter,
    ) -> tuple[Answer, SearchCounts, bool]:
        """The `wanted` nearest allowed rows, what was scored, and whether they were compared one by one."""
        _, count = check_queries(queries, self.searcher.dictionaries.dimension, wanted)
        if within.count == 0:
            ids, distances = np.full((count, wanted), -1), np.full((count, wanted), np.inf, np.float32)
            nothing = np.zeros(count, np.int64)
            return Answer(ids, distances), SearchCounts(nothing, nothing), True
        if scans(within, wanted):
            answer = self.scan(queries, wanted, threads, within)
            counts = SearchCounts(np.zeros(count, np.int64), np.full(count, within.count))
            return answer, counts, True
        return *self._look(queries, wanted, params, threads, within), False

    def scan(self, queries: ArrayLike, wanted: int, threads: int, within: Filter) -> Answer:
        """Compare every allowed row: with its vector, or with its reconstruction."""
        if self.raw is not None:
            return self.raw.rank_rows(queries, within.allowed, wanted, threads)
        rows, vectors = self.searcher.allowed_vectors(within.row_bits, within.count)
        dimension = self.searcher.dictionaries.dimension
        flat = FlatVectors(vectors.reshape(-1), 0, dimension, len(vectors), dimension)
        nearest = Reranker(self.metric).nearest_rows(
            queries, flat, rows, wanted, places=np.arange(len(rows)), threads=threads
        )
        return as_answer(nearest)

    def _look(
        self, queries: ArrayLike, wanted: int, params: SearchParams | None, threads: int, within: Filter
    ) -> tuple[Answer, SearchCounts]:
        """Search the tree, again and further for queries that found too little."""
        searcher = self.searcher
        enough = min(EVIDENCE * wanted, within.count)
        chosen = params if params is not None and params.limits else searcher.default_params
        chosen = widened(chosen, widening(within.share))
        bits = within.row_bits
        found = searcher.search_with_counts(queries, enough, chosen, threads, bits)

        def again(block: NDArray[Any], wider: SearchParams) -> tuple[Answer, SearchCounts]:
            return searcher.search_with_counts(block, enough, wider, threads, bits)

        look_further(again, queries, found, chosen, enough, int(searcher.level_nodes.max()))
        (ids, distances), counts = found
        return Answer(ids[:, :wanted].copy(), distances[:, :wanted].copy()), counts
