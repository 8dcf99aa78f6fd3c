"""Search in an A-Tree: level by level, keeping the nearest nodes of each.

Level 1 scores every node, keeps the `limits[0]` nearest, scans their leaves and scores their children;
of these it keeps the `limits[1]` nearest at level 2, and so on. The distance to a node or a leaf with
reconstruction x̂ is ‖q‖² + ‖x̂‖² - 2 q·x̂, where ‖x̂‖² is stored and q·x̂ is a sum of one look-up per label.

A `Searcher` may be used from several threads at once.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.dictionaries import Dictionaries
from aggtree.engine.params import SearchParams
from aggtree.engine.search_kernels import (
    DIMENSION_STEP,
    LABELS,
    Scratch,
    SearchPlan,
    look_up_tables,
    search_tree,
)
from aggtree.engine.tree import Tree, check_tree, record_sizes

# Floats of the look-up tables of one block of queries: they stay in the second-level cache.
BLOCK_FLOATS = 1 << 17
MAX_LEVEL_NODES = 2**32


class SearchCounts(NamedTuple):
    """How much each query looked at.

    nodes, leaves : (q,) int64, scored
    """

    nodes: NDArray[np.int64]
    leaves: NDArray[np.int64]


class Answer(NamedTuple):
    """Answers nearest first: ids (q, k) int64 and squared distances (q, k) float32, padded with -1 and inf."""

    ids: NDArray[np.int64]
    distances: NDArray[np.float32]


def default_limits(leaves: int, first_nodes: int) -> tuple[int, ...]:
    """Limits for a tree of so many leaves and level-1 nodes."""
    return (32, 512) if first_nodes <= LABELS else (64, 1024)


class Searcher:
    """Answers queries from a tree and the dictionaries it was built with.

    The tree's arrays may be memory maps; they are read and never copied, but for the labels of level 1.
    """

    def __init__(self, tree: Tree, dictionaries: Dictionaries) -> None:
        layout = dictionaries.layout
        self.norm_bytes = check_tree(tree, layout)
        self.dictionaries = dictionaries
        largest = int(np.diff(tree.level_start).max())
        if largest >= MAX_LEVEL_NODES:
            raise ValueError(f"a level of {largest} nodes: expected fewer than {MAX_LEVEL_NODES}, use a larger bucket")
        # A private copy: the check of its values must still hold when they are used.
        self.tree = Tree(*map(_read_only, tree._replace(first_labels=tree.first_labels.copy())))
        self._sizes = record_sizes(layout, self.norm_bytes)
        self._words = _look_up_words(dictionaries)
        self._plans: dict[tuple[int, ...], SearchPlan] = {}
        self._spare: dict[tuple[tuple[int, ...], int], list[Scratch]] = {}

    @property
    def default_params(self) -> SearchParams:
        """The parameters used when a call names no limits."""
        return SearchParams(limits=default_limits(len(self.tree.ids), len(self.tree.first_labels)))

    def search(
        self, queries: ArrayLike, k: int = 100, params: SearchParams | None = None, threads: int = 1
    ) -> Answer:
        """Find the k nearest leaves of one query (d,) or several (q, d).

        Returns ids (q, k) int64 and squared distances (q, k) float32, nearest first and equal ones by id;
        where fewer than k were found, -1 and inf.
        """
        return self.search_with_counts(queries, k, params, threads)[0]

    def search_with_counts(
        self, queries: ArrayLike, k: int = 100, params: SearchParams | None = None, threads: int = 1
    ) -> tuple[Answer, SearchCounts]:
        """The same, and how many nodes and leaves each query scored."""
        block = check_queries(queries, self.dictionaries.dimension, k)
        if threads < 1:
            raise ValueError(f"threads {threads}: expected 1 or more")
        limits = () if params is None else params.limits
        plan = self._plans.get(limits) or self._make_plan(limits)
        ids = np.empty((len(block), k), np.int64)
        distances = np.empty((len(block), k), np.float32)
        visits = np.empty((len(block), 2), np.int64)

        def answer(start: int, stop: int) -> None:
            self._answer(
                plan, limits, block[start:stop], ids[start:stop], distances[start:stop], visits[start:stop]
            )

        _share(answer, len(block), min(threads, len(block)))
        return Answer(ids, distances), SearchCounts(visits[:, 0], visits[:, 1])

    def _answer(
        self,
        plan: SearchPlan,
        limits: tuple[int, ...],
        queries: NDArray[np.float32],
        ids: NDArray[np.int64],
        distances: NDArray[np.float32],
        visits: NDArray[np.int64],
    ) -> None:
        """Answer a slice of the queries on this thread, a block of tables at a time."""
        step = max(1, BLOCK_FLOATS // self._words.shape[1])
        spare = self._spare.setdefault((limits, ids.shape[1]), [])
        scratch = spare.pop() if spare else _make_scratch(plan, ids.shape[1])
        tables = np.empty((min(step, len(queries)), self._words.shape[1]), np.float32)
        squares = np.empty(len(tables), np.float32)
        for start in range(0, len(queries), step):
            stop = min(start + step, len(queries))
            block, norms = tables[: stop - start], squares[: stop - start]
            look_up_tables(queries[start:stop], self._words, block, norms)
            search_tree(
                self.tree, plan, block, norms, scratch, ids[start:stop], distances[start:stop], visits[start:stop]
            )
        spare.append(scratch)

    def _make_plan(self, limits: tuple[int, ...]) -> SearchPlan:
        params = SearchParams(limits=limits) if limits else self.default_params
        wanted = np.array(params.per_level(self.dictionaries.layout.levels), np.int64)
        there = np.maximum(np.diff(self.tree.level_start)[1:], 1)
        kept = np.where(wanted == 0, there, np.minimum(wanted, there))
        plan = SearchPlan(kept, 2 * kept + 64, self._sizes, self.norm_bytes, self.dictionaries.layout.words[0])
        self._plans[limits] = plan
        return plan


def _read_only(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """A plain read-only view, so that memory maps and arrays share one compiled kernel."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def _look_up_words(dictionaries: Dictionaries) -> NDArray[np.float32]:
    """Words times -2 as columns: those of dictionary 1, then 256 for each other, unused ones zero.

    (d rounded up to 8, columns) float32
    """
    sizes = dictionaries.layout.words
    words = np.zeros(
        (-(-dictionaries.dimension // DIMENSION_STEP) * DIMENSION_STEP, sizes[0] + LABELS * (len(sizes) - 1)),
        np.float32,
    )
    for number in range(len(sizes)):
        first = 0 if number == 0 else sizes[0] + LABELS * (number - 1)
        words[: dictionaries.dimension, first : first + sizes[number]] = -2 * dictionaries.part(number).T
    return words


def _make_scratch(plan: SearchPlan, k: int) -> Scratch:
    room, answers = int(plan.room.max()), max(4 * k, k + 256)
    return Scratch(
        keys=np.empty((2, room), np.uint64),
        sums=np.empty((2, room), np.float32),
        distances=np.empty(answers, np.float32),
        ids=np.empty(answers, np.uint64),
    )


def _share(work: Callable[[int, int], None], count: int, threads: int) -> None:
    """Run work(start, stop) over `count` queries, split evenly over threads."""
    if threads == 1:
        work(0, count)
        return
    ends = [count * number // threads for number in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, *pair) for pair in zip(ends[:-1], ends[1:], strict=True)]:
            done.result()


def check_queries(queries: ArrayLike, dimension: int, k: int) -> NDArray[np.float32]:
    """Queries as (q, d') float32 with d' a multiple of 8, zeros added, or a ValueError that says what is wrong."""
    block = np.asarray(queries)
    if k < 1:
        raise ValueError(f"k {k}: expected 1 or more")
    if block.dtype.kind not in "uif":
        raise ValueError(f"queries of type {block.dtype}: expected integers or floats")
    if block.ndim == 1:
        block = block[None, :]
    if block.ndim != 2 or block.shape[1] != dimension:
        raise ValueError(f"queries of shape {np.shape(queries)}: expected ({dimension},) or (q, {dimension})")
    if len(block) == 0:
        raise ValueError("no queries: expected at least one row")
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(block, np.float32)
    if block.dtype.kind == "f" and not np.isfinite(floats).all():
        row = int(np.flatnonzero(~np.isfinite(floats).all(axis=1))[0])
        raise ValueError(f"query {row} holds NaN, infinity or a number too large for float32")
    rest = -dimension % DIMENSION_STEP
    return np.pad(floats, ((0, 0), (0, rest))) if rest else floats
