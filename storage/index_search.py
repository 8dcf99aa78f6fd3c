"""All ways to search an index: the tree, then what the call asks for on top of it.

A call that asks for nothing more goes straight to the tree's kernel.
"""

import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.filter import Filter
from aggtree.engine.params import SearchParams
from aggtree.engine.search import Answer, SearchCounts, Searcher
from aggtree.storage.errors import SourceError
from aggtree.storage.filtered_search import FilteredSearch, Within, make_filter
from aggtree.storage.manifest import Manifest
from aggtree.storage.own_ids import to_own_ids
from aggtree.storage.range_search import RangeAnswer, RangeSearch, largest_error
from aggtree.storage.raw_vectors import RawVectors, Vectors, open_raw_vectors
from aggtree.storage.tuning import TunedPoint, Tuning, read_tuning, write_tuning


class IndexSearch:
    """What an open index can be asked.

    own_ids : (source_rows,) int64, the user's id of each row, or None.
    """

    def __init__(self, path: Path, manifest: Manifest, vectors: Vectors | None) -> None:
        self.path = path
        self.manifest = manifest
        self.own_ids: NDArray[np.int64] | None = None
        self._searcher: Searcher | None = None
        self._raw = None if vectors is None else open_raw_vectors(path, manifest, vectors)
        self._raw_missing = False
        self._error: float | None = None
        self._tuning: Tuning | None = None
        self._lock = threading.Lock()

    @property
    def searcher(self) -> Searcher:
        """What answers the queries; ValueError after `close`."""
        if self._searcher is None:
            raise ValueError(f"{self.path}: the index is closed")
        return self._searcher

    @property
    def raw_vectors(self) -> RawVectors:
        """The vectors the index was built from; SourceError when they are gone or have changed."""
        with self._lock:
            if self._raw is None:
                self._raw = open_raw_vectors(self.path, self.manifest, None)
            return self._raw

    @property
    def tuning(self) -> Tuning:
        """What `aggtree tune` measured; ValueError when it did not."""
        if self._tuning is None:
            self._tuning = read_tuning(self.path, self.manifest.build)
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
        plain = rerank == 0 and within is None and radius is None and recall is None and time_ms is None
        if plain and self.own_ids is None:
            return self.searcher.search(queries, k, params, threads)
        found, _ = self.search_with_counts(
            queries,
            k,
            params,
            threads,
            rerank=rerank,
            within=within,
            radius=radius,
            recall=recall,
            time_ms=time_ms,
        )
        return found

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
        """The same, and how many nodes and leaves each query scored."""
        if recall is not None or time_ms is not None:
            params, rerank = self.tuned(k, params, rerank, recall, time_ms)
        if rerank and rerank < k:
            raise ValueError(f"rerank {rerank}: expected k ({k}) or more, or 0 for none")
        exact = False
        if within is None:
            found, counts = self.searcher.search_with_counts(queries, rerank or k, params, threads)
        else:
            raw = self.raw_vectors if rerank else self._raw_if_there()
            search = FilteredSearch(searcher=self.searcher, raw=raw, metric=self.manifest.metric)
            found, counts, exact = search.search(queries, rerank or k, params, threads, self.filter(within))
            found = Answer(found.ids[:, :k], found.distances[:, :k]) if exact else found
        if rerank and not exact:
            found = self.raw_vectors.rank(queries, found.ids, k, threads)
        if radius is not None:
            self._refuse_radius()
            outside = found.distances > np.float32(radius**2)
            found = Answer(np.where(outside, -1, found.ids), np.where(outside, np.inf, found.distances))
        if self.own_ids is not None:
            found = Answer(to_own_ids(self.own_ids, found.ids), found.distances)
        return found, counts

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
            found = found._replace(ids=to_own_ids(self.own_ids, found.ids))
        return found

    def filter(self, within: Within) -> Filter:
        """A set of rows made ready for `search(within=...)`, worth it when many calls share it."""
        return make_filter(within, self.manifest.source_rows, self.own_ids)

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
        build = self.manifest.build
        self._tuning = (read_tuning(self.path, build) or Tuning(build=build)).with_points(k, points)
        write_tuning(self.path, self._tuning)
        return self._tuning.points[k]

    def close_vectors(self) -> None:
        """Let go of the vectors the index was built from."""
        if self._raw is not None:
            self._raw.close()
            self._raw = None

    def _raw_if_there(self) -> RawVectors | None:
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
