"""An index as a query process sees it: mapped read-only, opened in milliseconds whatever its size.

Opening compares the manifest's checksum, the names, sizes, dtypes and counts of all files a query
needs, and the labels of the first level. The data behind them is not read; the search kernels cut
every range they read to the arrays, so damaged data gives wrong answers and never a crash, and
`verify` finds it. Any number of processes share one copy in the system's page cache.
"""

import mmap
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.search.metrics import make_searcher
from aggtree.engine.search.searcher import Searcher
from aggtree.engine.search.segments import Segment, SegmentedSearcher
from aggtree.engine.tree.layout import Tree, norm_steps
from aggtree.storage.atomic import explained
from aggtree.storage.errors import DiskError, IndexFormatError
from aggtree.storage.index.dictionary_file import load_dictionaries
from aggtree.storage.index.file_record import FileRecord, check_files
from aggtree.storage.index.first_groups import groups_record, load_first_groups
from aggtree.storage.index.format import ARRAYS, CODES, DICTIONARIES, FIRST_GROUPS, OWN_IDS, TREE
from aggtree.storage.index.manifest import IndexManifest, read_manifest
from aggtree.storage.index.own_ids import OwnIds
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.queries.index_search import IndexSearch
from aggtree.storage.queries.index_vectors import Vectors

OPEN_ATTEMPTS = 20
LIVE = "live"
POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux 5.14, which Python's mmap does not name."""


class OpenSegment:
    """The files of one segment that a query needs, mapped read-only.

    own_ids : (source_rows,) int64, the user's id of each of its rows, or None.
    """

    def __init__(self, path: Path, segment: SegmentManifest) -> None:
        wanted = [segment.file(DICTIONARIES), *(segment.tree_file(spec.name) for spec in ARRAYS)]
        check_files(path, [*wanted, *([segment.file(OWN_IDS)] if segment.own_ids else [])])
        self.maps: list[mmap.mmap] = []
        self.own_ids: NDArray[np.int64] | None = None
        if segment.own_ids:
            self.own_ids = map_own_ids(path, segment, self.maps)
        arrays = {record.path.rpartition("/")[2]: map_array(path, record, self.maps) for record in wanted[1:]}
        dictionaries, norm_ranges = _load_dictionaries(path, segment)
        self.searcher = _searcher(path, segment, arrays, dictionaries, norm_ranges)

    @property
    def tree(self) -> Tree:
        """The tree's arrays, read-only."""
        return self.searcher.tree


class Index(IndexSearch):
    """An open index. It may be searched from several threads; parameters belong to a call, never to it.

    vectors : where the vectors are that it was built from, if not where they were; looked at now if given,
        otherwise when a search first needs them.
    """

    def __init__(self, path: Path, manifest: IndexManifest, vectors: Vectors | None = None) -> None:
        super().__init__(path, manifest, vectors)
        segments = [OpenSegment(path, segment) for segment in manifest.segments]
        self._maps = [pages for segment in segments for pages in segment.maps]
        if manifest.live:
            check_files(path, [manifest.live.file])
            record = replace(manifest.live.file, dtype="|u1", length=manifest.live.file.bytes)
            self._live = map_array(path, record, self._maps)
        own_ids = [segment.own_ids for segment in segments if segment.own_ids is not None]
        self.own_ids = OwnIds(own_ids) if own_ids else None
        if sum(len(pages) for pages in self._maps) > _physical_memory() // 2:
            # Reading ahead warms a tree that fits into memory within some queries. Of a larger one it
            # would fetch a hundred times what a query asks for, and push out what others need.
            for pages in self._maps:
                with suppress(OSError):
                    pages.madvise(mmap.MADV_RANDOM)
        trees = [
            Segment(opened.searcher, segment.first_row)
            for opened, segment in zip(segments, manifest.segments, strict=True)
        ]
        plain = len(trees) == 1 and self._live is None
        self._searcher = trees[0].searcher if plain else SegmentedSearcher(trees, self._live)

    @property
    def rows(self) -> int:
        """Number of vectors, without deleted ones."""
        return self.manifest.live_rows

    @property
    def dimension(self) -> int:
        """Dimension of vectors and queries."""
        return self.manifest.dimension

    @property
    def layout(self) -> CodeLayout:
        """Sizes of the dictionaries."""
        return self.manifest.layout

    @property
    def tree(self) -> Tree:
        """The tree's arrays, read-only; ValueError for an index of several."""
        searcher = self.searcher
        if isinstance(searcher, Searcher):
            return searcher.tree
        if len(searcher.segments) > 1:
            raise ValueError(
                f"{self.path}: has {len(searcher.segments)} trees; `aggtree compact` makes them one"
            )
        return searcher.segments[0].searcher.tree

    @property
    def dictionaries(self) -> Dictionaries:
        """The dictionaries of the codes."""
        return self.searcher.dictionaries

    def bytes_by_part(self) -> dict[str, int]:
        """Bytes in the directory: dictionaries and arrays of the tree, which queries need, and codes."""
        total: Counter[str] = Counter()
        for segment in self.manifest.segments:
            total.update(_segment_bytes(segment))
        total.update({LIVE: self.manifest.live.file.bytes} if self.manifest.live else {})
        return dict(total)

    def warm(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Bring the whole tree into memory, so that the first queries are as fast as later ones.

        `progress` is told the bytes touched so far and the bytes of the tree.
        """
        total, done = sum(len(pages) for pages in self._maps), 0
        for pages in self._maps:
            if total < _physical_memory():
                # What is read now comes in huge pages where the file system has them, for all processes.
                with suppress(OSError, AttributeError):
                    pages.madvise(mmap.MADV_HUGEPAGE)
            _populate(pages)
            done += len(pages)
            if progress:
                progress(done, total)

    def close(self) -> None:
        """Give the maps back; arrays taken from `tree` stay valid."""
        self._searcher = None
        self._maps = []
        self._live = None
        self.own_ids = None
        self.close_vectors()

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
            if latest == manifest:
                raise
            manifest = latest
    raise IndexFormatError(f"{index}: replaced again and again while it was opened")


def map_array(path: Path, record: FileRecord, maps: list[mmap.mmap]) -> NDArray[Any]:
    """A raw array of an index, mapped read-only; its pages are added to `maps`."""
    if record.bytes == 0:
        return np.empty(0, record.dtype)
    place = path / record.path
    with explained(place):
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_size != record.bytes:
            raise IndexFormatError(f"{place}: changed while it was opened")
        with explained(place):
            pages = mmap.mmap(descriptor, record.bytes, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    maps.append(pages)
    return np.frombuffer(pages, record.dtype, record.length)


def map_own_ids(path: Path, segment: SegmentManifest, maps: list[mmap.mmap]) -> NDArray[np.int64]:
    """The user's id of each row of a segment."""
    return map_array(path, replace(segment.file(OWN_IDS), dtype="<i8", length=segment.source_rows), maps)


def _load_dictionaries(path: Path, segment: SegmentManifest) -> tuple[Dictionaries, NDArray[np.float32]]:
    place = path / segment.directory / DICTIONARIES
    dictionaries, norm_ranges = load_dictionaries(place)
    if (dictionaries.layout.words, dictionaries.dimension) != (segment.words, segment.dimension):
        raise IndexFormatError(f"{place}: dictionaries of other sizes than the manifest says")
    return dictionaries, norm_ranges


def _segment_bytes(segment: SegmentManifest) -> dict[str, int]:
    """Bytes of one segment."""
    sizes = {DICTIONARIES: segment.file(DICTIONARIES).bytes}
    sizes |= {f"{TREE}/{spec.name}": segment.tree_file(spec.name).bytes for spec in ARRAYS}
    groups = groups_record(segment)
    sizes |= {FIRST_GROUPS: groups.bytes} if groups else {}
    sizes |= {OWN_IDS: segment.file(OWN_IDS).bytes} if segment.own_ids else {}
    start = f"{segment.directory}/{CODES}/"
    return sizes | {CODES: sum(record.bytes for record in segment.files if record.path.startswith(start))}


def _searcher(
    path: Path,
    segment: SegmentManifest,
    arrays: dict[str, NDArray[Any]],
    dictionaries: Dictionaries,
    norm_ranges: NDArray[np.float32],
) -> Searcher:
    counts = segment.counts
    low, step = norm_steps(norm_ranges, segment.norm_bytes)
    tree = Tree(
        **arrays,
        level_start=np.array(counts.level_start, np.int64),
        level_leaf=np.array(counts.level_leaf, np.int64),
        record_start=np.array(counts.record_start, np.int64),
        norm_low=low,
        norm_step=step,
    )
    groups = load_first_groups(path, segment)
    try:
        return make_searcher(segment.metric, tree, dictionaries, groups=groups)
    except ValueError as error:
        raise IndexFormatError(f"{path / segment.directory}: {error}") from error


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
