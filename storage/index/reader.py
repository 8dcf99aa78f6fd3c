"""An open index: memory-mapped read-only, opened in milliseconds whatever its size.

Any number of processes share one copy in the system's page cache. An `Index` holds one `Snapshot`, the
state of the index when it was opened or last refreshed; each call uses one snapshot from start to end.
"""

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.params import Metric, SearchParams
from aggtree.engine.search.filters import Filter
from aggtree.engine.search.nearest import resolved
from aggtree.engine.search.preparation import preparations
from aggtree.engine.search.ranges import RangeAnswer
from aggtree.engine.search.request import Rerank, SearchRequest
from aggtree.engine.search.searcher import Answer, SearchCounts
from aggtree.engine.search.segments import AnySearcher
from aggtree.engine.search.tuned import TunedPoint, Tuning
from aggtree.engine.tree.layout import Tree
from aggtree.storage.atomic import explained
from aggtree.storage.errors import DiskError, IndexFormatError
from aggtree.storage.index.format import MANIFEST
from aggtree.storage.index.manifest import IndexManifest, read_manifest
from aggtree.storage.index.opened.description import bytes_by_part, format_words, html_table, index_facts
from aggtree.storage.index.opened.memory_maps import warm
from aggtree.storage.index.opened.row_sets import Within
from aggtree.storage.index.opened.snapshot import Snapshot
from aggtree.storage.index.opened.vectors import IndexVectors, LazyVectors, Vectors
from aggtree.storage.index.own_ids import OwnIds
from aggtree.storage.index.tuning import read_tuning, write_tuning

OPEN_ATTEMPTS = 20

Stamp = tuple[int, int, int, int]
"""What distinguishes one manifest file from the next without reading it."""


class Index:
    """An open index. It may be searched from several threads; search parameters are arguments of each call.

    It shows the state at opening until `refresh` loads a newer commit. Pickling it, or sending it to another
    process, sends its path: the other side opens the index there.
    """

    def __init__(self, path: Path, snapshot: Snapshot, stamp: Stamp) -> None:
        self.path = path
        self._snapshot: Snapshot | None = snapshot
        self._manifest = snapshot.manifest
        self._vectors = snapshot.vectors.location
        self._stamp = stamp
        self._tuning: Tuning | None = None
        self._lock = threading.Lock()

    def _open(self) -> Snapshot:
        """The state that a call uses from start to end; ValueError after `close`."""
        snapshot = self._snapshot
        if snapshot is None:
            raise ValueError(f"{self.path}: the index is closed")
        return snapshot

    def search(
        self,
        queries: ArrayLike,
        k: int = 100,
        params: SearchParams | None = None,
        threads: int = 1,
        *,
        rerank: Rerank = "auto",
        within: Within | None = None,
        radius: float | None = None,
        recall: float | None = None,
        time_ms: float | None = None,
    ) -> Answer:
        """Find the k nearest vectors of each query.

        queries : one query (d,) or several (q, d), of integers or floats.
        k : answers per query.
        params : how much of the tree to visit; by default `index.params`.
        threads : number of threads that share the queries of this call.
        rerank : number of candidates, at least k, to re-rank by exact distances, which are then returned;
            ties are ordered by row. "auto" re-ranks k + 30 √k if the vectors are an array or a local file
            that can be read in place (such as .npy and .fvecs, not parquet or HDF5), 0 none.
        within : rows that answers may come from: a boolean array with one entry per row, a range or an array
            of ids, a .npy file of either, or the result of `filter`. A small set is searched exhaustively, by
            exact distance if the vectors are available.
        radius : drop answers whose squared distance exceeds radius²; `range_search` returns all within it.
        recall, time_ms : instead of params and rerank: the fastest setting that reaches this recall, or the
            one with the highest recall within this time per query, as measured by `aggtree.tune`.

        Returns ids (q, k) int64, row numbers or your own ids, and distances (q, k) float32, nearest first,
        padded with -1 and inf where fewer were found. Where nothing is re-ranked, distances are to the
        reconstructions of the vectors. They are squared; with metric ip they are -q·x, with cosine 1 - cos.
        """
        return self.search_with_counts(
            queries,
            k,
            params,
            threads,
            rerank=rerank,
            within=within,
            radius=radius,
            recall=recall,
            time_ms=time_ms,
        )[0]

    def search_with_counts(
        self,
        queries: ArrayLike,
        k: int = 100,
        params: SearchParams | None = None,
        threads: int = 1,
        *,
        rerank: Rerank = "auto",
        within: Within | None = None,
        radius: float | None = None,
        recall: float | None = None,
        time_ms: float | None = None,
    ) -> tuple[Answer, SearchCounts]:
        """Like `search`; also returns how many nodes and leaves each query scored."""
        snapshot = self._open()
        request = SearchRequest(
            k=k,
            params=params,
            threads=threads,
            rerank=rerank,
            within=None if within is None else snapshot.filter(within),
            radius=radius,
            recall=recall,
            time_ms=time_ms,
        )
        if request.tuned:
            request = self._tuning_of(snapshot).apply(request)
        return snapshot.nearest(queries, request)

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
        """Find all vectors the search visits whose squared distance to a query is at most radius².

        Distances are to the vectors' reconstructions, so vectors near the radius may be missed or wrongly
        found. rerank : use exact distances of all vectors that are visited. The other arguments are those of
        `search`.
        """
        snapshot = self._open()
        request = SearchRequest(
            k=1,
            params=params,
            threads=threads,
            rerank=int(rerank),
            within=None if within is None else snapshot.filter(within),
            radius=radius,
        )
        return snapshot.within_radius(queries, request)

    def filter(self, within: Within) -> Filter:
        """Prepare a set of rows for `search(within=...)`; worth it when many calls share it."""
        return self._open().filter(within)

    def reconstruct(self, ids: ArrayLike) -> NDArray[np.float32]:
        """Approximations (n, d) float32 of the vectors of these ids, decoded from their codes.

        ids : (n,) integers, your own if the index was built with ids; ValueError names one that is missing.

        Codes are read from the index's code store, a chunk of rows at a time, and own ids are found by a pass
        over all of them, so request many at once. With the metric cosine these are vectors of length 1.
        """
        return self._open().reconstruct(ids)

    def refresh(self) -> bool:
        """Load the newest commit; returns whether there was one.

        After `append`, `delete`, `compact` or a new build by any process, calls that begin from now on see
        the new state; calls that are running finish with the old one. When nothing was committed
        it costs one `stat` of the manifest file.
        """
        with self._lock:
            before = self._open()
            self._tuning = None
            if _stamp(self.path) == self._stamp:
                return False
            stamp, now = _open_newest(self.path, lambda manifest: _next_snapshot(self.path, manifest, before))
            self._stamp = stamp
            if now is before:
                return False
            self._snapshot, self._manifest = now, now.manifest
            return True

    @property
    def manifest(self) -> IndexManifest:
        """The committed manifest; available after `close` too."""
        return self._manifest

    @property
    def metric(self) -> Metric:
        """The metric: l2, ip or cosine."""
        return self._manifest.metric

    @property
    def params(self) -> SearchParams:
        """The default parameters of a search."""
        params = self.resolved(SearchRequest()).params
        assert params is not None  # chosen there
        return params

    @property
    def rows(self) -> int:
        """Number of vectors, without deleted ones."""
        return self._manifest.live_rows

    @property
    def dimension(self) -> int:
        """Dimension of vectors and queries."""
        return self._manifest.dimension

    @property
    def layout(self) -> CodeLayout:
        """Sizes of the dictionaries."""
        return self._manifest.layout

    @property
    def searcher(self) -> AnySearcher:
        """The searcher of the trees, which handles neither deleted rows nor own ids."""
        return self._open().searcher

    @property
    def tree(self) -> Tree:
        """The arrays of the tree, read-only; ValueError for an index of several trees."""
        trees = self.searcher.trees
        if len(trees) > 1:
            raise ValueError(f"{self.path}: has {len(trees)} trees; call aggtree.compact to merge them")
        return trees[0]

    @property
    def dictionaries(self) -> Dictionaries:
        """The dictionaries of the codes."""
        return self.searcher.dictionaries

    @property
    def own_ids(self) -> OwnIds | None:
        """The user's id of each row, or None."""
        return self._open().own_ids

    @property
    def raw_vectors(self) -> IndexVectors:
        """The vectors the index was built from; SourceError if they are missing or have changed."""
        return self._open().vectors.open()

    @property
    def tuning(self) -> Tuning:
        """What `aggtree.tune` measured; ValueError when the index was not tuned."""
        return self._tuning_of(self._open())

    def _tuning_of(self, snapshot: Snapshot) -> Tuning:
        known, build = self._tuning, snapshot.manifest.identity
        if known is None or known.build != build:
            known = self._tuning = read_tuning(self.path, build)
        if known is None:
            raise ValueError(
                f"{self.path}: was not tuned; call aggtree.tune or run `aggtree tune {self.path}` first"
            )
        return known

    def resolved(self, request: SearchRequest) -> SearchRequest:
        """The request with its limits and its number of candidates chosen, as a search would choose them."""
        snapshot = self._open()
        if request.tuned:
            request = self._tuning_of(snapshot).apply(request)
        return resolved(snapshot.space, request)

    def keep_tuning(self, k: int, points: Iterable[TunedPoint]) -> tuple[TunedPoint, ...]:
        """Store the Pareto front of measured points for k beside the manifest; returns it."""
        build = self._open().manifest.identity
        tuning = (read_tuning(self.path, build) or Tuning(build=build)).with_points(k, points)
        write_tuning(self.path, tuning)
        self._tuning = tuning
        return tuning.points[k]

    def bytes_by_part(self) -> dict[str, int]:
        """Bytes on disk of the dictionaries, of each array of the tree, and of the codes."""
        return bytes_by_part(self._manifest)

    def preparations(self) -> list[tuple[str, Callable[[], object]]]:
        """What searches of this index need compiled, by name, and the calls that compile or load it."""
        return list(preparations(self._open().space))

    def compile_kernels(self) -> None:
        """Compile all that searches need, filters and re-ranking too, or load it if it was compiled before.

        Otherwise the first request of each kind does it.
        """
        for _, prepare in self.preparations():
            prepare()

    def warm(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Make the first queries as fast as later ones: compile the kernels and read the whole tree.

        progress : called with the bytes touched so far and the bytes of the tree.
        """
        self.compile_kernels()
        warm(self._open().maps, progress)

    def close(self) -> None:
        """Unmap the files once running calls have finished; arrays obtained from it stay valid."""
        with self._lock:
            self._snapshot = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., "Index"], tuple[str, str | None]]:
        return open_index, (str(self.path), self._vectors)

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        words = format_words(self._manifest)
        return f"Index({str(self.path)!r}, rows={self.rows}, dimension={self.dimension}, words={words})"

    def _repr_html_(self) -> str:
        """A small table, for notebooks."""
        return html_table(index_facts(self.path, self._manifest))


def open_index(path: str | os.PathLike[str], vectors: Vectors | None = None) -> Index:
    """Open a committed index; IndexFormatError when it is missing, incomplete or damaged.

    vectors : the original vectors, if they moved since the build: a path, a source, an array, or a list of
        these in the order of the rows. They are compared with the index now if given, otherwise when a search
        first needs them. A source that is passed in is not closed.
    """
    index = Path(path).absolute()

    def open_snapshot(manifest: IndexManifest) -> Snapshot:
        lazy = LazyVectors(index, manifest, vectors)
        if vectors is not None:
            lazy.open()
        return Snapshot(index, manifest, lazy)

    stamp, snapshot = _open_newest(index, open_snapshot)
    return Index(index, snapshot, stamp)


def _next_snapshot(path: Path, manifest: IndexManifest, before: Snapshot) -> Snapshot:
    """The state that a manifest describes: the present one, or a new one that shares unchanged segments."""
    if manifest == before.manifest:
        return before
    return Snapshot(path, manifest, before.vectors.for_state(manifest), before)


def _open_newest(index: Path, make: Callable[[IndexManifest], Snapshot]) -> tuple[Stamp, Snapshot]:
    """The newest commit, and the stamp of its manifest."""
    stamp = _stamp(index)
    manifest = read_manifest(index)
    for _ in range(OPEN_ATTEMPTS):
        try:
            return stamp, make(manifest)
        except (IndexFormatError, DiskError):
            # A build that replaces the index removes the old files after its commit.
            stamp = _stamp(index)
            latest = read_manifest(index)
            if latest == manifest:
                raise
            manifest = latest
    raise IndexFormatError(f"{index}: replaced repeatedly while it was opened")


def _stamp(index: Path) -> Stamp:
    """Identifies the manifest's file, which each commit replaces; taken before reading, so never too new."""
    with explained(index / MANIFEST):
        try:
            status = (index / MANIFEST).stat()
        except (FileNotFoundError, NotADirectoryError):
            return (0, 0, 0, 0)  # what is missing is explained when it is read
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
