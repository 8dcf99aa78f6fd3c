"""Exact nearest neighbours by a scan over streamed base vectors, for data larger than memory."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.exact.neighbours import ExactSearch
from aggtree.engine.params import Metric
from aggtree.engine.search.searcher import Answer
from aggtree.jobs.planning.costs import DRIVER_BYTES
from aggtree.jobs.running.cores import usable_cores
from aggtree.jobs.running.job_run import DEFAULT_MEMORY
from aggtree.jobs.running.memory import MIB, format_size, parse_size
from aggtree.jobs.running.progress import Progress, ProgressChoice, make_progress
from aggtree.jobs.running.streams import Source, as_dask_array, opened_source, read_in_order
from aggtree.jobs.running.tasks import single_threaded_blas
from aggtree.jobs.search import Queries, read_queries
from aggtree.storage.errors import MemoryBudgetError, SourceError
from aggtree.storage.keywords import explain_keywords
from aggtree.storage.row_bits import unpacked
from aggtree.storage.sources.base import VectorSource
from aggtree.storage.sources.ids import Ids, IdSource, open_ids

THREAD_BYTES = 48 * MIB  # products of a block and the rows they came from, as float32
MAX_BLOCK_BYTES = 64 * MIB


@explain_keywords
def exact(
    source: Source,
    queries: Queries,
    *,
    k: int = 100,
    metric: Metric = "l2",
    ids: Ids | None = None,
    threads: int | None = None,
    memory: str | int = DEFAULT_MEMORY,
    progress: ProgressChoice = None,
) -> Answer:
    """The exact k nearest rows of each query, without an index: ids (q, k) int64, distances (q, k) float32.

    The rows are streamed, so they may be larger than memory.

    source, ids, metric, progress : as in `build`. queries : a file or an array (q, d).
    threads : None for all cores. memory : limit for this process, such as `"4GiB"`.
    """
    own_ids = None if ids is None else open_ids(ids)
    with opened_source(source) as base, make_progress(progress) as listener:
        block = read_queries(queries, base.dimension)
        found = exact_neighbours(
            base,
            block,
            k=k,
            threads=threads or usable_cores(),
            allowed=parse_size(memory),
            progress=listener,
            ids=own_ids,
            metric=metric,
        )
    return Answer(*found)


def exact_neighbours(
    source: VectorSource,
    queries: NDArray[Any],
    *,
    k: int,
    threads: int,
    allowed: int,
    progress: Progress,
    ids: IdSource | None = None,
    metric: Metric = "l2",
    kept: NDArray[np.uint8] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Ids (q, k) int64 and distances (q, k) float32 of the k nearest rows of each query.

    Each thread answers its share of the queries; the rows are read once, in blocks that fit `allowed`.
    ids : own ids of the rows, which are returned instead of row numbers.
    metric : see ExactSearch.
    kept : bits of the rows to search; None for all.
    """
    if ids is not None and ids.rows != source.rows:
        raise SourceError(f"{ids.spec}: {ids.rows:,} ids for {source.rows:,} vectors of {source.spec}")
    threads = max(1, min(threads, len(queries)))
    block_rows = exact_block_rows(source, queries, k=k, threads=threads, allowed=allowed)
    ends = [len(queries) * number // threads for number in range(threads + 1)]
    searches = [ExactSearch(queries[low:high], k, metric) for low, high in pairwise(ends)]
    ranges = [(start, min(start + block_rows, source.rows)) for start in range(0, source.rows, block_rows)]
    progress.begin("exact", source.rows)
    before = [0]  # rows that may be answers before each block
    with single_threaded_blas(), ThreadPoolExecutor(threads) as pool:
        blocks = read_in_order(as_dask_array(source, block_rows), ranges)
        for (start, _), rows in zip(ranges, blocks, strict=True):
            some = rows if kept is None else rows[unpacked(kept, start, start + len(rows))]
            list(pool.map(ExactSearch.add, searches, [some] * threads, [before[-1]] * threads))
            before.append(before[-1] + len(some))
            progress.advance(len(rows))
    progress.end()
    found, distances = zip(*(search.result() for search in searches), strict=True)
    rows = np.concatenate(found)
    if kept is not None:
        rows = _numbered(rows, kept, before, ranges)
    return rows if ids is None else ids.take(rows), np.concatenate(distances)


def _numbered(
    places: NDArray[np.int64], kept: NDArray[np.uint8], before: list[int], ranges: list[tuple[int, int]]
) -> NDArray[np.int64]:
    """Row numbers from positions among the kept rows; -1 stays.

    before : rows that are kept before each of the ranges.
    """
    rows = np.full(places.shape, -1, np.int64)
    for number, (start, stop) in enumerate(ranges):
        inside = (places >= before[number]) & (places < before[number + 1])
        rows[inside] = start + np.flatnonzero(unpacked(kept, start, stop))[places[inside] - before[number]]
    return rows


def exact_block_rows(
    source: VectorSource, queries: NDArray[Any], *, k: int, threads: int, allowed: int
) -> int:
    """Rows to read at a time; MemoryBudgetError when not even a few fit."""
    row_bytes = source.dimension * source.dtype.itemsize
    fixed = DRIVER_BYTES + threads * THREAD_BYTES + len(queries) * (16 * k + 8 * source.dimension)
    room = min(MAX_BLOCK_BYTES, (allowed - fixed) // 3)
    if room < 100 * row_bytes:
        needed = -(-(fixed + 300 * row_bytes) // MIB)
        raise MemoryBudgetError(
            f"{format_size(allowed)} of memory are not enough for exact search: allow {needed}MiB"
        )
    return int(room // row_bytes)
