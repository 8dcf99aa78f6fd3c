"""The vectors behind the ids of an index, for exact distances: its sources, found again and compared.

An index that has grown was made from several sources, one after the other; each is ranked where its rows
lie, and the nearest of all are the nearest.
"""

import os
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
from aggtree.storage.queries.raw_vectors import RawVectors
from aggtree.storage.sources.array import ArraySource
from aggtree.storage.sources.base import VectorSource, open_source
from aggtree.storage.sources.joined import JoinedSource, rows_of
from aggtree.storage.sources.unit_rows import metric_source

OneSource = str | os.PathLike[str] | NDArray[Any] | VectorSource
Vectors = OneSource | Sequence[OneSource]
"""Where the vectors are: one source of all rows, or a list of those they came from."""

REMEDY = "name it by vectors=, or --vectors on the command line"


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

    def rank(self, queries: ArrayLike, candidates: NDArray[np.int64], k: int, threads: int = 1) -> Answer:
        """The k nearest of each query's candidates (q, c), by exact distance, equal ones by id."""
        found = []
        for part, start in zip(self._parts, self._starts, strict=True):
            inside = (candidates >= start) & (candidates < start + part.source.rows)
            own = candidates if len(self._parts) == 1 else np.where(inside, candidates - start, -1)
            found.append(part.nearest(queries, own, k, threads))
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

    def close(self) -> None:
        for part in self._parts:
            part.close()

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


def open_vectors_of(index: Path, manifest: IndexManifest, vectors: Vectors | None) -> IndexVectors:
    """The vectors of an index, from the places given or remembered; SourceError if they are others."""
    pieces = manifest.all_pieces
    given = None if vectors is None else _as_source(vectors)
    if given is not None and len(pieces) > 1 and given.rows != manifest.all_source_rows:
        expected = f"expected the {manifest.all_source_rows:,} of {index} in order"
        raise SourceError(f"{given.spec}: {given.rows:,} vectors, {expected}: {REMEDY}")
    sources: list[VectorSource] = []
    try:
        for piece in pieces:
            if given is None:
                source = _remembered(index, piece)
            else:
                source = given if len(pieces) == 1 else rows_of(given, piece.first_row, piece.rows)
            sources.append(source)
            _refuse_others(index, source, piece, manifest.metric)
    except SourceError:
        for source in sources:
            source.close()
        raise
    return IndexVectors(sources, manifest.metric)


def _refuse_others(index: Path, source: VectorSource, piece: SourcePiece, metric: Metric) -> None:
    """SourceError if the rows are not those that were encoded."""
    found = metric_source(source, metric).fingerprint()
    different = [name for name in found if found[name] != piece.source.get(name)]
    if different:
        changes = ", ".join(f"{name} {piece.source.get(name)} → {found[name]}" for name in different)
        raise SourceError(f"{source.spec}: not the vectors that {index} was built from ({changes}): {REMEDY}")


def _as_source(vectors: Vectors) -> VectorSource:
    if isinstance(vectors, VectorSource):
        return vectors
    if isinstance(vectors, np.ndarray):
        return ArraySource(vectors)
    if isinstance(vectors, (str, os.PathLike)):
        return open_source(vectors)
    parts = [_as_source(part) for part in vectors]
    return parts[0] if len(parts) == 1 else JoinedSource(parts)


def _remembered(index: Path, piece: SourcePiece) -> VectorSource:
    if not piece.vectors:
        raise SourceError(f"{index}: was built from an array, exact distances need it again: {REMEDY}")
    try:
        return open_source(piece.vectors)
    except SourceError as error:
        raise SourceError(
            f"exact distances need the index's vectors; if they moved, {REMEDY}: {error}"
        ) from error
