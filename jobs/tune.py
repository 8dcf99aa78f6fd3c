"""Measure recall and time of searches over limits and candidates on this machine; store the Pareto front.

The recall of a search that re-ranks follows from its candidates alone: the true neighbours among them come
first. So the recall of all candidate counts is measured by one search per setting of the limits. Only times
are measured for each point, in turns, so that noise affects all alike.
"""

import math
import os
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.params import SearchParams
from aggtree.engine.search.filters import Filter
from aggtree.engine.search.tuned import TunedPoint, pareto
from aggtree.jobs.exact import exact_neighbours
from aggtree.jobs.running.cores import usable_cores
from aggtree.jobs.running.job_run import DEFAULT_MEMORY
from aggtree.jobs.running.memory import parse_size
from aggtree.jobs.running.progress import Progress, ProgressChoice, make_progress
from aggtree.jobs.search import Queries, Truth, load_truth, read_queries
from aggtree.storage.errors import SourceError
from aggtree.storage.index.live_rows import kept_bits
from aggtree.storage.index.opened.vectors import Vectors
from aggtree.storage.index.reader import Index, open_index
from aggtree.storage.keywords import explain_keywords

STEPS = range(-6, 9)
"""Limits of level 1 are the default times these powers of √2; the pruning ratio follows."""
BELOW = (0.25, 1.0, 4.0)
"""Limits of the deeper levels are the default times these."""
CANDIDATES = (1, 2, 5, 10, 20, 50, 100)
"""Candidates for each of the k answers."""
MOST_CANDIDATES = 2000
TIMED_QUERIES = 100
TURNS = 4
CLOSE = 1.3
"""Points this many times slower than a better one are not timed again."""
CERTAIN = 1.96
"""Half-width of a 95 % confidence interval, in standard errors."""
GAIN = 0.001
"""Candidates or nodes that raise the recall by less than this are not measured."""


@dataclass(frozen=True, kw_only=True)
class QuerySet:
    """Queries (q, d) and their true nearest neighbours (q, k), the ground truth.

    own : (q,) int64, ids of the queries if they are rows of the index, which are then excluded; else None
    """

    queries: NDArray[Any]
    truth: NDArray[np.int64]
    own: NDArray[np.int64] | None = None


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Resources to compute the true neighbours: threads, bytes of memory, and progress."""

    threads: int
    allowed: int
    progress: Progress


def sampled_queries(index: Index, count: int, k: int, *, seed: int, resources: Resources) -> QuerySet:
    """Random rows of the index as queries, and their true neighbours other than themselves."""
    source, kept = index.raw_vectors.source, _kept(index)
    random = np.random.default_rng(seed)
    if kept is None:
        rows = np.sort(random.choice(source.rows, min(count, source.rows), replace=False))
    else:
        there = Filter(kept, source.rows, index.rows).allowed
        rows = np.sort(random.choice(there, min(count, len(there)), replace=False))
    queries = source.take(rows)
    found = _exact(index, queries, k + 1, kept, resources)
    return QuerySet(queries=queries, truth=_own(index, without(found, rows, k)), own=_own(index, rows))


def exact_queries(index: Index, queries: NDArray[Any], k: int, *, resources: Resources) -> QuerySet:
    """The user's queries, and their true neighbours among the vectors of the index."""
    found = _exact(index, queries, k, _kept(index), resources)
    return QuerySet(queries=queries, truth=_own(index, found))


def _exact(
    index: Index, queries: NDArray[Any], k: int, kept: NDArray[np.uint8] | None, resources: Resources
) -> NDArray[np.int64]:
    found, _ = exact_neighbours(
        index.raw_vectors.source,
        queries,
        k=k,
        threads=resources.threads,
        allowed=resources.allowed,
        progress=resources.progress,
        metric=index.metric,
        kept=kept,
    )
    return found


def _kept(index: Index) -> NDArray[np.uint8] | None:
    """Bits of the existing rows; None if all exist."""
    manifest = index.manifest
    return None if manifest.live_rows == manifest.all_source_rows else kept_bits(index.path, manifest)


def _own(index: Index, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return rows if index.own_ids is None else index.own_ids.of_rows(rows)


def without(found: NDArray[np.int64], own: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """The first k of each row of `found` without the row's own id; `found` has at least one more."""
    order = np.argsort(found == own[:, None], axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1)[:, :k]


def grid(index: Index) -> list[SearchParams]:
    """Parameters to try: around the defaults, as far as the tree has nodes."""
    nodes = index.searcher.level_nodes
    default = index.searcher.default_params
    efforts = [default.scaled(2 ** (step / 2)) for step in STEPS]
    # Beyond all nodes of level 1 only the pruning ratio still differs, to no effect.
    largest = int(nodes[1])
    first = {min(params.limits[0], largest): params.pruning_ratio for params in reversed(efforts)}
    first = {
        limit: pruning_ratio if limit < largest else math.inf
        for limit, pruning_ratio in sorted(first.items())
    }
    deeper = [default.limits[-1]]
    if nodes[2:].max(initial=0) > 0:
        deeper = sorted({max(1, round(default.limits[-1] * factor)) for factor in BELOW})
    return [
        SearchParams(limits=(limit, below), pruning_ratio=pruning_ratio)
        for below in deeper
        for limit, pruning_ratio in first.items()
    ]


def measured_recalls(index: Index, query_set: QuerySet, k: int, *, rerank: bool) -> list[TunedPoint]:
    """The recall of each point, its time still unknown; points without a gain are dropped."""
    if query_set.truth.shape[1] < k:
        raise SourceError(
            f"ground truth of {query_set.truth.shape[1]} neighbours: {k} are needed, or a lower k"
        )
    truth = query_set.truth[:, :k]
    counts = [k * times for times in CANDIDATES if k * times <= min(MOST_CANDIDATES, index.rows)]
    counts = (counts or [k]) if rerank else []
    points: list[TunedPoint] = []
    best: dict[tuple[int, int], float] = {}
    for params in grid(index):
        most = max([k, *counts]) + (query_set.own is not None)
        found = index.search(query_set.queries, most, params, rerank=0).ids
        if query_set.own is not None:
            found = without(found, query_set.own, most - 1)
        # Whether each candidate is one of the true neighbours.
        hits = (found[:, :, None] == truth[:, None, :]).any(axis=2) if k <= 16 else _hits(found, truth)
        reached = -1.0
        for candidates in (0, *counts):
            shares = hits[:, : candidates or k].sum(axis=1) / k
            recall, error = float(shares.mean()), CERTAIN * float(shares.std()) / math.sqrt(len(shares))
            known = best.get((candidates, params.limits[-1]), -1.0)
            if candidates > 0 and recall < reached + GAIN:
                continue
            reached = max(reached, recall) if candidates else reached
            if recall >= known + GAIN:
                best[candidates, params.limits[-1]] = recall
                points.append(
                    TunedPoint(
                        limits=params.limits,
                        pruning_ratio=params.pruning_ratio,
                        rerank=candidates,
                        recall=recall,
                        milliseconds=0.0,
                        error=error,
                    )
                )
    return points


def _hits(found: NDArray[np.int64], truth: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each of `found` (q, c) is among the truth (q, k) of its query."""
    hits = [np.isin(candidates, neighbours) for candidates, neighbours in zip(found, truth, strict=True)]
    return np.array(hits)


def timed(
    index: Index, queries: NDArray[Any], k: int, points: list[TunedPoint], progress: Progress
) -> list[TunedPoint]:
    """The points with the median time of queries answered one by one."""
    queries = queries[:TIMED_QUERIES]
    progress.begin("time", len(points) * TURNS, unit="measurements")
    best = [_median_time(index, queries, k, point) for point in points]
    progress.advance(len(points))
    for _ in range(TURNS - 1):
        now = [replace(point, milliseconds=taken) for point, taken in zip(points, best, strict=True)]
        front = pareto(now)
        for number, point in enumerate(now):
            least = next((p.milliseconds for p in front if p.recall >= point.recall), point.milliseconds)
            if point.milliseconds <= CLOSE * least:
                best[number] = min(best[number], _median_time(index, queries, k, point))
        progress.advance(len(points))
    progress.end()
    return [replace(point, milliseconds=taken) for point, taken in zip(points, best, strict=True)]


def _median_time(index: Index, queries: NDArray[Any], k: int, point: TunedPoint) -> float:
    """Milliseconds."""
    taken = []
    index.search(queries[0], k, point.params, rerank=point.rerank)
    for query in queries:
        began = time.perf_counter()
        index.search(query, k, point.params, rerank=point.rerank)
        taken.append(time.perf_counter() - began)
    return 1000 * float(np.median(taken))


def tune_opened(
    index: Index, query_set: QuerySet, k: int, *, rerank: bool, progress: Progress
) -> tuple[TunedPoint, ...]:
    """Measure, store the Pareto front for this k beside the manifest, and return it, fastest first."""
    index.warm()
    points = timed(
        index, query_set.queries, k, measured_recalls(index, query_set, k, rerank=rerank), progress
    )
    return index.keep_tuning(k, points)


@explain_keywords
def tune(
    index: str | os.PathLike[str],
    *,
    k: int = 10,
    queries: Queries | None = None,
    ground_truth: Truth | None = None,
    sample: int | None = None,
    vectors: Vectors | None = None,
    rerank: bool = True,
    seed: int = 0,
    memory: str | int = DEFAULT_MEMORY,
    progress: ProgressChoice = None,
) -> tuple[TunedPoint, ...]:
    """Measure recall and time of searches on this machine; return the Pareto front, fastest first.

    It is stored beside the manifest: `search(queries, k, recall=0.95)` and `time_ms=` choose from it.

    queries : a file or an array (q, d); None to sample rows of the index.
    ground_truth : their true neighbours, a file or an array of ids (q, k); None to compute them.
    sample : number of rows to sample; None for 1000, or more for k < 4.
    vectors : where the vectors are now, if they moved since the build.
    rerank : also measure searches that re-rank candidates by exact distance.
    seed : random seed of the sample.
    memory, progress : as in `build`.
    """
    if ground_truth is not None and queries is None:
        raise SourceError("ground_truth without queries: name the queries whose true neighbours these are")
    threads, allowed = usable_cores(), parse_size(memory)
    with open_index(index, vectors) as opened, make_progress(progress) as listener:
        resources = Resources(threads=threads, allowed=allowed, progress=listener)
        if queries is None:
            query_set = sampled_queries(
                opened, sample or default_sample(k), k, seed=seed, resources=resources
            )
        else:
            block = read_queries(queries, opened.dimension)
            if ground_truth is None:
                query_set = exact_queries(opened, block, k, resources=resources)
            else:
                query_set = QuerySet(queries=block, truth=load_truth(ground_truth, len(block)))
        return tune_opened(opened, query_set, k, rerank=rerank, progress=listener)


def default_sample(k: int) -> int:
    """Rows that give the recall to about ±.015; the fewer neighbours per query, the more rows."""
    return max(1000, 4000 // k)
