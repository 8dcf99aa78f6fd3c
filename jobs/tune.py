"""Measure what searches find and take on this machine, over limits and candidates, and keep the best.

What a search with `rerank` candidates finds follows from the candidates alone: those of the true k nearest
that are among them come out first. So each limits are searched once, for the most candidates; only times
are measured for each point, in turns, so that noise hits all alike.
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
"""First limits are the default times these powers of √2; how far nodes may be follows."""
BELOW = (0.25, 1.0, 4.0)
"""Limits of the deeper levels are the default times these."""
CANDIDATES = (1, 2, 5, 10, 20, 50, 100)
"""Candidates for each of the k answers."""
MOST_CANDIDATES = 2000
TIMED_QUERIES = 100
TURNS = 4
CLOSE = 1.3
"""Points this many times slower than a better one are timed no further."""
CERTAIN = 1.96
"""Standard deviations of a mean that leave 5 % outside."""
GAIN = 0.001
"""More candidates or nodes that find no more than this are not measured."""


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Queries (q, d) whose true nearest neighbours (q, k) are known; `own` is the id of each one's own row.

    own : (q,) int64, when the queries are rows of the index, whose own row is no answer; otherwise None
    """

    queries: NDArray[Any]
    truth: NDArray[np.int64]
    own: NDArray[np.int64] | None = None


@dataclass(frozen=True, kw_only=True)
class Means:
    """What true neighbours are found with: threads, bytes of memory, and who is told."""

    threads: int
    allowed: int
    progress: Progress


def sampled_questions(index: Index, count: int, k: int, *, seed: int, means: Means) -> Questions:
    """Random rows of the index as queries, and their true neighbours but themselves."""
    source, kept = index.raw_vectors.source, _kept(index)
    random = np.random.default_rng(seed)
    if kept is None:
        rows = np.sort(random.choice(source.rows, min(count, source.rows), replace=False))
    else:
        there = Filter(kept, source.rows, index.rows).allowed
        rows = np.sort(random.choice(there, min(count, len(there)), replace=False))
    queries = source.take(rows)
    found = _exact(index, queries, k + 1, kept, means)
    return Questions(queries=queries, truth=_own(index, without(found, rows, k)), own=_own(index, rows))


def exact_questions(index: Index, queries: NDArray[Any], k: int, *, means: Means) -> Questions:
    """The user's queries, and their true neighbours among the vectors of the index."""
    found = _exact(index, queries, k, _kept(index), means)
    return Questions(queries=queries, truth=_own(index, found))


def _exact(
    index: Index, queries: NDArray[Any], k: int, kept: NDArray[np.uint8] | None, means: Means
) -> NDArray[np.int64]:
    found, _ = exact_neighbours(
        index.raw_vectors.source,
        queries,
        k=k,
        threads=means.threads,
        allowed=means.allowed,
        progress=means.progress,
        metric=index.metric,
        kept=kept,
    )
    return found


def _kept(index: Index) -> NDArray[np.uint8] | None:
    """Bits of the rows that are there, if some are not."""
    manifest = index.manifest
    return None if manifest.live_rows == manifest.all_source_rows else kept_bits(index.path, manifest)


def _own(index: Index, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return rows if index.own_ids is None else index.own_ids.of_rows(rows)


def without(found: NDArray[np.int64], own: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """The first k of each row of `found` that are not the row's own id; `found` has one more at least."""
    order = np.argsort(found == own[:, None], axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1)[:, :k]


def grid(index: Index) -> list[SearchParams]:
    """Parameters to try: around the default ones, as far as the tree has nodes."""
    nodes = index.searcher.level_nodes
    default = index.params
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


def measured_recalls(index: Index, questions: Questions, k: int, *, rerank: bool) -> list[TunedPoint]:
    """What each point finds, its time still unknown; points that add nothing are left out."""
    if questions.truth.shape[1] < k:
        raise SourceError(
            f"ground truth of {questions.truth.shape[1]} neighbours: {k} are needed, or a lower k"
        )
    truth = questions.truth[:, :k]
    counts = [k * times for times in CANDIDATES if k * times <= min(MOST_CANDIDATES, index.rows)]
    counts = (counts or [k]) if rerank else []
    points: list[TunedPoint] = []
    best: dict[tuple[int, int], float] = {}
    for params in grid(index):
        most = max([k, *counts]) + (questions.own is not None)
        found = index.search(questions.queries, most, params).ids
        if questions.own is not None:
            found = without(found, questions.own, most - 1)
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
    index: Index, questions: Questions, k: int, *, rerank: bool, progress: Progress
) -> tuple[TunedPoint, ...]:
    """Measure, and keep the best points of this k beside the manifest; returns them, faster ones first."""
    index.warm()
    points = timed(
        index, questions.queries, k, measured_recalls(index, questions, k, rerank=rerank), progress
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
    """Measure on this machine what searches find and take; the points that find more than every faster one.

    They are kept beside the manifest: `search(queries, k, recall=0.95)` and `time_ms=` choose among them.

    queries : a file or an array (q, d) to measure with; None for rows of the index.
    ground_truth : their true neighbours, a file or an array of ids (q, k); None to compute them.
    sample : rows of the index to measure with; None for 1000, or more for k < 4.
    vectors : where the vectors are, if not where they were at the build.
    rerank : also measure searches that compare candidates with the vectors themselves.
    seed : of the sample.
    memory, progress : as of `build`.
    """
    if ground_truth is not None and queries is None:
        raise SourceError("ground_truth without queries: name the queries whose true neighbours these are")
    threads, allowed = len(os.sched_getaffinity(0)), parse_size(memory)
    with open_index(index, vectors) as opened, make_progress(progress) as listener:
        means = Means(threads=threads, allowed=allowed, progress=listener)
        if queries is None:
            questions = sampled_questions(opened, sample or default_sample(k), k, seed=seed, means=means)
        else:
            block = read_queries(queries, opened.dimension)
            if ground_truth is None:
                questions = exact_questions(opened, block, k, means=means)
            else:
                questions = Questions(queries=block, truth=load_truth(ground_truth, len(block)))
        return tune_opened(opened, questions, k, rerank=rerank, progress=listener)


def default_sample(k: int) -> int:
    """Rows that give a recall to about ±.015: a row says less the fewer neighbours it is asked for."""
    return max(1000, 4000 // k)
