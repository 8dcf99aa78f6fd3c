"""Search the trees of several segments as one.

Each tree is searched with the limits of the whole, so a query visits the same cells as in one tree of all
rows; the answers are merged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.dictionaries import Dictionaries
from aggtree.engine.params import SearchParams
from aggtree.engine.scan.records import RowBits
from aggtree.engine.search.request import chosen_params
from aggtree.engine.search.searcher import Answer, SearchCounts, Searcher
from aggtree.engine.search.segment_kernels import merge_answers
from aggtree.engine.tree.layout import Tree

Vectors = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Rows (r,) and their reconstructions (r, d)."""


@dataclass(frozen=True, eq=False)
class Segment:
    """A tree whose row i is the row `first_row + i` of the index."""

    searcher: Searcher
    first_row: int


class SegmentedSearcher:
    """Answers queries from all segments, as a `Searcher` does from one tree; ids are rows of the index."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segments)

    @property
    def dictionaries(self) -> Dictionaries:
        """The dictionaries, which all segments share."""
        return self.segments[0].searcher.dictionaries

    @property
    def trees(self) -> tuple[Tree, ...]:
        """The tree of each segment."""
        return tuple(segment.searcher.tree for segment in self.segments)

    @property
    def leaves(self) -> int:
        """Number of vectors in the trees, including deleted ones."""
        return sum(segment.searcher.leaves for segment in self.segments)

    def prepared(self, queries: ArrayLike) -> tuple[NDArray[np.float32], int, NDArray[np.float64] | None]:
        """Queries prepared for every segment; see `Searcher.prepared`."""
        return self.segments[0].searcher.prepared(queries)

    @property
    def level_nodes(self) -> NDArray[np.int64]:
        """Nodes of level 0..M of the largest tree, (M + 1,) int64."""
        nodes = np.stack([segment.searcher.level_nodes for segment in self.segments])
        largest: NDArray[np.int64] = nodes.max(axis=0)
        return largest

    @property
    def default_params(self) -> SearchParams:
        """The parameters used when a call names no limits: those of one tree of all rows."""
        return self.segments[0].searcher.default_params

    def search(
        self, queries: ArrayLike, k: int = 100, params: SearchParams | None = None, threads: int = 1
    ) -> Answer:
        """Find the k nearest rows of one query (d,) or several (q, d); see `Searcher.search`."""
        return self.search_with_counts(queries, k, params, threads)[0]

    def search_with_counts(
        self,
        queries: ArrayLike,
        k: int = 100,
        params: SearchParams | None = None,
        threads: int = 1,
        within: RowBits | None = None,
    ) -> tuple[Answer, SearchCounts]:
        """The same, and how many nodes and leaves each query scored.

        within : which rows may be answers; see `filters.Filter`
        """
        chosen = chosen_params(params, self.default_params)
        ids, distances, nodes, leaves = [], [], [], []
        for segment in self.segments:
            bits = None if within is None else _shifted(within, segment.first_row)
            found, counts = segment.searcher.search_with_counts(queries, k, chosen, threads, bits)
            ids.append(_in_index(found.ids, segment.first_row))
            distances.append(found.distances)
            nodes.append(counts.nodes)
            leaves.append(counts.leaves)
        if len(ids) == 1:
            return Answer(ids[0], distances[0]), SearchCounts(nodes[0], leaves[0])
        answer = Answer(*merged(ids, distances, k))
        return answer, SearchCounts(np.sum(nodes, axis=0), np.sum(leaves, axis=0))

    def allowed_vectors(self, within: RowBits, count: int) -> Vectors:
        """All rows that are allowed, at most `count`; see `Searcher.allowed_vectors`."""
        return self._joined(
            lambda segment: segment.searcher.allowed_vectors(_shifted(within, segment.first_row), count)
        )

    def sampled_vectors(self, count: int) -> Vectors:
        """At most `count` rows, ascending, spread over all segments; see `Searcher.sampled_vectors`."""
        share = -(-count // len(self.segments))
        return self._joined(lambda segment: segment.searcher.sampled_vectors(share))

    def _joined(self, of_segment: Callable[[Segment], Vectors]) -> Vectors:
        rows, vectors = [], []
        for segment in self.segments:
            found, reconstructed = of_segment(segment)
            rows.append(found + segment.first_row)
            vectors.append(reconstructed)
        return np.concatenate(rows), np.concatenate(vectors)


AnySearcher = Searcher | SegmentedSearcher


def merged(
    ids: Sequence[NDArray[np.int64]], distances: Sequence[NDArray[Any]], k: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The k nearest of several lists (q, c) for the same queries, each sorted by (distance, id)."""
    all_ids, all_distances = np.stack(ids), np.stack(distances)
    shape = (all_ids.shape[1], k)
    out = np.empty(shape, np.int64), np.empty(shape, all_distances.dtype)
    merge_answers(all_ids, all_distances, np.empty(len(all_ids), np.int64), *out)
    return out


def _shifted(within: RowBits, first_row: int) -> RowBits:
    """The bits of a segment's rows among those of the index."""
    return within._replace(first=within.first + np.uint64(first_row))


def _in_index(ids: NDArray[np.int64], first_row: int) -> NDArray[np.int64]:
    """Rows of a segment as rows of the index; -1 stays."""
    return ids if first_row == 0 else np.where(ids >= 0, ids + first_row, -1)
