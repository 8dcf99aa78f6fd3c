"""Answer a file of queries, and measure recall and time."""

import io
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.params import SearchParams
from aggtree.engine.search.ranges import RangeAnswer
from aggtree.engine.search.request import Rerank, SearchRequest, chosen_params
from aggtree.engine.search.searcher import Answer
from aggtree.storage.atomic import write_bytes
from aggtree.storage.errors import SourceError
from aggtree.storage.index.opened.row_sets import Within
from aggtree.storage.index.reader import Index
from aggtree.storage.sources.array import ArraySource
from aggtree.storage.sources.base import VectorSource, open_source, read_ground_truth
from aggtree.storage.sources.formats.vecs import write_vecs

RECALL_RANKS = (1, 10, 100)
MAX_SINGLE_QUERIES = 2000  # answered one by one, for the times of single queries
MAX_IVECS_ID = 2**31

Queries = str | os.PathLike[str] | NDArray[np.integer | np.floating]
"""A file of queries, or an array of them (q, d)."""
Truth = str | os.PathLike[str] | NDArray[np.integer]
"""Ids of the true neighbours of each query, nearest first: a file, or an array (q, k)."""


@dataclass(frozen=True, kw_only=True)
class SearchReport:
    """Recall, time and visits of a file of queries; times in milliseconds.

    recall : R@r by r, the fraction of queries whose true nearest neighbour is among the first r answers;
        empty without ground truth.
    found : mean share of the true k nearest among the k answers; None if the ground truth has fewer.
    p50, p99 : of queries sent one by one, on one thread.
    batch : per query, all queries in one call on `threads` threads.
    nodes, leaves : visited per query, on average.
    pruning_ratio : None without pruning.
    rerank : candidates compared with the vectors themselves, 0 for none.
    allowed : rows that answers may come from, None for all.
    """

    queries: int
    k: int
    limits: tuple[int, ...]
    pruning_ratio: float | None
    threads: int
    recall: dict[int, float]
    p50: float
    p99: float
    batch: float
    nodes: float
    leaves: float
    rerank: int = 0
    allowed: int | None = None
    found: float | None = None


def read_queries(queries: Queries, dimension: int) -> NDArray[Any]:
    """All queries of a file or an array, (q, d); they must fit into memory."""
    if isinstance(queries, np.ndarray):
        source: VectorSource = ArraySource(np.atleast_2d(queries))
    else:
        source = open_source(queries)
    with source:
        check_dimension(source, dimension)
        rows = source.read(0, source.rows)
    wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(wrong):
        raise SourceError(f"{source.spec}: query {wrong[0]} has a NaN or infinite value: repair it")
    return rows


def check_dimension(source: VectorSource, dimension: int) -> None:
    """Refuse queries of another dimension than the vectors."""
    if source.dimension != dimension:
        raise SourceError(
            f"{source.spec}: queries of dimension {source.dimension}, the vectors have {dimension}: "
            "use the queries of this data set"
        )


def run_queries(
    index: Index,
    queries: NDArray[Any],
    *,
    k: int = 100,
    params: SearchParams | None = None,
    rerank: Rerank = "auto",
    within: Within | None = None,
    recall: float | None = None,
    time_ms: float | None = None,
    threads: int = 1,
    truth: NDArray[np.int64] | None = None,
) -> tuple[Answer, SearchReport]:
    """Answer all queries in one call and some one by one; compare with the ground truth if there is one.

    The options are those of `Index.search`.
    """
    request = index.resolved(
        SearchRequest(k=k, params=params, rerank=rerank, recall=recall, time_ms=time_ms, threads=threads)
    )
    chosen, rerank = chosen_params(request.params, index.params), int(request.rerank)
    allowed = None if within is None else index.filter(within)
    # Compiled and warm before the clock runs.
    index.search(queries[:1], k, chosen, rerank=rerank, within=allowed)
    singles = []
    for query in queries[:MAX_SINGLE_QUERIES]:
        began = time.perf_counter()
        index.search(query, k, chosen, rerank=rerank, within=allowed)
        singles.append(time.perf_counter() - began)
    began = time.perf_counter()
    answer, counts = index.search_with_counts(queries, k, chosen, threads, rerank=rerank, within=allowed)
    batch = (time.perf_counter() - began) / len(queries)
    p50, p99 = np.percentile(singles, (50, 99)) * 1000
    return answer, SearchReport(
        queries=len(queries),
        k=k,
        limits=chosen.limits,
        pruning_ratio=chosen.pruning_ratio if chosen.pruning_ratio < math.inf else None,
        threads=threads,
        recall={} if truth is None else recall_at(answer.ids, truth),
        p50=float(p50),
        p99=float(p99),
        batch=1000 * batch,
        nodes=float(counts.nodes.mean()),
        leaves=float(counts.leaves.mean()),
        rerank=rerank,
        allowed=None if allowed is None else allowed.count,
        found=None if truth is None or truth.shape[1] < k else share_found(answer.ids, truth[:, :k]),
    )


def recall_at(
    found: NDArray[np.int64], truth: NDArray[np.int64], ranks: tuple[int, ...] = RECALL_RANKS
) -> dict[int, float]:
    """R@r for the ranks up to the number of answers."""
    return {
        rank: float((found[:, :rank] == truth[:, :1]).any(axis=1).mean())
        for rank in ranks
        if rank <= found.shape[1]
    }


def share_found(found: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    """Mean share of each query's true neighbours (q, k) among its answers (q, c)."""
    hits = [np.isin(true, ids).sum() for ids, true in zip(found, truth, strict=True)]
    return float(np.mean(hits) / truth.shape[1])


def load_truth(truth: Truth, queries: int) -> NDArray[np.int64]:
    """The ground truth of the given number of queries, (q, k) int64."""
    if isinstance(truth, np.ndarray):
        ids, name = np.asarray(truth, np.int64), f"array {truth.shape}"
        if ids.ndim != 2:
            raise SourceError(f"{name}: expected the ids of true neighbours, (queries, k)")
    else:
        ids, name = read_ground_truth(truth), os.fspath(truth)
    if len(ids) != queries:
        raise SourceError(
            f"{name}: ground truth of {len(ids)} queries for {queries} queries: name the right one"
        )
    return ids


def run_range_queries(
    index: Index,
    queries: NDArray[Any],
    radius: float,
    *,
    params: SearchParams | None = None,
    rerank: bool = False,
    within: Within | None = None,
    threads: int = 1,
) -> tuple[RangeAnswer, float]:
    """All answers within a radius, and milliseconds per query."""
    allowed = None if within is None else index.filter(within)
    index.range_search(queries[:1], radius, params, rerank=rerank, within=allowed)
    began = time.perf_counter()
    found = index.range_search(queries, radius, params, threads, rerank=rerank, within=allowed)
    return found, 1000 * (time.perf_counter() - began) / len(queries)


def save_ranges(path: Path, found: RangeAnswer) -> None:
    """Write starts, ids and distances as arrays of a .npz file."""
    file = io.BytesIO()
    np.savez(file, **found._asdict())
    write_bytes(path, file.getvalue())


def check_output(path: Path, suffixes: tuple[str, ...] = (".ivecs", ".npy")) -> None:
    """Refuse an output file that cannot be written, before the work."""
    if path.suffix not in suffixes:
        raise SourceError(f"{path}: answers are written to {' or '.join(suffixes)} files")
    if not path.parent.is_dir():
        raise SourceError(f"{path}: no directory {path.parent}: make it first")


def save_ids(path: Path, ids: NDArray[np.int64]) -> None:
    """Write ids (q, k) as .ivecs (int32) or .npy (int64)."""
    if path.suffix == ".npy":
        file = io.BytesIO()
        np.save(file, ids)
        write_bytes(path, file.getvalue())
        return
    if ids.max(initial=0) >= MAX_IVECS_ID:
        raise SourceError(f"{path}: id {ids.max()} does not fit the 32 bits of .ivecs: write .npy")
    write_bytes(path, write_vecs(ids.astype(np.int32), "ivecs"))
