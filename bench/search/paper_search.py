"""The paper's own search: 8 dictionaries of 256, T = 1, limits L_i = L_0 · L_s^i.

    python -m bench paper_search --data DIR [--prefix photosift500k] [--cache DIR]

For L_0 = 1, 2, 4, ..., 256 and several L_s: R@100, nodes visited, and milliseconds per query on one thread
(the paper's "search quality", "nodes visited" and "performance curve"), with exhaustive search over the
codes as the line they tend to; and the recall against the number of items retrieved, exhaustively.
`python -m bench numbers` draws the curves from the recorded line.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from aggtree.engine.params import SearchParams, TreeParams, parse_words
from aggtree.engine.search.searcher import Searcher
from aggtree.engine.tree.layout import build_tree
from aggtree.storage.sources.base import read_ground_truth
from bench import record
from bench.data.data_sets import read_vectors
from bench.search.search import learned, recall

K = 100
STARTS = tuple(2**power for power in range(9))
GROWTHS = (1.0, 1.25, 1.5, 2.0)
RETRIEVED = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
TURNS = 3
MAX_LIMIT = 1 << 20


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench paper_search", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--prefix", default="photosift500k")
    parser.add_argument("--words", type=parse_words, default=parse_words("256x8"))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--growths", type=float, nargs="+", default=GROWTHS, help="values of L_s")
    parser.add_argument("--cache", type=Path, help="keep dictionaries and codes here")
    return parser.parse_args(arguments)


def limits_of(start: int, growth: float, levels: int) -> SearchParams:
    """L_i = L_0 · L_s^i, cut where it would not matter any more."""
    paper = SearchParams.paper(start=start, growth=growth, levels=levels)
    return SearchParams(limits=tuple(min(limit, MAX_LIMIT) for limit in paper.limits))


def point(
    searcher: Searcher, queries: np.ndarray, truth: np.ndarray, start: int, growth: float
) -> dict[str, Any]:
    """One L_0 and L_s: recall, nodes and leaves per query, milliseconds in a batch."""
    params = limits_of(start, growth, searcher.dictionaries.layout.levels)
    answer, counts = searcher.search_with_counts(queries, K, params)
    taken = []
    for _ in range(TURNS):
        began = time.perf_counter()
        searcher.search(queries, K, params)
        taken.append(time.perf_counter() - began)
    return {
        "L_0": start,
        "L_s": growth,
        "recall": [recall(answer.ids, truth, depth) for depth in (1, 10, K)],
        "nodes": float(counts.nodes.mean()),
        "leaves": float(counts.leaves.mean()),
        "batch_ms": 1000 * min(taken) / len(queries),
    }


def exhaustive(searcher: Searcher, queries: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """R@r for the numbers of items retrieved, all leaves scored."""
    depths = [depth for depth in RETRIEVED if depth <= len(searcher.tree.ids)]
    began = time.perf_counter()
    ids = searcher.search(queries, depths[-1], SearchParams.unlimited()).ids
    taken = 1000 * (time.perf_counter() - began) / len(queries)
    return {"retrieved": depths, "recall": [recall(ids, truth, r) for r in depths], "batch_ms": taken}


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    queries = read_vectors(options.data, options.prefix, "query")[: options.queries].astype(np.float32)
    truth = read_ground_truth(options.data / f"{options.prefix}_groundtruth.ivecs")[: options.queries]
    with threadpool_limits(1):
        codes, dictionaries, ranges = learned(options)
        ids = np.arange(len(codes), dtype=np.uint32)
        tree = build_tree(codes, ids, dictionaries, TreeParams(bucket=1), ranges)
        searcher = Searcher(tree, dictionaries)
        points = [
            point(searcher, queries, truth, start, growth) for growth in options.growths for start in STARTS
        ]
        every = exhaustive(searcher, queries[:200], truth[:200])
    size = sum(getattr(tree, name).nbytes for name in tree._fields) / len(codes)
    shown = {name: value for name, value in vars(options).items() if name not in ("data", "cache")}
    record.write("paper_search", shown, {"points": points, "exhaustive": every, "bytes_per_vector": size})
    return 0
