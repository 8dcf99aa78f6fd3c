"""One committed state of an index, open: what a search holds from its first step to its last.

A snapshot is immutable. A newer commit is another snapshot, which shares the segments that did not change;
closing an index drops its snapshot. A search on another thread keeps the snapshot it began with, and with
it the maps, until it returns.
"""

import threading
from dataclasses import replace
from pathlib import Path
from weakref import WeakSet

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.search.filters import Filter, row_bits
from aggtree.engine.search.nearest import SearchSpace, find_nearest
from aggtree.engine.search.ranges import RangeAnswer, find_within_radius
from aggtree.engine.search.request import SearchRequest
from aggtree.engine.search.searcher import Answer, SearchCounts
from aggtree.engine.search.segments import AnySearcher, Segment, SegmentedSearcher
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.file_record import check_files
from aggtree.storage.index.manifest import IndexManifest
from aggtree.storage.index.opened.codes import read_codes, rows_of_ids
from aggtree.storage.index.opened.memory_maps import limit_read_ahead, map_array
from aggtree.storage.index.opened.row_sets import Within, make_filter
from aggtree.storage.index.opened.segments import OpenSegment
from aggtree.storage.index.opened.vectors import LazyVectors
from aggtree.storage.index.own_ids import OwnIds
from aggtree.storage.row_bits import clear_missing, extended


class Snapshot:
    """The mapped files of one commit, and the queries they answer.

    own_ids : the user's id of each row, or None.
    maps : the pages of all files.
    space : what the engine searches.
    """

    def __init__(
        self, path: Path, manifest: IndexManifest, vectors: LazyVectors, before: "Snapshot | None" = None
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.vectors = vectors
        self.segments = _open_segments(path, manifest, before)
        self.maps = [pages for segment in self.segments for pages in segment.maps]
        self._live = self._map_live()
        own_ids = [segment.own_ids for segment in self.segments if segment.own_ids is not None]
        self.own_ids = OwnIds(own_ids) if own_ids else None
        self.space = SearchSpace(
            searcher=self._make_searcher(),
            metric=manifest.metric,
            rows=manifest.live_rows,
            vectors=vectors,
            live=None if self._live is None else row_bits(self._live),
        )
        self._kept: NDArray[np.uint8] | None = None
        self._filters: WeakSet[Filter] = WeakSet()
        self._lock = threading.Lock()
        limit_read_ahead(self.maps)

    @property
    def searcher(self) -> AnySearcher:
        """The trees; deleted rows are among their answers."""
        return self.space.searcher

    def _map_live(self) -> NDArray[np.uint8] | None:
        """The bits of the rows that were not deleted; None when none was."""
        live = self.manifest.live
        if live is None:
            return None
        check_files(self.path, [live.file])
        return map_array(self.path, replace(live.file, dtype="|u1", length=live.file.bytes), self.maps)

    def _make_searcher(self) -> AnySearcher:
        if len(self.segments) == 1:
            return self.segments[0].searcher
        return SegmentedSearcher(
            [
                Segment(opened.searcher, segment.first_row)
                for opened, segment in zip(self.segments, self.manifest.segments, strict=True)
            ]
        )

    def nearest(self, queries: ArrayLike, request: SearchRequest) -> tuple[Answer, SearchCounts]:
        """The k nearest of each query, by own ids if there are any, and how much each query visited."""
        found, counts = find_nearest(self.space, queries, request)
        self._check_rows(found.ids)
        if self.own_ids is not None:
            found = Answer(self.own_ids.of_rows(found.ids), found.distances)
        return found, counts

    def within_radius(self, queries: ArrayLike, request: SearchRequest) -> RangeAnswer:
        """All that a search visits within the radius of each query."""
        found = find_within_radius(self.space, queries, request)
        self._check_rows(found.ids)
        if self.own_ids is not None:
            found = found._replace(ids=self.own_ids.of_rows(found.ids))
        return found

    def _check_rows(self, rows: NDArray[np.int64]) -> None:
        """IndexFormatError for a row that the index does not have; nothing else reads all rows of a tree."""
        # -1, which is no answer, becomes 0; other numbers below 0 become large.
        known = self.manifest.all_source_rows
        if (rows + 1).view(np.uint64).max(initial=0) > known:
            wrong = rows[(rows < -1) | (rows >= known)][0]
            raise IndexFormatError(f"{self.path}: row {wrong} in a tree of {known} rows: damaged, verify it")

    def filter(self, within: Within) -> Filter:
        """The rows a user allows, without deleted ones."""
        if isinstance(within, Filter) and within in self._filters:
            return within
        made = make_filter(within, self.manifest.all_source_rows, self.own_ids)
        kept = self.kept_bits()
        if kept is not None:
            made = made.among(kept)
            self._filters.add(made)
        return made

    def kept_bits(self) -> NDArray[np.uint8] | None:
        """Bits of the rows that are in a tree and were not deleted, found once; None when all are."""
        manifest = self.manifest
        rows = manifest.all_source_rows
        if manifest.live_rows == rows:
            return None
        with self._lock:
            if self._kept is None:
                bits = extended(np.empty(0, np.uint8), 0, rows) if self._live is None else self._live.copy()
                for opened, segment in zip(self.segments, manifest.segments, strict=True):
                    if segment.rows < segment.source_rows:
                        clear_missing(bits, opened.tree.ids, segment.first_row, segment.source_rows)
                self._kept = bits
            return self._kept

    def reconstruct(self, ids: ArrayLike) -> NDArray[np.float32]:
        """Reconstructions (n, d) float32 of the vectors of these ids, from their codes."""
        manifest, dictionaries = self.manifest, self.searcher.dictionaries
        rows = rows_of_ids(ids, manifest.all_source_rows, self.own_ids, self.kept_bits())
        vectors = np.empty((len(rows), manifest.dimension), np.float32)
        for segment in manifest.segments:
            own = np.flatnonzero(
                (rows >= segment.first_row) & (rows < segment.first_row + segment.source_rows)
            )
            if len(own) == 0:
                continue
            codes = read_codes(self.path, segment, rows[own] - segment.first_row)
            try:
                vectors[own] = dictionaries.decode(codes)
            except ValueError as error:
                raise IndexFormatError(f"{self.path / segment.directory}: {error}: damaged") from error
        return vectors


def _open_segments(path: Path, manifest: IndexManifest, before: Snapshot | None) -> list[OpenSegment]:
    """All segments; those already open in an earlier snapshot are shared."""
    known = {segment.files: segment for segment in before.segments} if before is not None else {}
    return [known.get(segment.files) or OpenSegment(path, segment) for segment in manifest.segments]
