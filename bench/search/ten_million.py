"""Generated rows beside Faiss at equal recall: an index built with defaults against IVF16384_HNSW32,PQ8.

    python -m bench ten_million --work DIR [--rows 10000000] [--queries 1000] [--targets 0.9 0.95]

Everything is kept in DIR and used again: the index, the exact neighbours, the Faiss index. Both systems are
driven to the least effort whose R@100 reaches each target, then timed in turns on one thread, in a batch
and one by one. Building uses all cores on both sides, and its seconds are recorded.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

import aggtree
from aggtree.jobs.exact import exact_neighbours
from aggtree.jobs.running.memory import parse_size
from aggtree.jobs.running.progress import make_progress
from aggtree.storage.sources.base import open_source
from bench import record
from bench.search.search import K, Search, faiss_search, least_effort, measure, recall, with_effort

EFFORTS = (*range(2, 24), *range(24, 64, 2), *range(64, 128, 4), *range(128, 512, 32), 512, 768, 1024)
FIRST_QUERY = 10_000_000_000
ADD_ROWS = 200_000


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench ten_million", description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--targets", type=float, nargs="+", default=[0.9, 0.95])
    parser.add_argument("--memory", default="4GiB")
    parser.add_argument("--words", help="sizes of the dictionaries; the default follows from the rows")
    parser.add_argument("--faiss", default="IVF16384_HNSW32,PQ8")
    parser.add_argument("--faiss-train", type=int, default=1_000_000, help="rows Faiss is trained on")
    return parser.parse_args(arguments)


def base_spec(options: argparse.Namespace) -> str:
    return f"synthetic:sift?rows={options.rows}&seed={options.seed}"


def queries_of(options: argparse.Namespace) -> np.ndarray:
    """Rows far beyond the base's, as float32."""
    spec = f"synthetic:sift?rows={options.queries}&seed={options.seed}&first={FIRST_QUERY}"
    with open_source(spec) as source:
        return source.read(0, source.rows).astype(np.float32)


def truth_of(options: argparse.Namespace, queries: np.ndarray) -> np.ndarray:
    """The exact nearest neighbour of each query, (q, 1) int64."""
    path = options.work / f"truth_{options.rows}_{options.queries}.npy"
    if not path.exists():
        with open_source(base_spec(options)) as source, make_progress("auto") as progress:
            ids, _ = exact_neighbours(
                source,
                queries.astype(np.uint8),
                k=1,
                threads=2,
                allowed=parse_size(options.memory),
                progress=progress,
            )
        np.save(path, ids)
    return np.load(path)


def tree_index(options: argparse.Namespace) -> tuple[aggtree.Index, dict[str, Any]]:
    result = aggtree.build(
        base_spec(options),
        options.work / f"aggtree_{options.rows}.index",
        memory=options.memory,
        words=options.words,
        progress="auto",
    )
    index = aggtree.open(result.path)
    needed = sum(size for part, size in index.bytes_by_part().items() if part != "codes.zarr")
    facts = {"bytes_per_vector": needed / len(index), "words": list(index.layout.words)}
    if not result.already_built:
        facts |= {"seconds": result.seconds, "peak": result.peak}
    return index, facts


def blocks(spec: str, stop: int) -> Iterator[np.ndarray]:
    with open_source(spec) as source:
        for start in range(0, stop, ADD_ROWS):
            yield source.read(start, min(start + ADD_ROWS, stop)).astype(np.float32)


def faiss_index(options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    path = options.work / f"faiss_{options.rows}_{options.faiss}.index"
    facts: dict[str, Any] = {}
    if not path.exists():
        began = time.perf_counter()
        index = faiss.index_factory(128, options.faiss)
        index.train(np.concatenate(list(blocks(base_spec(options), min(options.faiss_train, options.rows)))))
        facts["train_seconds"] = time.perf_counter() - began
        for block in blocks(base_spec(options), options.rows):
            index.add(block)
        facts["seconds"] = time.perf_counter() - began
        faiss.write_index(index, str(path))
    return faiss.read_index(str(path)), facts | {"bytes_per_vector": path.stat().st_size / options.rows}


def tree_search(index: aggtree.Index) -> Callable[[int], Search]:
    def make(first: int) -> Search:
        params = with_effort(index, first)
        return lambda queries: index.search(queries, K, params, rerank=0).ids

    return make


def points(
    makers: dict[str, Callable[[int], Search]], queries: np.ndarray, truth: np.ndarray, target: float
) -> dict[str, Any]:
    """Each system at its least effort for a target: effort, R@1/10/100, milliseconds per query."""
    searches, found = {}, {}
    for name, make in makers.items():
        effort, searches[name] = least_effort(EFFORTS, make, queries, truth, target)
        ids = searches[name](queries)
        found[name] = {"effort": effort, "recall": [recall(ids, truth, depth) for depth in (1, 10, K)]}
    for name, times in measure(searches, queries).items():
        found[name].update(times)
    return found


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    queries = queries_of(options)
    index, facts = tree_index(options)
    truth = truth_of(options, queries)
    rival, rival_facts = faiss_index(options)
    faiss.omp_set_num_threads(1)
    makers = {
        "aggtree": tree_search(index),
        options.faiss: faiss_search(rival, faiss.extract_index_ivf(rival)),
    }
    with index, threadpool_limits(1):
        index.warm()
        at = {str(target): points(makers, queries, truth, target) for target in options.targets}
        default = index.search(queries, K, rerank=0)
    shown = {name: value for name, value in vars(options).items() if name != "work"}
    results = {"aggtree": facts, options.faiss: rival_facts, "points": at}
    results["default_recall"] = [recall(default.ids, truth, depth) for depth in (1, 10, K)]
    record.write("ten_million", shown, results)
    return 0
