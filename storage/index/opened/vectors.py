"""The vectors of an index, for exact distances: its sources, reopened and compared with it.

An index with appended segments has several sources; candidates are ranked within each source, and the
results merged. Files are not closed explicitly: a file closes with the last search that holds it, so
closing an index does not disturb a search on another thread.
"""

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.exact.neighbours_kernels import Nearest
from aggtree.engine.params import Metric
from aggtree.engine.search.rerank import as_answer
from aggtree.engine.search.searcher import Answer
from aggtree.engine.search.segments import merged
from aggtree.storage.errors import SourceError
from aggtree.storage.index.file_record import SourcePiece
from aggtree.storage.index.manifest import IndexManifest
from aggtree.storage.index.opened.raw_vectors import RawVectors
from aggtree.storage.places import COMPUTED, may_open, refusal
from aggtree.storage.sources.array import ArraySource
from aggtree.storage.sources.base import VectorSource, open_source
from aggtree.storage.sources.joined import JoinedSource, rows_of
from aggtree.storage.sources.unit_rows import metric_source

OneSource = str | os.PathLike[str] | NDArray[np.generic] | VectorSource
Vectors = OneSource | Sequence[OneSource]
"""Where the vectors are: one source of all rows, or a list of those they came from."""

LOGGER = logging.getLogger("aggtree")
REMEDY = "pass their location as `vectors`"


class IndexVectors:
    """The rows of all sources of an index; safe to use from several threads."""

    def __init__(self, sources: Sequence[VectorSource], metric: Metric = "l2") -> None:
        self.source = sources[0] if len(sources) == 1 else JoinedSource(sources)
        self.metric = metric
        # What was joined can be mapped only part by part.
        parts = [source.parts if isinstance(source, JoinedSource) else (source,) for source in sources]
        sources = [part for joined in parts for part in joined]
        self._parts = [RawVectors(source, metric) for source in sources]
        starts = np.cumsum([0, *(source.rows for source in sources)])
        self._starts: list[int] = starts[:-1].tolist()

    @property
    def rows(self) -> int:
        """Rows of all sources."""
        return self.source.rows

    @property
    def in_place(self) -> bool:
        """Whether all rows lie in memory or in local files as they are served."""
        return all(part.in_place for part in self._parts)

    def rank(self, queries: ArrayLike, candidates: NDArray[np.int64], k: int, threads: int = 1) -> Answer:
        """The k nearest of each query's candidates (q, c), by exact distance, equal ones by id."""
        if len(self._parts) == 1:
            return as_answer(self._parts[0].nearest(queries, candidates, k, threads))
        found = []
        for part, start in zip(self._parts, self._starts, strict=True):
            inside = (candidates >= start) & (candidates < start + part.source.rows)
            found.append(part.nearest(queries, np.where(inside, candidates - start, -1), k, threads))
        return self._answer(found, k)

    def rank_rows(self, queries: ArrayLike, rows: NDArray[np.int64], k: int, threads: int = 1) -> Answer:
        """The k nearest of the same rows, which ascend and are not many, for every query."""
        found = []
        for part, start in zip(self._parts, self._starts, strict=True):
            low, high = np.searchsorted(rows, (start, start + part.source.rows))
            own = rows if len(self._parts) == 1 else rows[low:high] - start
            found.append(part.nearest_rows(queries, own, k, threads))
        return self._answer(found, k)

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """The given rows, which ascend."""
        if len(self._parts) == 1:
            return self._parts[0].take(rows)
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        taken = [
            part.take(rows[numbers == number] - self._starts[number])
            for number, part in enumerate(self._parts)
        ]
        return np.concatenate(taken)

    def _answer(self, found: Sequence[Nearest], k: int) -> Answer:
        """The nearest of what the sources gave, with rows of the index."""
        if len(found) == 1:
            return as_answer(found[0])
        ids = [
            np.where(part.ids >= 0, part.ids + start, -1)
            for part, start in zip(found, self._starts, strict=True)
        ]
        rows, distances = merged(ids, [part.distances for part in found], k)
        return as_answer(Nearest(distances, rows))


class LazyVectors:
    """The vectors of one state of an index, opened when a search first needs them.

    given : their location, if they moved since the build
    """

    def __init__(self, index: Path, manifest: IndexManifest, given: Vectors | None = None) -> None:
        self._index = index
        self._manifest = manifest
        self._given = given
        self._opened: IndexVectors | None = None
        self._missing = False
        self._lock = threading.Lock()

    @property
    def location(self) -> str | None:
        """Location that opens the given vectors in another process; None for arrays or if none were given."""
        return self._given if isinstance(self._given, str) else None

    def open(self) -> IndexVectors:
        """The vectors; SourceError if they are missing or have changed."""
        with self._lock:
            if self._opened is None:
                source = None if self._given is None else _as_source(self._given)
                self._opened = _open_vectors(self._index, self._manifest, source)
                if source is not None and _is_location(self._given):
                    # An absolute one: the working directory may change.
                    self._given = source.spec
            return self._opened

    def open_if_present(self) -> IndexVectors | None:
        """The vectors, or None; a missing file is searched for only once."""
        if self._opened is None and self._missing:
            return None
        try:
            return self.open()
        except SourceError:
            self._missing = True
            return None

    def open_in_place(self) -> IndexVectors | None:
        """The vectors if they are an array or a local file whose rows can be read in place, or None.

        A file that cannot be used is reported once, because answers are less accurate without it.
        """
        if self._given is None and not all(_is_local(piece.vectors) for piece in self._manifest.all_pieces):
            return None
        if self._opened is None and self._missing:
            return None
        try:
            vectors = self.open()
        except SourceError as error:
            self._missing = True
            LOGGER.warning("answers are not re-ranked: %s", error)
            return None
        return vectors if vectors.in_place else None

    def for_state(self, manifest: IndexManifest) -> "LazyVectors":
        """The vectors of a later state of the index: the same ones, unless its sources are others."""
        before = self._manifest
        if (manifest.all_pieces, manifest.metric) == (before.all_pieces, before.metric):
            return self
        return LazyVectors(self._index, manifest, self._given)


def _open_vectors(index: Path, manifest: IndexManifest, given: VectorSource | None) -> IndexVectors:
    """The vectors of an index, from the source given or those recorded; SourceError if they changed."""
    pieces = manifest.all_pieces
    if given is not None and len(pieces) > 1 and given.rows != manifest.all_source_rows:
        expected = f"expected the {manifest.all_source_rows:,} of {index} in order"
        raise SourceError(f"{given.spec}: {given.rows:,} vectors, {expected}: {REMEDY}")
    sources: list[VectorSource] = []
    for piece in pieces:
        if given is None:
            source = _recorded_source(index, piece)
        else:
            source = given if len(pieces) == 1 else rows_of(given, piece.first_row, piece.rows)
        _refuse_others(index, source, piece, manifest.metric)
        sources.append(source)
    return IndexVectors(sources, manifest.metric)


def _refuse_others(index: Path, source: VectorSource, piece: SourcePiece, metric: Metric) -> None:
    """SourceError if the rows differ from those that were encoded."""
    found = metric_source(source, metric).fingerprint()
    different = [name for name in found if found[name] != piece.source.get(name)]
    if different:
        changes = ", ".join(f"{name} {piece.source.get(name)} → {found[name]}" for name in different)
        raise SourceError(f"{source.spec}: not the vectors that {index} was built from ({changes}): {REMEDY}")


def _as_source(vectors: Vectors) -> VectorSource:
    """Vectors that a user named or gave, as one source."""
    if isinstance(vectors, VectorSource):
        return vectors
    if isinstance(vectors, np.ndarray):
        return ArraySource(vectors)
    if isinstance(vectors, (str, os.PathLike)):
        return open_source(vectors)
    parts = [_as_source(part) for part in vectors]
    return parts[0] if len(parts) == 1 else JoinedSource(parts)


def _is_location(vectors: Vectors | None) -> bool:
    """Whether vectors were named by paths or URLs, which another process can open too."""
    if vectors is None or isinstance(vectors, (VectorSource, np.ndarray)):
        return False
    return isinstance(vectors, (str, os.PathLike)) or all(_is_location(part) for part in vectors)


def _is_local(vectors: str) -> bool:
    """Whether a recorded location is a file of this machine; "" is that of an array."""
    return bool(vectors) and "://" not in vectors and not vectors.startswith(COMPUTED)


def _recorded_source(index: Path, piece: SourcePiece) -> VectorSource:
    if not piece.vectors:
        raise SourceError(f"{index}: was built from an array, exact distances need it again: {REMEDY}")
    if not may_open(piece.vectors, piece.vectors_seal):
        raise SourceError(refusal(index, "vectors", piece.vectors, REMEDY))
    try:
        return open_source(piece.vectors)
    except SourceError as error:
        raise SourceError(
            f"exact distances need the index's vectors; if they moved, {REMEDY}: {error}"
        ) from error
