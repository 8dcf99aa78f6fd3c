"""Exact distances of the candidates that a tree found, from the vectors themselves."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.exact.neighbours_kernels import FlatVectors, Nearest
from aggtree.engine.exact.ranking_kernels import BFLOAT16, FLOAT16, PLAIN, FloatQueries, rank_candidates
from aggtree.engine.params import METRICS, Metric
from aggtree.engine.search.searcher import Answer
from aggtree.engine.simd.intrinsics import compiled_entry

HALF_ULP = 2.0**-24
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
        whole, exact = exact_queries(queries, vectors.values.dtype)
        vectors = vectors._replace(values=_read_only(vectors.values))
        places = candidates if places is None else places
        nearest = Nearest(np.empty((len(candidates), k)), np.empty((len(candidates), k), np.int64))
        count = max(1, min(threads, len(candidates)))
        ends = [len(candidates) * number // count for number in range(count + 1)]

        def rank_range(start: int, stop: int) -> None:
            self._run(
                None if whole is None else whole[start:stop],
                None if exact is None else exact[start:stop],
                vectors,
                candidates[start:stop],
                places[start:stop],
                Nearest(nearest.distances[start:stop], nearest.ids[start:stop]),
            )

        if count == 1:
            rank_range(0, len(candidates))
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

    def _run(
        self,
        whole: NDArray[np.int16] | None,
        exact: NDArray[Any] | None,
        vectors: FlatVectors,
        candidates: NDArray[np.int64],
        places: NDArray[np.int64],
        nearest: Nearest,
    ) -> None:
        """Call the kernel without a dispatch on all types, of which only these two vary."""
        kept = vectors.values.dtype
        floats = None if exact is None else float_queries(exact, kept, candidates.shape[1])
        row = None if exact is None or kept == np.float32 else np.empty(vectors.dimension, np.float32)
        arguments = whole, floats, vectors, row, candidates, places, self._kind, nearest
        kind = kept, None if exact is None else exact.dtype
        entry = self._entries.get(kind)
        if entry is None:
            entry = self._entries[kind] = compiled_entry(rank_candidates, arguments)
        entry(*arguments)


def _read_only(values: NDArray[np.generic]) -> NDArray[np.generic]:
    """A plain read-only view: vectors in memory and in mapped files have one compiled kernel."""
    view = np.asarray(values).view()
    view.flags.writeable = False
    return view


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


def float_queries(exact: NDArray[Any], kept: np.dtype[Any], candidates: int) -> FloatQueries:
    """Queries (q, d) float32 or float64 as the kernel takes them, for vectors of a type."""
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(exact, np.float32)
        squares = np.vecdot(rounded, rounded)
    return FloatQueries(
        exact=exact,
        rounded=rounded,
        squares=squares,
        slack=np.float32((2 * exact.shape[1] + 16) * HALF_ULP),
        stored={np.dtype(np.uint16): FLOAT16, np.dtype(np.int16): BFLOAT16}.get(kept, PLAIN),
        near=np.empty(candidates, np.float32),
        sums=np.empty(2, np.float32),
    )
