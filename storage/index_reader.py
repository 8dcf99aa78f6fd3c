"""An index as a query process sees it: mapped read-only, opened in milliseconds whatever its size.

Opening compares the manifest's checksum, the names, sizes, dtypes and counts of all files a query
needs, and the labels of the first level. The data behind them is not read; the search kernels cut
every range they read to the arrays, so damaged data gives wrong answers and never a crash, and
`verify` finds it. Any number of processes share one copy in the system's page cache.
"""

import mmap
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.filter import Filter
from aggtree.engine.params import SearchParams
from aggtree.engine.search import Answer, SearchCounts, Searcher
from aggtree.engine.tree import Tree, norm_steps
from aggtree.storage.atomic import explained
from aggtree.storage.dictionary_file import load_dictionaries
from aggtree.storage.errors import DiskError, IndexFormatError, SourceError
from aggtree.storage.filtered_search import FilteredSearch, Within, make_filter
from aggtree.storage.first_groups import groups_record, load_first_groups
from aggtree.storage.format import ARRAYS, CODES, DICTIONARIES, FIRST_GROUPS, OWN_IDS, TREE
from aggtree.storage.manifest import FileRecord, Manifest, check_files, read_manifest
from aggtree.storage.own_ids import to_own_ids
from aggtree.storage.range_search import RangeAnswer, RangeSearch, largest_error
from aggtree.storage.raw_vectors import RawVectors, Vectors, open_raw_vectors

OPEN_ATTEMPTS = 20
POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux 5.14, which Python's mmap does not name."""


class Index:
    """An open index. It may be searched from several threads; parameters belong to a call, never to it.

    vectors : where the vectors are that it was built from, if not where they were; looked at now if given,
        otherwise when a search first needs them.
    """

    def __init__(self, path: Path, manifest: Manifest, vectors: Vectors | None = None) -> None:
        self.path = path
        self.manifest = manifest
        self._raw = None if vectors is None else open_raw_vectors(path, manifest, vectors)
        self._raw_missing = False
        self._error: float | None = None
        self._raw_lock = threading.Lock()
        wanted = [manifest.file(DICTIONARIES), *(manifest.tree_file(spec.name) for spec in ARRAYS)]
        check_files(path, [*wanted, *([manifest.file(OWN_IDS)] if manifest.own_ids else [])])
        self._maps: list[mmap.mmap] = []
        self.own_ids: NDArray[np.int64] | None = self._map_own_ids() if manifest.own_ids else None
        arrays = {record.path.rpartition("/")[2]: self._map(record) for record in wanted[1:]}
        if sum(len(pages) for pages in self._maps) > _physical_memory() // 2:
            # Reading ahead warms a tree that fits into memory within some queries. Of a larger one it
            # would fetch a hundred times what a query asks for, and push out what others need.
            for pages in self._maps:
                with suppress(OSError):
                    pages.madvise(mmap.MADV_RANDOM)
        dictionaries, norm_ranges = self._load_dictionaries()
        self._searcher: Searcher | None = _searcher(path, manifest, arrays, dictionaries, norm_ranges)

    @property
    def rows(self) -> int:
        """Number of vectors."""
        return self.manifest.rows

    @property
    def dimension(self) -> int:
        """Dimension of vectors and queries."""
        return self.manifest.dimension

    @property
    def layout(self) -> CodeLayout:
        """Sizes of the dictionaries."""
        return self.manifest.layout

    @property
    def searcher(self) -> Searcher:
        """What answers the queries; ValueError after `close`."""
        if self._searcher is None:
            raise ValueError(f"{self.path}: the index is closed")
        return self._searcher

    @property
    def tree(self) -> Tree:
        """The tree's arrays, read-only."""
        return self.searcher.tree

    @property
    def dictionaries(self) -> Dictionaries:
        """The dictionaries of the codes."""
        return self.searcher.dictionaries

    @property
    def raw_vectors(self) -> RawVectors:
        """The vectors the index was built from; SourceError when they are gone or have changed."""
        with self._raw_lock:
            if self._raw is None:
                self._raw = open_raw_vectors(self.path, self.manifest, None)
            return self._raw

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
    ) -> Answer:
        """Find the k nearest vectors of one query (d,) or several (q, d).

        Returns ids (q, k) int64, row numbers or the user's own, and squared distances (q, k) float32 to the
        vectors' reconstructions, nearest first; where fewer than k were found, -1 and inf.
        rerank : so many candidates, k at least, are compared with the vectors themselves; the distances are
            then exact, and equal ones are ordered by id. 0 for none.
        within : answers come from these rows only: a boolean array over rows, a range or an array of ids, a
            .npy file of either, or what `filter` made of them. Few rows are compared one by one, with the
            vectors themselves if they are there.
        radius : answers whose squared distance is above radius² are left out; see `range_search` for all.
        """
        if rerank == 0 and self.own_ids is None and within is None and radius is None:
            return self.searcher.search(queries, k, params, threads)
        found, _ = self.search_with_counts(
            queries, k, params, threads, rerank=rerank, within=within, radius=radius
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
    ) -> tuple[Answer, SearchCounts]:
        """The same, and how many nodes and leaves each query scored."""
        if rerank and rerank < k:
            raise ValueError(f"rerank {rerank}: expected k ({k}) or more, or 0 for none")
        exact = False
        if within is None:
            found, counts = self.searcher.search_with_counts(queries, rerank or k, params, threads)
        else:
            raw = self.raw_vectors if rerank else self._raw_if_there()
            search = FilteredSearch(searcher=self.searcher, raw=raw)
            found, counts, exact = search.search(queries, rerank or k, params, threads, self.filter(within))
            found = Answer(found.ids[:, :k], found.distances[:, :k]) if exact else found
        if rerank and not exact:
            found = self.raw_vectors.rank(queries, found.ids, k, threads)
        if radius is not None:
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

    def bytes_by_part(self) -> dict[str, int]:
        """Bytes in the directory: dictionaries and arrays of the tree, which queries need, and codes."""
        parts = {DICTIONARIES: self.manifest.file(DICTIONARIES).bytes}
        parts |= {f"{TREE}/{spec.name}": self.manifest.tree_file(spec.name).bytes for spec in ARRAYS}
        groups = groups_record(self.manifest)
        parts |= {FIRST_GROUPS: groups.bytes} if groups else {}
        parts |= {OWN_IDS: self.manifest.file(OWN_IDS).bytes} if self.manifest.own_ids else {}
        start = f"{self.manifest.directory}/{CODES}/"
        codes = sum(record.bytes for record in self.manifest.files if record.path.startswith(start))
        return parts | {CODES: codes}

    def warm(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Bring the whole tree into memory, so that the first queries are as fast as later ones.

        `progress` is told the bytes touched so far and the bytes of the tree.
        """
        total, done = sum(len(pages) for pages in self._maps), 0
        for pages in self._maps:
            _populate(pages)
            done += len(pages)
            if progress:
                progress(done, total)

    def close(self) -> None:
        """Give the maps back; arrays taken from `tree` stay valid."""
        self._searcher = None
        self._maps = []
        self.own_ids = None
        if self._raw is not None:
            self._raw.close()
            self._raw = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        words = "+".join(str(size) for size in self.layout.words)
        return f"Index({str(self.path)!r}, rows={self.rows}, dimension={self.dimension}, words={words})"

    def _map(self, record: FileRecord) -> NDArray[Any]:
        """A raw array, mapped read-only."""
        if record.bytes == 0:
            return np.empty(0, record.dtype)
        path = self.path / record.path
        with explained(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_size != record.bytes:
                raise IndexFormatError(f"{path}: changed while it was opened")
            with explained(path):
                pages = mmap.mmap(descriptor, record.bytes, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        self._maps.append(pages)
        return np.frombuffer(pages, record.dtype, record.length)

    def _raw_if_there(self) -> RawVectors | None:
        """The vectors the index was built from, or None; looked for once."""
        if self._raw is None and self._raw_missing:
            return None
        try:
            return self.raw_vectors
        except SourceError:
            self._raw_missing = True
            return None

    def _largest_error(self) -> float:
        """How far vectors are from their reconstructions; measured once."""
        if self._error is None:
            self._error = largest_error(self.searcher, self.raw_vectors)
        return self._error

    def _map_own_ids(self) -> NDArray[np.int64]:
        """The user's id of each row."""
        record = replace(self.manifest.file(OWN_IDS), dtype="<i8", length=self.manifest.source_rows)
        return self._map(record)

    def _load_dictionaries(self) -> tuple[Dictionaries, NDArray[np.float32]]:
        path = self.path / self.manifest.directory / DICTIONARIES
        dictionaries, norm_ranges = load_dictionaries(path)
        if (dictionaries.layout.words, dictionaries.dimension) != (self.manifest.words, self.dimension):
            raise IndexFormatError(f"{path}: dictionaries of other sizes than the manifest says")
        return dictionaries, norm_ranges


def open_index(path: str | os.PathLike[str], vectors: Vectors | None = None) -> Index:
    """Open a committed index; IndexFormatError when it is not there, incomplete or damaged.

    vectors : a path, a source or an array, if the vectors are no longer where they were when it was built.
    """
    index = Path(path)
    manifest = read_manifest(index)
    for _ in range(OPEN_ATTEMPTS):
        try:
            return Index(index, manifest, vectors)
        except (IndexFormatError, DiskError):
            # A build that replaces the index removes the old files after its commit.
            latest = read_manifest(index)
            if latest.build == manifest.build:
                raise
            manifest = latest
    raise IndexFormatError(f"{index}: replaced again and again while it was opened")


def _searcher(
    path: Path,
    manifest: Manifest,
    arrays: dict[str, NDArray[Any]],
    dictionaries: Dictionaries,
    norm_ranges: NDArray[np.float32],
) -> Searcher:
    counts = manifest.counts
    low, step = norm_steps(norm_ranges, manifest.norm_bytes)
    tree = Tree(
        **arrays,
        level_start=np.array(counts.level_start, np.int64),
        level_leaf=np.array(counts.level_leaf, np.int64),
        record_start=np.array(counts.record_start, np.int64),
        norm_low=low,
        norm_step=step,
    )
    groups = load_first_groups(path, manifest)
    try:
        return Searcher(tree, dictionaries, groups=groups)
    except ValueError as error:
        raise IndexFormatError(f"{path / manifest.directory}: {error}") from error


def _physical_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _populate(pages: mmap.mmap) -> None:
    """Read all pages of a map into memory and map them."""
    try:
        pages.madvise(POPULATE_READ)
    except OSError:
        # An older kernel: ask for the pages, then touch each.
        with suppress(OSError):
            pages.madvise(mmap.MADV_WILLNEED)
        np.bitwise_or.reduce(np.frombuffer(pages, np.uint8)[:: mmap.PAGESIZE])
