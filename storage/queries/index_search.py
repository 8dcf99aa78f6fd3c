"""All ways to search an index: the tree, then what the call asks for on top of it.

A call that asks for nothing more goes straight to the tree's kernel.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from weakref import WeakSet

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.params import SearchParams
from aggtree.engine.search.filters import Filter
from aggtree.engine.search.searcher import Answer, SearchCounts
from aggtree.engine.search.segments import AnySearcher
from aggtree.storage.errors import SourceError
from aggtree.storage.index.manifest import Manifest
from aggtree.storage.index.own_ids import OwnIds
from aggtree.storage.index.tuning import TunedPoint, Tuning, read_tuning, write_tuning
from aggtree.storage.queries.filtered_search import FilteredSearch, Within, make_filter
from aggtree.storage.queries.index_vectors import IndexVectors, Vectors, open_vectors_of
from aggtree.storage.queries.range_search import RangeAnswer, RangeSearch, largest_error
from aggtree.storage.row_bits import clear_missing, extended


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a search is asked for beside its queries; see `IndexSearch.search`."""

    k: int = 100
    params: SearchParams | None = None
    threads: int = 1
    rerank: int = 0
    within: Within | None = None
    radius: float | None = None
    recall: float | None = None
    time_ms: float | None = None

    @property
    def plain(self) -> bool:
        """Whether the tree alone has the answer."""
        tuned = self.recall is not None or self.time_ms is not None
        return not (self.rerank or tuned) and self.within is None and self.radius is None


class IndexSearch:
    """What an open index can be asked.

    own_ids : the user's id of each row, or None.
    """

    def __init__(self, path: Path, manifest: Manifest, vectors: Vectors | None) -> None:
        self.path = path
        self.manifest = manifest
        self.own_ids: OwnIds | None = None
        self._searcher: AnySearcher | None = None
        self._live: NDArray[np.uint8] | None = None
        self._there: NDArray[np.uint8] | None = None
        self._filters: WeakSet[Filter] = WeakSet()
        self._raw = None if vectors is None else open_vectors_of(path, manifest, vectors)
        self._raw_missing = False
        self._error: float | None = None
        self._tuning: Tuning | None = None
        self._lock = threading.Lock()

    @property
    def searcher(self) -> AnySearcher:
        """What answers the queries; ValueError after `close`."""
        if self._searcher is None:
            raise ValueError(f"{self.path}: the index is closed")
        return self._searcher

    @property
    def raw_vectors(self) -> IndexVectors:
        """The vectors the index was built from; SourceError when they are gone or have changed."""
        with self._lock:
            if self._raw is None:
                self._raw = open_vectors_of(self.path, self.manifest, None)
            return self._raw

    @property
    def tuning(self) -> Tuning:
        """What `aggtree tune` measured; ValueError when it did not."""
        if self._tuning is None:
            self._tuning = read_tuning(self.path, self.manifest.identity)
        if self._tuning is None:
            raise ValueError(f"{self.path}: was not tuned; run `aggtree tune {self.path}` first")
        return self._tuning

    def search(
        self,
        queries: ArrayLike,
        k: int = 100,
        params: SearchParams | None = None,
        threads: int = 1,
        *,
        rerank: int = 0,
        within: Within | None = None,
        radius: float | None = None,
        recall: float | None = None,
        time_ms: float | None = None,
    ) -> Answer:
        """Find the k nearest vectors of one query (d,) or several (q, d).

        Returns ids (q, k) int64, row numbers or the user's own, and distances (q, k) float32 to the vectors'
        reconstructions, nearest first; where fewer than k were found, -1 and inf. Distances are squared; with
        the metric ip they are -q·x, with cosine 1 - cos.
        rerank : so many candidates, k at least, are compared with the vectors themselves; the distances are
            then exact, and equal ones are ordered by id. 0 for none.
        within : answers come from these rows only: a boolean array over rows, a range or an array of ids, a
            .npy file of either, or what `filter` made of them. Few rows are compared one by one, with the
            vectors themselves if they are there.
        radius : answers whose squared distance is above radius² are left out; see `range_search` for all.
        recall, time_ms : instead of params and rerank: the fastest that finds so much, or the one that finds
            most in so many milliseconds per query, as `aggtree tune` measured.
        """
        asked = Request(
            k=k,
            params=params,
            threads=threads,
            rerank=rerank,
            within=within,
            radius=radius,
            recall=recall,
            time_ms=time_ms,
        )
        if asked.plain and self.own_ids is None:
            return self.searcher.search(queries, k, params, threads)
        return self._answer(queries, asked)[0]

    def search_with_counts(
        self,
        queries: ArrayLike,
        k: int = 100,
        params: SearchParams | None = None,
        threads: int = 1,
        *,
        rerank: int = 0,
        within: Within | None = None,
        radius: float | None = None,
        recall: float | None = None,
        time_ms: float | None = None,
    ) -> tuple[Answer, SearchCounts]:
        """The same as `search`, and how many nodes and leaves each query scored."""
        asked = Request(
            k=k,
            params=params,
            threads=threads,
            rerank=rerank,
            within=within,
            radius=radius,
            recall=recall,
            time_ms=time_ms,
        )
        return self._answer(queries, asked)

    def _answer(self, queries: ArrayLike, asked: Request) -> tuple[Answer, SearchCounts]:
        """Search, compare with the vectors themselves, and put own ids in the place of rows, as asked."""
        if asked.recall is not None or asked.time_ms is not None:
            params, rerank = self.tuned(asked.k, asked.params, asked.rerank, asked.recall, asked.time_ms)
            asked = replace(asked, params=params, rerank=rerank)
        if asked.rerank and asked.rerank < asked.k:
            raise ValueError(f"rerank {asked.rerank}: expected k ({asked.k}) or more, or 0 for none")
        found, counts, exact = self._candidates(queries, asked)
        if asked.rerank and not exact:
            found = self.raw_vectors.rank(queries, found.ids, asked.k, asked.threads)
        if asked.radius is not None:
            self._refuse_radius()
            outside = found.distances > np.float32(asked.radius**2)
            found = Answer(np.where(outside, -1, found.ids), np.where(outside, np.inf, found.distances))
        if self.own_ids is not None:
            found = Answer(self.own_ids.of_rows(found.ids), found.distances)
        return found, counts

    def _candidates(self, queries: ArrayLike, asked: Request) -> tuple[Answer, SearchCounts, bool]:
        """What the trees find, or all that is allowed; and whether that is compared exactly already."""
        wanted, params, threads = asked.rerank or asked.k, asked.params, asked.threads
        if asked.within is None:
            return *self.searcher.search_with_counts(queries, wanted, params, threads), False
        raw = self.raw_vectors if asked.rerank else self._raw_if_there()
        search = FilteredSearch(searcher=self.searcher, raw=raw, metric=self.manifest.metric)
        found, counts, exact = search.search(queries, wanted, params, threads, self.filter(asked.within))
        if exact:
            found = Answer(found.ids[:, : asked.k], found.distances[:, : asked.k])
        return found, counts, exact

    def range_search(
        self,
        queries: ArrayLike,
        radius: float,
        params: SearchParams | None = None,
        threads: int = 1,
        *,
        rerank: bool = False,
        within: Within | None = None,
    ) -> RangeAnswer:
        """Find all vectors in reach whose squared distance to a query is at most radius².

        Distances are to the vectors' reconstructions, so vectors near the radius may be missed or wrongly
        found. rerank : compare with the vectors themselves, which is exact for all that is in reach.
        """
        self._refuse_radius()
        search = RangeSearch(
            searcher=self.searcher,
            raw=self.raw_vectors if rerank else None,
            error=self._largest_error() if rerank else 0.0,
        )
        allowed = None if within is None else self.filter(within)
        found = search.search(queries, radius, params, threads, allowed)
        if self.own_ids is not None:
            found = found._replace(ids=self.own_ids.of_rows(found.ids))
        return found

    def filter(self, within: Within) -> Filter:
        """A set of rows made ready for `search(within=...)`, worth it when many calls share it."""
        if isinstance(within, Filter) and within in self._filters:
            return within
        made = make_filter(within, self.manifest.all_source_rows, self.own_ids)
        there = self._rows_there()
        if there is not None:
            made = made.among(there)
            self._filters.add(made)
        return made

    def _rows_there(self) -> NDArray[np.uint8] | None:
        """Bits of the rows that are in a tree and were not deleted, found once; None when all are."""
        manifest, searcher = self.manifest, self.searcher
        if manifest.live_rows == manifest.all_source_rows:
            return None
        with self._lock:
            if self._there is None:
                rows = manifest.all_source_rows
                bits = extended(np.empty(0, np.uint8), 0, rows) if self._live is None else self._live.copy()
                for part, tree in zip(manifest.parts, searcher.trees, strict=True):
                    if part.rows < part.source_rows:
                        clear_missing(bits, tree.ids, part.first_row, part.source_rows)
                self._there = bits
            return self._there

    def tuned(
        self,
        k: int,
        params: SearchParams | None,
        rerank: int,
        recall: float | None,
        time_ms: float | None,
    ) -> tuple[SearchParams, int]:
        """Limits and candidates that reach a recall, or keep to a time."""
        if (recall is not None and time_ms is not None) or rerank or (params is not None and params.limits):
            raise ValueError("recall, time_ms, or params and rerank: expected one of the three")
        point = self.tuning.choose(k, recall, time_ms)
        return point.params, point.rerank

    def keep_tuning(self, k: int, points: Iterable[TunedPoint]) -> tuple[TunedPoint, ...]:
        """Write the best of measured points for k beside the manifest; returns them."""
        build = self.manifest.identity
        self._tuning = (read_tuning(self.path, build) or Tuning(build=build)).with_points(k, points)
        write_tuning(self.path, self._tuning)
        return self._tuning.points[k]

    def close_vectors(self) -> None:
        """Let go of the vectors the index was built from."""
        if self._raw is not None:
            self._raw.close()
            self._raw = None

    def _raw_if_there(self) -> IndexVectors | None:
        """The vectors the index was built from, or None; looked for once."""
        if self._raw is None and self._raw_missing:
            return None
        try:
            return self.raw_vectors
        except SourceError:
            self._raw_missing = True
            return None

    def _refuse_radius(self) -> None:
        if self.manifest.metric != "l2":
            raise ValueError(f"radius: expected an index of metric l2, this one is of {self.manifest.metric}")

    def _largest_error(self) -> float:
        """How far vectors are from their reconstructions; measured once."""
        if self._error is None:
            self._error = largest_error(self.searcher, self.raw_vectors)
        return self._error
