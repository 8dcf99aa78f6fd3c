"""The demonstration: real SIFT from a file to answered queries, measured against exact search."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.exact import ExactSearch
from aggtree.jobs.build_index import build
from aggtree.storage.index_reader import open_index
from aggtree.storage.vector_source import open_source

MEMORY = "1GiB"
NEIGHBOURS = 100
BLOCK_ROWS = 10_000


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demonstration found; times in milliseconds per query, on one thread, one by one."""

    index: Path
    rows: int
    queries: int
    recall: dict[int, float]
    tree_ms: float
    exact_ms: float
    build_seconds: float
    bytes_per_vector: float


def exact_neighbours(base: str, queries: NDArray[np.uint8], k: int) -> NDArray[np.int64]:
    """Exact neighbours of every query, reading the base file in blocks."""
    source = open_source(base)
    search = ExactSearch(queries, k)
    for start in range(0, source.rows, BLOCK_ROWS):
        search.add(source.read(start, min(start + BLOCK_ROWS, source.rows)), start)
    ids, _ = search.result()
    return ids


def recall_at(found: NDArray[np.int64], truth: NDArray[np.int64], ranks: tuple[int, ...]) -> dict[int, float]:
    """R@r: the fraction of queries whose true nearest neighbour is among the first r answers."""
    return {rank: float((found[:, :rank] == truth[:, :1]).any(axis=1).mean()) for rank in ranks}


def run_demo(directory: Path) -> DemoResult:
    """Build an index of the embedded descriptors below `directory`, query it, compare with exact search."""
    started = time.perf_counter()
    built = build("demo:base", directory / "photos.index", memory=MEMORY)
    build_seconds = time.perf_counter() - started
    source = open_source("demo:query")
    queries = source.read(0, source.rows)

    with open_index(built.path) as index:
        index.search(queries[:1], k=NEIGHBOURS)
        started = time.perf_counter()
        found = np.concatenate([index.search(query, k=NEIGHBOURS)[0] for query in queries])
        tree_seconds = time.perf_counter() - started
        rows, size = len(index), sum(index.bytes_by_part().values())

    exact_neighbours("demo:base", queries[:1], NEIGHBOURS)
    started = time.perf_counter()
    truth = exact_neighbours("demo:base", queries, NEIGHBOURS)
    exact_seconds = time.perf_counter() - started
    return DemoResult(
        index=built.path,
        rows=rows,
        queries=len(queries),
        recall=recall_at(found, truth, (1, 10, NEIGHBOURS)),
        tree_ms=1000 * tree_seconds / len(queries),
        exact_ms=1000 * exact_seconds / len(queries),
        build_seconds=build_seconds,
        bytes_per_vector=size / rows,
    )
