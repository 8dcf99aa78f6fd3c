"""Search in an A-Tree: level by level, keeping the nearest nodes of each.

Level 1 scores every node, keeps the `limits[0]` nearest, scans their leaves and scores their children;
of these it keeps the `limits[1]` nearest at level 2, and so on. The distance to a node or a leaf with
reconstruction x̂ is ‖q‖² + ‖x̂‖² - 2 q·x̂, where ‖x̂‖² is stored and q·x̂ is a sum of one look-up per label in
the query's distance tables (ADC tables).

A `Searcher` may be used from several threads at once.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.dictionaries import SHORT_WORDS, Dictionaries
from aggtree.engine.params import SearchParams
from aggtree.engine.scan.first_level import (
    ONE_STAGE,
    REGIONS,
    FirstGroups,
    byte_words,
    group_probes,
    group_pruning_ratio,
    prepare,
    regions,
)
from aggtree.engine.scan.records import (
    LABELS,
    ByteWords,
    PlaneTables,
    RowBits,
    Scratch,
    SearchPlan,
    TableWords,
)
from aggtree.engine.scan.scratch import make_plane_tables, make_scratch, sieve_index
from aggtree.engine.scan.table_kernels import distance_tables
from aggtree.engine.search.filters import ALL_ROWS
from aggtree.engine.search.plane_search_kernels import search_planes
from aggtree.engine.search.reconstruction import find_leaves, leaf_vectors
from aggtree.engine.search.request import check_queries, chosen_params, default_plane_search, default_search
from aggtree.engine.search.search_kernels import search_tree
from aggtree.engine.simd.instructions.products import TILE_ROWS
from aggtree.engine.simd.instructions.sieve import CAN_SIEVE
from aggtree.engine.simd.intrinsics import compiled_entry
from aggtree.engine.tree.layout import Tree, check_tree, record_sizes

MAX_LEVEL_NODES = 2**32
# Nodes a list may hold beyond what is kept.
ROOM = 8192
# Different limits and k whose scratch memory is kept.
MAX_PLANS = 8


ThreadMemory = tuple[Scratch] | tuple[Scratch, PlaneTables]
"""What one thread writes to; with tables of their own for leaves in planes."""


class SearchCounts(NamedTuple):
    """How much of the tree each query visited.

    nodes, leaves : (q,) int64, scored
    """

    nodes: NDArray[np.int64]
    leaves: NDArray[np.int64]


class Answer(NamedTuple):
    """Answers nearest first: ids (q, k) int64, squared distances (q, k) float32, padded with -1 and inf."""

    ids: NDArray[np.int64]
    distances: NDArray[np.float32]


class Searcher:
    """Answers queries from a tree and the dictionaries it was built with.

    The tree's arrays may be memory maps; they are read and never copied, but for the labels of level 1.
    one_stage : level-1 nodes that are all scored by each query; more are grouped, see `first_level`
    groups : of this tree's level-1 nodes, if they exist already
    sieve : whether to sieve leaves before they are scored where the processor can; no answer depends on it
    planes : whether the tree's leaves are stored in planes
    """

    _bounded: ClassVar[bool] = True
    """Whether the length of a query enters its distances, so that a very long one would overflow them."""

    def __init__(
        self,
        tree: Tree,
        dictionaries: Dictionaries,
        *,
        one_stage: int = ONE_STAGE,
        groups: FirstGroups | None = None,
        sieve: bool = True,
        planes: bool = False,
    ) -> None:
        layout = dictionaries.layout
        self.planes = planes
        self.norm_bytes = check_tree(tree, layout, planes)
        self.dictionaries = dictionaries
        largest = int(np.diff(tree.level_start).max())
        if largest >= MAX_LEVEL_NODES:
            raise ValueError(f"{largest} nodes in a level: expected fewer than 2**32, use a larger bucket")
        # A private copy: the check of its values must still hold when they are used.
        private = tree._replace(first_labels=tree.first_labels.copy())
        self.tree = Tree(**{name: _read_only(array) for name, array in private._asdict().items()})
        self._scored = self.tree  # what queries are compared with
        self._sizes = record_sizes(layout, self.norm_bytes, planes)
        self._labels = SHORT_WORDS if planes else LABELS
        self._sieved = sieve and CAN_SIEVE
        self._first, words = prepare(self.tree, dictionaries, one_stage, groups, self._labels)
        self._words: TableWords | ByteWords = byte_words(words) if planes else words
        self._first_columns = len(words.start) - self._labels * (layout.levels - 1)
        self._lengths = _read_only(np.ones(self._first.nodes, np.float32))
        self._leaf_base = self._node_centre = np.float32(0)
        self._regions = regions(words, self._first.groups)
        self._plans: dict[tuple[SearchParams, int], tuple[SearchPlan, list[ThreadMemory]]] = {}
        self._entry: Callable[..., None] | None = None

    @property
    def trees(self) -> tuple[Tree, ...]:
        """The tree."""
        return (self.tree,)

    @property
    def leaves(self) -> int:
        """Number of vectors."""
        return len(self.tree.ids)

    @property
    def level_nodes(self) -> NDArray[np.int64]:
        """Nodes of level 0..M, (M + 1,) int64."""
        return np.diff(self.tree.level_start)

    @cached_property
    def default_params(self) -> SearchParams:
        """The parameters used when a call names no limits."""
        first_words = self.dictionaries.layout.words[0]
        return default_plane_search(first_words) if self.planes else default_search(first_words)

    def search(
        self, queries: ArrayLike, k: int = 100, params: SearchParams | None = None, threads: int = 1
    ) -> Answer:
        """Find the k nearest leaves of one query (d,) or several (q, d).

        Returns ids (q, k) int64 and squared distances (q, k) float32, nearest first and equal ones by id;
        where fewer than k were found, -1 and inf.
        """
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

        within : which ids may be answers; see `filters.Filter`
        """
        if k < 1:
            raise ValueError(f"k {k}: expected 1 or more")
        if threads < 1:
            raise ValueError(f"threads {threads}: expected 1 or more")
        block, count, lengths = self.prepared(queries)
        plan, spare = self._plan(chosen_params(params, self.default_params), min(k, self.leaves))
        ids = np.empty((count, k), np.int64)
        distances = np.empty((count, k), np.float32)
        visits = np.empty((count, 2), np.int64)
        ordered, places = self._near_each_other(block, count)
        tiles = len(block) // TILE_ROWS
        if min(threads, tiles) <= 1:
            self._answer(plan, spare, ordered, within, ids, distances, visits)
        else:
            ends = [tiles * number // threads * TILE_ROWS for number in range(threads + 1)]
            with ThreadPoolExecutor(threads) as pool:
                done = [
                    pool.submit(
                        self._answer,
                        plan,
                        spare,
                        ordered[start:stop],
                        within,
                        ids[start:stop],
                        distances[start:stop],
                        visits[start:stop],
                    )
                    for start, stop in pairwise(ends)
                    if start < stop
                ]
            for one in done:
                one.result()
        if places is not None:
            ids, distances, visits = ids[places], distances[places], visits[places]
        units = block[:count, : self.dictionaries.dimension]
        return self._finish(Answer(ids, distances), units, lengths), SearchCounts(visits[:, 0], visits[:, 1])

    def prepared(self, queries: ArrayLike) -> tuple[NDArray[np.float32], int, NDArray[np.float64] | None]:
        """Queries in the layout of the kernel, their number, and what `_finish` needs of them.

        ValueError for queries that cannot be answered, with the reason.
        """
        dimension = self.dictionaries.dimension
        # Of a transform that moves or scales it is not the length of a query itself that counts.
        bounded = self._bounded and self.dictionaries.transform.plain
        block, count = check_queries(queries, dimension, bounded=bounded)
        return block, count, self._scale(block[:count, :dimension])

    def _near_each_other(
        self, block: NDArray[np.float32], count: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64] | None]:
        """The queries of a large batch in an order that puts near ones together, and their new positions.

        Near queries visit the same nodes, which the first of them brings into the cache.
        """
        if self._regions is None or count < REGIONS:
            return block, None
        tables, squares = np.empty((len(block), REGIONS), np.float32), np.empty(len(block), np.float32)
        distance_tables(block, self._regions, tables, squares)
        order = np.argsort(tables[:count].argmin(axis=1), kind="stable")
        ordered, places = block.copy(), np.empty(count, np.int64)
        ordered[:count], places[order] = block[order], np.arange(count)
        return ordered, places

    def allowed_vectors(self, within: RowBits, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Ids (r,) and reconstructions (r, d) of all leaves that are allowed, at most `count`."""
        return self._vectors(find_leaves(self.tree, within, count))

    def sampled_vectors(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Ids (r,), ascending, and reconstructions (r, d) of at most `count` leaves spread over the tree."""
        ids, vectors = self._vectors(np.unique(np.linspace(0, self.leaves - 1, count).astype(np.int64)))
        order = np.argsort(ids)
        return ids[order], vectors[order]

    def _vectors(self, leaves: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        found = leaf_vectors(self.tree, self.dictionaries, self.norm_bytes, leaves, self.planes)
        return self.tree.ids[leaves].astype(np.int64), self.dictionaries.transform.restore(found)

    def _scale(self, queries: NDArray[np.float32]) -> NDArray[np.float64] | None:
        """Transform queries (q, d) in place for the search of the tree; returns what `_finish` needs."""
        return self.dictionaries.transform.apply_to_queries(queries)

    def _finish(
        self, answer: Answer, queries: NDArray[np.float32], lengths: NDArray[np.float64] | None
    ) -> Answer:
        """The answer in the metric of the index.

        Of a query that was pulled in, a row is taken to be as much farther as the query was shortened.
        """
        unit = self.dictionaries.transform.unit
        if lengths is None and unit == 1:
            return answer
        distances = answer.distances.astype(np.float64)
        if lengths is not None:
            distances = (np.sqrt(np.maximum(distances, 0)) + lengths[:, None]) ** 2
        with np.errstate(over="ignore"):
            return Answer(answer.ids, (distances / unit / unit).astype(np.float32))

    def _answer(
        self,
        plan: SearchPlan,
        spare: list[ThreadMemory],
        queries: NDArray[np.float32],
        within: RowBits | None,
        ids: NDArray[np.int64],
        distances: NDArray[np.float32],
        visits: NDArray[np.int64],
    ) -> None:
        """Answer queries on this thread, with scratch memory of its own."""
        try:
            scratch = spare.pop()
        except IndexError:  # between a look at the list and the pop another thread might take the last
            scratch = self._make_memory(plan)
        allowed = ALL_ROWS if within is None else within
        arguments = (self._scored, plan, self._words, queries, *scratch, allowed, ids, distances, visits)
        if self._entry is None:
            self._entry = compiled_entry(search_planes if self.planes else search_tree, arguments)
        self._entry(*arguments)
        spare.append(scratch)

    def _make_memory(self, plan: SearchPlan) -> ThreadMemory:
        """Scratch memory of one thread, in the layout of the kernel."""
        scratch = make_scratch(plan, len(self._words.start))
        if not self.planes:
            return (scratch,)
        return scratch, make_plane_tables(plan, self._lengths, self._leaf_base, self._node_centre)

    def _plan(self, params: SearchParams, k: int) -> tuple[SearchPlan, list[ThreadMemory]]:
        """The plan shared by calls with these parameters and k, and their spare scratch memory.

        Another thread may clear the cache at any time, so the entry is looked up only once.
        """
        known = self._plans.get((params, k))
        if known is None:
            known = self._make_plan(params, k), []
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self._plans[params, k] = known
        return known

    def _make_plan(self, params: SearchParams, k: int) -> SearchPlan:
        wanted = np.array(params.per_level(self.dictionaries.layout.levels), np.int64)
        there = np.maximum(np.diff(self.tree.level_start)[1:], 1)
        kept = np.where(wanted == 0, there, np.minimum(wanted, there))
        # An exact cut leaves `kept`, a cut while filling up to a quarter more: there must be room to go on,
        # and with room for all children of as many nodes as are usually kept, they are cut once.
        return SearchPlan(
            limits=kept,
            pruning_ratio=np.float32(params.pruning_ratio),
            room=2 * kept + ROOM,
            record_sizes=self._sizes,
            norm_bytes=self.norm_bytes,
            first_columns=self._first_columns,
            k=k,
            first=self._first,
            probes=group_probes(self._first, int(kept[0]), params.pruning_ratio),
            group_pruning_ratio=np.float32(
                group_pruning_ratio(self._first, int(kept[0]), params.pruning_ratio)
            ),
            sieved=self._sieved,
            sieve_index=sieve_index(self._sizes),
        )


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A plain read-only view, so that memory maps and arrays share one compiled kernel."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view
