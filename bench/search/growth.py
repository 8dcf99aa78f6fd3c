"""How the time of a query grows with the index: indexes of several sizes at equal recall, on one thread.

    python -m bench growth --queries SOURCE --index A.index B.index ... --truth A.npy B.npy ... [--target 0.9]

Each index has its own exact neighbours, as `aggtree exact SOURCE QUERIES -k 1 --out A.npy` writes them.
Each is searched with the smallest pruning ratio whose R@100 reaches the target, and with the default limits
of its size below the first level; all are timed in alternating turns. Growth is relative to the smallest
index.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import aggtree
from aggtree.jobs.search import load_truth, read_queries
from bench import record
from bench.search.search import K, least_effort, measure, recall, with_effort
from bench.search.ten_million import EFFORTS, tree_search


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench growth", description=__doc__)
    parser.add_argument("--queries", required=True)
    parser.add_argument("--index", type=Path, nargs="+", required=True)
    parser.add_argument("--truth", type=Path, nargs="+", required=True)
    parser.add_argument("--target", type=float, default=0.9)
    options = parser.parse_args(arguments)
    if len(options.index) != len(options.truth):
        parser.error("as many files of exact neighbours as indexes, in the same order")
    return options


def facts(index: aggtree.Index, queries: np.ndarray, truth: np.ndarray, effort: int) -> dict[str, Any]:
    """What is known of an index at an effort, but for its times."""
    default = index.searcher.default_params
    params = with_effort(index, effort)
    answer, counts = index.search_with_counts(queries, K, params, rerank=0)
    needed = sum(size for part, size in index.bytes_by_part().items() if part != "codes.zarr")
    own = index.search(queries, K, default, rerank=0)
    return {
        "rows": len(index),
        "words": list(index.layout.words),
        "bytes_per_vector": needed / len(index),
        "limits": list(params.limits),
        "reach": params.pruning_ratio if params.pruning_ratio < math.inf else None,
        "recall": [recall(answer.ids, truth, depth) for depth in (1, 10, K)],
        "nodes": float(counts.nodes.mean()),
        "leaves": float(counts.leaves.mean()),
        "default_limits": list(default.limits),
        "default_reach": default.pruning_ratio if default.pruning_ratio < math.inf else None,
        "default_recall": [recall(own.ids, truth, depth) for depth in (1, 10, K)],
    }


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    found, searches = {}, {}
    with threadpool_limits(1):
        for path, truth_path in zip(options.index, options.truth, strict=True):
            index = aggtree.open(path)
            queries = read_queries(options.queries, index.dimension).astype(np.float32)
            truth = load_truth(truth_path, len(queries))
            index.warm()
            name = str(len(index))
            effort, searches[name] = least_effort(EFFORTS, tree_search(index), queries, truth, options.target)
            found[name] = facts(index, queries, truth, effort)
        for name, times in measure(searches, queries).items():
            found[name].update(times)
    smallest = found[min(found, key=int)]
    for point in found.values():
        point["growth"] = {kind: point[kind] / smallest[kind] for kind in ("batch_ms", "single_p50_ms")}
    record.write("growth", {"queries": options.queries, "target": options.target}, {"indexes": found})
    return 0
