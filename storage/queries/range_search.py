"""All vectors within a radius of each query, as far as the search reaches.

The tree compares queries with reconstructions x̂, so a vector x near the radius may be missed or wrongly
found. With the vectors themselves the answer is exact among what was reached: by the triangle inequality
‖q - x̂‖ <= ‖q - x‖ + ‖x - x̂‖ every x within the radius is among the candidates within radius + error, where
the error is the largest of a sample of rows.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.params import SearchParams
from aggtree.engine.search.filters import Filter, widened, widening
from aggtree.engine.search.searcher import Answer, check_queries
from aggtree.engine.search.segments import AnySearcher
from aggtree.storage.queries.filtered_search import FilteredSearch, scans
from aggtree.storage.queries.index_vectors import IndexVectors

FIRST_ANSWERS = 256
MORE_ANSWERS = 8
"""How many answers a query is first asked for, and how many times more if all are within the radius."""
ERROR_ROWS = 1000
"""Rows of the sample that tells how far vectors are from their reconstructions."""


class RangeAnswer(NamedTuple):
    """Answers of query i, nearest first, are ids[starts[i] : starts[i + 1]], and their squared distances.

    starts : (q + 1,) int64, ids : (a,) int64, distances : (a,) float32
    """

    starts: NDArray[np.int64]
    ids: NDArray[np.int64]
    distances: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class RangeSearch:
    """Range searches of one index.

    raw : the vectors themselves, for exact distances; None compares with reconstructions.
    error : the largest distance of a vector and its reconstruction that is reckoned with.
    """

    searcher: AnySearcher
    raw: IndexVectors | None
    error: float = 0.0

    def search(
        self,
        queries: ArrayLike,
        radius: float,
        params: SearchParams | None = None,
        threads: int = 1,
        within: Filter | None = None,
    ) -> RangeAnswer:
        """Everything in reach whose squared distance is at most radius²."""
        _, count = check_queries(queries, self.searcher.dictionaries.dimension, 1)
        if not radius >= 0:
            raise ValueError(f"radius {radius}: expected 0 or more")
        block = np.asarray(queries)
        block = block[None, :] if block.ndim == 1 else block
        if within is not None and scans(within, 0):
            filtered = FilteredSearch(searcher=self.searcher, raw=self.raw)
            answer = filtered.search(block, max(1, within.count), params, threads, within)[0]
            return _within([(np.arange(count), answer)], radius, count)
        return _within(self._reach(block, radius, params, threads, within), radius, count)

    def _reach(
        self,
        block: NDArray[np.generic],
        radius: float,
        params: SearchParams | None,
        threads: int,
        within: Filter | None,
    ) -> list[tuple[NDArray[np.int64], Answer]]:
        """Answers that hold all that is in reach, with the numbers of the queries they belong to."""
        searcher = self.searcher
        # All that is within the radius is wanted, and not the nearest alone.
        chosen = params if params is not None and params.limits else searcher.default_params
        chosen = replace(chosen, reach=math.inf)
        if within is not None:
            chosen = widened(chosen, widening(within.share))
        bits = None if within is None else within.row_bits
        farthest = np.float32((radius + self.error) ** 2)
        wanted, most = FIRST_ANSWERS, searcher.leaves
        open_queries, parts = np.arange(len(block)), []
        while len(open_queries):
            wanted = min(wanted, most)
            answer, _ = searcher.search_with_counts(block[open_queries], wanted, chosen, threads, bits)
            full = (answer.ids[:, -1] >= 0) & (answer.distances[:, -1] <= farthest) & (wanted < most)
            done = open_queries[~full]
            if len(done):
                near = answer.distances[~full] <= farthest
                columns = max(1, int(near.sum(axis=1).max()))
                ids = np.where(near, answer.ids[~full], -1)[:, :columns]
                parts.append((done, self._ranked(block[done], ids, answer.distances[~full], threads)))
            open_queries, wanted = open_queries[full], wanted * MORE_ANSWERS
        return parts

    def _ranked(
        self,
        queries: NDArray[np.generic],
        ids: NDArray[np.int64],
        distances: NDArray[np.float32],
        threads: int,
    ) -> Answer:
        """Candidates by their exact distance, if the vectors are there."""
        if self.raw is not None:
            return self.raw.rank(queries, np.ascontiguousarray(ids), ids.shape[1], threads)
        return Answer(ids, distances[:, : ids.shape[1]])


def _within(parts: list[tuple[NDArray[np.int64], Answer]], radius: float, count: int) -> RangeAnswer:
    """What is within the radius, query after query."""
    counts = np.zeros(count, np.int64)
    inside = [(answer.ids >= 0) & (answer.distances <= np.float32(radius**2)) for _, answer in parts]
    for (numbers, _), mask in zip(parts, inside, strict=True):
        counts[numbers] = mask.sum(axis=1)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    ids, distances = np.empty(starts[-1], np.int64), np.empty(starts[-1], np.float32)
    for (numbers, answer), mask in zip(parts, inside, strict=True):
        # Answers are sorted: those inside are the first of each row, and keep their order.
        places = np.repeat(starts[numbers], counts[numbers]) + _ranks(counts[numbers])
        ids[places], distances[places] = answer.ids[mask], answer.distances[mask]
    return RangeAnswer(starts, ids, distances)


def _ranks(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0..c-1 for each count c, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)


def largest_error(searcher: AnySearcher, raw: IndexVectors) -> float:
    """The largest distance of a vector and its reconstruction among rows spread over the trees."""
    rows, found = searcher.sampled_vectors(ERROR_ROWS)
    vectors = raw.take(np.clip(rows, 0, raw.source.rows - 1)).astype(np.float64)
    return float(np.sqrt(((vectors - found) ** 2).sum(axis=1).max()))
