"""Small requests that between them need every kernel that searches of an index may need.

Carried out before the first request, they compile the kernels, or load them from disk, while nobody waits.
"""

from collections.abc import Callable, Iterator

import numpy as np

from aggtree.engine.exact.neighbours_kernels import FlatVectors
from aggtree.engine.scan.first_level import REGIONS
from aggtree.engine.search.filters import Filter
from aggtree.engine.search.nearest import RowReader, SearchSpace
from aggtree.engine.search.reconstruction import find_leaves
from aggtree.engine.search.rerank import Reranker
from aggtree.engine.search.segments import merged

QUERY_TYPES = (np.float32, np.float64, np.uint8)
"""Queries in bytes are compared with vectors in bytes as they are."""


def preparations(space: SearchSpace) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is prepared, and the requests that do it, which read next to nothing."""
    yield "search", lambda: _search(space)
    yield "filters", lambda: _filter(space)
    yield "segments", _merge
    reader = space.vectors.open_if_present()
    if reader is not None:
        yield "re-ranking", lambda: _rerank(reader, space.searcher.dictionaries.dimension)


def _search(space: SearchSpace) -> None:
    """One query, and as many as are put in order first."""
    queries = np.ones((REGIONS, space.searcher.dictionaries.dimension), np.float32)
    for count in (1, REGIONS):
        space.searcher.search(queries[:count], 1)


def _filter(space: SearchSpace) -> None:
    """A filter that lets so few rows pass that they are compared one by one, by their reconstructions."""
    dimension = space.searcher.dictionaries.dimension
    allowed = Filter.of_rows(np.zeros(1, np.int64), 1).row_bits
    for tree in space.searcher.trees:
        find_leaves(tree._replace(ids=tree.ids[:1]), allowed, 1)
    row = FlatVectors(np.ones(dimension, np.float32), 0, dimension, 1, dimension)
    for kind in QUERY_TYPES:
        Reranker(space.metric).nearest_rows(np.ones(dimension, kind), row, np.zeros(1, np.int64), 1)


def _merge() -> None:
    """Answers of two segments, and of two sources of vectors."""
    for kind in (np.float32, np.float64):
        merged([np.zeros((1, 1), np.int64)] * 2, [np.zeros((1, 1), kind)] * 2, 1)


def _rerank(reader: RowReader, dimension: int) -> None:
    """The first row, by its vector."""
    for kind in QUERY_TYPES:
        reader.rank(np.ones((1, dimension), kind), np.zeros((1, 1), np.int64), 1)
