"""The nearest rows of a query: through the trees, or row by row when few may be answers.

Rows that may not be answers, because they were deleted or a filter leaves them out, are skipped by the
kernel before they could displace an answer, at the price of testing one bit for each leaf that is near
enough. With a filter the limits are widened by the share of allowed rows. Queries that still find too
few are repeated, wider each time, up to the whole tree: k allowed rows are found whenever they exist.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.exact.neighbours_kernels import FlatVectors
from aggtree.engine.params import Metric, SearchParams
from aggtree.engine.scan.records import RowBits
from aggtree.engine.search.filters import Filter, widened, widening
from aggtree.engine.search.request import RERANK_EFFORT, SearchRequest, chosen_params, default_candidates
from aggtree.engine.search.rerank import Reranker, as_answer
from aggtree.engine.search.searcher import Answer, SearchCounts
from aggtree.engine.search.segments import AnySearcher

SCAN_ROWS = 2500
"""Allowed rows that are compared one by one, at a share of 1; measured, with the limits of `widened`."""
EVIDENCE = 4
"""Allowed rows that must be visited for each one wanted: fewer mean that the allowed rows are elsewhere."""
RETRY_WIDENING = 4
"""How much wider the limits are for queries that found too few rows."""
MAX_ANSWERS = 2**31
"""Entries of an answer, queries times k."""
MAX_PADDING = 2**26
"""Entries of an answer that would be filled with -1, because k exceeds the rows there are."""
ERROR_ROWS = 1000
"""Sampled rows whose largest distance to their reconstructions stands for that of all."""


class RowReader(Protocol):
    """The vectors that an index was built from, by row; safe to use from several threads."""

    @property
    def rows(self) -> int:
        """Number of rows, including deleted ones."""

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.generic]:
        """The given rows (r,), which ascend, as (r, d)."""

    def rank(self, queries: ArrayLike, candidates: NDArray[np.int64], k: int, threads: int = 1) -> Answer:
        """The k nearest of each query's candidates (q, c), by exact distance, equal ones by row."""

    def rank_rows(self, queries: ArrayLike, rows: NDArray[np.int64], k: int, threads: int = 1) -> Answer:
        """The k nearest of the same rows, which ascend and are few, for every query."""


class ExactRows(Protocol):
    """Provides the vectors themselves, if a search needs them."""

    def open(self) -> RowReader:
        """Their reader; an error explains why there is none."""

    def open_if_present(self) -> RowReader | None:
        """Their reader, or None."""

    def open_in_place(self) -> RowReader | None:
        """Their reader if any row is available, in memory or in a local file; otherwise None."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchSpace:
    """The data that queries are answered from: one state of an index.

    searcher : its trees; metric : of the distances they return.
    rows : number of vectors that may be answers, without deleted ones.
    vectors : the vectors themselves.
    live : bits of the rows that were not deleted; None if none was.
    """

    searcher: AnySearcher
    metric: Metric
    rows: int
    vectors: ExactRows
    live: RowBits | None = None

    @property
    def default_params(self) -> SearchParams:
        """The default parameters of a request."""
        return self.searcher.default_params

    def default_candidates(self, k: int) -> int:
        """How many candidates are re-ranked for k answers."""
        dictionaries = self.searcher.dictionaries
        return default_candidates(k, dictionaries.layout.bits / dictionaries.dimension)

    @cached_property
    def largest_error(self) -> float:
        """The largest distance of a vector and its reconstruction, among rows sampled from all trees."""
        rows, found = self.searcher.sampled_vectors(ERROR_ROWS)
        reader = self.vectors.open()
        vectors = reader.take(np.clip(rows, 0, reader.rows - 1)).astype(np.float64)
        return float(np.sqrt(((vectors - found) ** 2).sum(axis=1).max()))


def resolved(space: SearchSpace, request: SearchRequest) -> SearchRequest:
    """The request with its limits and its number of candidates chosen."""
    default, rerank = space.default_params, request.rerank
    if rerank == "auto":
        rerank = 0
        if space.vectors.open_in_place() is not None:
            rerank, default = space.default_candidates(request.k), default.scaled(RERANK_EFFORT)
    return replace(request, params=chosen_params(request.params, default), rerank=rerank)


def find_nearest(
    space: SearchSpace, queries: ArrayLike, request: SearchRequest
) -> tuple[Answer, SearchCounts]:
    """The k nearest rows of one query (d,) or several (q, d), and how much each query visited.

    Rows (q, k) int64 and distances (q, k) float32, padded with -1 and inf where fewer were found.
    """
    if request.radius is not None:
        check_radius(space)
    block = np.asarray(queries)
    allowed = space.rows if request.within is None else request.within.count
    _check_size(len(block) if block.ndim > 1 else 1, request.k, space.rows)
    # Work is as wide as there are answers: what k exceeds them by is filled in at the end.
    k = min(request.k, allowed)
    if k == 0:
        _, count, _ = space.searcher.prepared(block)
        return no_answer(count, request.k), SearchCounts(*np.zeros((2, count), np.int64))
    request = resolved(space, request)
    wanted = min(int(request.rerank) or request.k, allowed)
    reader = space.vectors.open() if request.rerank else None
    if request.within is None:
        params = chosen_params(request.params, space.default_params)
        found, counts = search_trees(space, block, wanted, params, request.threads)
    elif scans(request.within, wanted):
        found, counts = _scan(space, block, k, request.within, request.threads, reader)
        reader = None  # these distances are exact already, or as good as they get
    else:
        found, counts = _search_allowed(space, block, wanted, request.within, request)
    if reader is not None:
        found = reader.rank(block, found.ids, k, request.threads)
    if request.radius is not None:
        outside = found.distances > squared(request.radius)
        found = Answer(np.where(outside, -1, found.ids), np.where(outside, np.inf, found.distances))
    return _padded(found, request.k), counts


def search_trees(
    space: SearchSpace,
    queries: NDArray[np.generic],
    wanted: int,
    params: SearchParams,
    threads: int,
    within: Filter | None = None,
    *,
    enough: int | None = None,
) -> tuple[Answer, SearchCounts]:
    """The `wanted` nearest allowed rows of the trees for queries (d,) or (q, d).

    within : rows that may be answers; None for all that were not deleted
    enough : queries that find fewer are repeated, wider each time, until the limits include the whole level;
        None for as many as wanted, or all that exist. Only skipped rows can make a query find fewer than its
        limits allow, so without them no query is repeated.
    """
    searcher = space.searcher
    bits = space.live if within is None else within.row_bits
    found = searcher.search_with_counts(queries, wanted, params, threads, bits)
    enough = min(wanted, space.rows) if enough is None else enough
    if bits is None or enough == 0:
        return found
    (ids, distances), counts = found
    block = np.atleast_2d(queries)
    short, largest = np.flatnonzero(ids[:, enough - 1] < 0), int(searcher.level_nodes.max())
    while len(short) and any(0 < limit < largest for limit in params.limits):
        params = replace(widened(params, RETRY_WIDENING), pruning_ratio=math.inf)
        again, more = searcher.search_with_counts(block[short], wanted, params, threads, bits)
        ids[short], distances[short] = again
        counts.nodes[short] += more.nodes
        counts.leaves[short] += more.leaves
        short = short[again.ids[:, enough - 1] < 0]
    return found


def scans(within: Filter, wanted: int) -> bool:
    """Whether so few rows are allowed that all of them are compared."""
    return within.count <= wanted or within.count <= SCAN_ROWS * widening(within.share)


def scan_rows(
    space: SearchSpace,
    queries: NDArray[np.generic],
    k: int,
    within: Filter,
    threads: int,
    reader: RowReader | None,
) -> Answer:
    """The k nearest allowed rows, all of which are compared: with their vectors or their reconstructions."""
    if reader is not None:
        return reader.rank_rows(queries, within.allowed, k, threads)
    rows, vectors = space.searcher.allowed_vectors(within.row_bits, within.count)
    dimension = space.searcher.dictionaries.dimension
    flat = FlatVectors(vectors.reshape(-1), 0, dimension, len(vectors), dimension)
    nearest = Reranker(space.metric).nearest_rows(
        queries, flat, rows, k, places=np.arange(len(rows)), threads=threads
    )
    return as_answer(nearest)


def _scan(
    space: SearchSpace,
    queries: NDArray[np.generic],
    k: int,
    within: Filter,
    threads: int,
    reader: RowReader | None,
) -> tuple[Answer, SearchCounts]:
    """Compare every allowed row, with its vector if it is available."""
    _, count, _ = space.searcher.prepared(queries)
    if reader is None:
        reader = space.vectors.open_if_present()
    counts = SearchCounts(np.zeros(count, np.int64), np.full(count, within.count))
    return scan_rows(space, queries, k, within, threads, reader), counts


def _search_allowed(
    space: SearchSpace, queries: NDArray[np.generic], wanted: int, within: Filter, request: SearchRequest
) -> tuple[Answer, SearchCounts]:
    """Search the trees among the rows of a filter, with limits widened by its share."""
    enough = min(EVIDENCE * wanted, within.count)
    params = filtered_params(chosen_params(request.params, space.default_params), within)
    (ids, distances), counts = search_trees(space, queries, enough, params, request.threads, within)
    return Answer(ids[:, :wanted].copy(), distances[:, :wanted].copy()), counts


def filtered_params(params: SearchParams, within: Filter) -> SearchParams:
    """Parameters that find among the allowed rows what `params` find among all."""
    return widened(params, widening(within.share))


def no_answer(count: int, k: int) -> Answer:
    """The answer of `count` queries that found nothing."""
    return Answer(np.full((count, k), -1), np.full((count, k), np.inf, np.float32))


def _padded(found: Answer, k: int) -> Answer:
    """The answer extended to k columns by -1 and inf."""
    columns = found.ids.shape[1]
    if columns == k:
        return found
    wide = no_answer(len(found.ids), k)
    wide.ids[:, :columns], wide.distances[:, :columns] = found
    return wide


def squared(radius: float) -> np.float32:
    """The largest squared distance within a radius."""
    with np.errstate(over="ignore"):
        return np.float32(radius * radius)


def check_radius(space: SearchSpace) -> None:
    """ValueError if distances of this metric cannot be compared with a radius."""
    if space.metric != "l2":
        raise ValueError(f"radius: expected an index of metric l2, this one is of {space.metric}")


def _check_size(queries: int, k: int, rows: int) -> None:
    """ValueError for an answer too large to allocate."""
    if queries * k > MAX_ANSWERS or queries * (k - rows) > MAX_PADDING:
        raise ValueError(
            f"k {k}: {queries:,} queries times k are too many answers from {rows:,} rows: choose a smaller k"
        )
