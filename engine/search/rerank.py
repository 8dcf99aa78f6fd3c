"""Exact distances of the candidates that a tree found, from the vectors themselves."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.exact.neighbours_kernels import FlatVectors, Nearest, rank_candidates
from aggtree.engine.params import METRICS, Metric
from aggtree.engine.search.searcher import Answer
from aggtree.engine.simd.intrinsics import compiled_entry

# Pairs of a query and a row that are ranked at once.
BLOCK_CANDIDATES = 1 << 19


class Reranker:
    """Ranks candidates by their exact distance to queries; safe to use from several threads.

    metric : see `ExactSearch`
    """

    def __init__(self, metric: Metric = "l2") -> None:
        self._kind = METRICS.index(metric)
        self._entries: dict[Any, Callable[..., None]] = {}

    def nearest(
        self,
        queries: ArrayLike,
        vectors: FlatVectors,
        candidates: NDArray[np.int64],
        k: int,
        *,
        places: NDArray[np.int64] | None = None,
        threads: int = 1,
    ) -> Nearest:
        """The k nearest of the candidates of each query, sorted by (distance, id); -1 and inf for none.

        queries : (d,) or (q, d), integers or floats
        candidates : (q, c) int64 ids; places : rows of `vectors` that hold them, if not the ids themselves
        """
        whole, floats = exact_queries(queries, vectors.values.dtype)
        places = candidates if places is None else places
        nearest = Nearest(np.empty((len(candidates), k)), np.empty((len(candidates), k), np.int64))
        count = max(1, min(threads, len(candidates)))
        ends = [len(candidates) * number // count for number in range(count + 1)]

        def rank_range(start: int, stop: int) -> None:
            self._run(
                None if whole is None else whole[start:stop],
                None if floats is None else floats[start:stop],
                vectors,
                candidates[start:stop],
                places[start:stop],
                self._kind,
                Nearest(nearest.distances[start:stop], nearest.ids[start:stop]),
            )

        if count == 1:
            self._run(whole, floats, vectors, candidates, places, self._kind, nearest)
        else:
            with ThreadPoolExecutor(count) as pool:
                list(pool.map(lambda ends: rank_range(*ends), pairwise(ends)))
        return nearest

    def nearest_rows(
        self,
        queries: ArrayLike,
        vectors: FlatVectors,
        rows: NDArray[np.int64],
        k: int,
        *,
        places: NDArray[np.int64] | None = None,
        threads: int = 1,
    ) -> Nearest:
        """The k nearest of the same rows (r,) for every query; arguments as of `nearest`."""
        block = np.asarray(queries)
        block = block[None, :] if block.ndim == 1 else block
        step = max(1, BLOCK_CANDIDATES // max(1, len(rows)))
        answers = []
        for start in range(0, len(block), step):
            count = min(step, len(block) - start)
            answers.append(
                self.nearest(
                    block[start : start + step],
                    vectors,
                    np.tile(rows, (count, 1)),
                    k,
                    places=np.tile(rows if places is None else places, (count, 1)),
                    threads=threads,
                )
            )
        return Nearest(*(np.concatenate(parts) for parts in zip(*answers, strict=True)))

    def rank(self, *arguments: Any, **options: Any) -> Answer:
        """`nearest` with distances in float32, as answers have them."""
        return as_answer(self.nearest(*arguments, **options))

    def _run(self, whole: Any, floats: Any, vectors: FlatVectors, *rest: Any) -> None:
        """Call the kernel without a dispatch on all types, of which only these two vary."""
        kind = vectors.values.dtype, None if floats is None else floats.dtype
        entry = self._entries.get(kind)
        if entry is None:
            entry = self._entries[kind] = compiled_entry(rank_candidates, (whole, floats, vectors, *rest))
        entry(whole, floats, vectors, *rest)


def as_answer(nearest: Nearest) -> Answer:
    """Exact distances as float32, as in answers."""
    with np.errstate(over="ignore"):
        return Answer(nearest.ids, nearest.distances.astype(np.float32))


def exact_queries(
    queries: ArrayLike, stored: np.dtype[Any]
) -> tuple[NDArray[np.int16] | None, NDArray[Any] | None]:
    """Queries as (q, d) int16 if they are integers that `stored` bytes could hold, or as floats."""
    block = np.asarray(queries)
    block = block[None, :] if block.ndim == 1 else block
    if stored.kind in "ui" and stored.itemsize == 1:
        if block.dtype == stored:
            return block.astype(np.int16), None
        with np.errstate(invalid="ignore"):
            small = block.astype(stored)
        if (small == block).all():
            return small.astype(np.int16), None
    kind = block.dtype if block.dtype in (np.float32, np.float64) else np.dtype(np.float64)
    return None, np.ascontiguousarray(block, kind)
