"""Recall and time of filtered, re-ranked search on one thread, beside brute force within the filter.

    python -m bench filters --data DIR [--prefix photosift500k] [--index DIR]

DIR holds PREFIX_base and PREFIX_query (bvecs). Filters allow random rows, a range of rows, and rows near
one another (the nearest rows of a vector of the base), which most queries are far from.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import aggtree
from aggtree.engine.exact.neighbours import ExactSearch
from aggtree.engine.search.filters import Filter
from bench import record
from bench.data.data_sets import read_vectors

K = 10
CANDIDATES = 100
SHARES = (0.001, 0.01, 0.02, 0.05, 0.2, 0.5)
TURNS = 3


def filters(base: np.ndarray) -> dict[tuple[str, float], Filter]:
    random = np.random.default_rng(0)
    rows = len(base)
    order = np.argsort(((base.astype(np.float32) - base[rows // 3]) ** 2).sum(axis=1))
    made = {}
    for share in SHARES:
        count = round(share * rows)
        made["random", share] = Filter.of_rows(random.permutation(rows)[:count], rows)
        made["range", share] = Filter.of_rows(np.arange(rows // 2, rows // 2 + count), rows)
        made["near one another", share] = Filter.of_rows(order[:count], rows)
    return made


def measure(index: aggtree.Index, base: np.ndarray, queries: np.ndarray, within: Filter) -> dict[str, Any]:
    exact = ExactSearch(queries, K)
    exact.add(base[within.allowed], 0)
    truth = within.allowed[exact.result()[0]]
    seconds = []
    for _ in range(TURNS):
        began = time.perf_counter()
        answer, counts = index.search_with_counts(queries, K, rerank=CANDIDATES, within=within)
        seconds.append(time.perf_counter() - began)
    hits = [len(np.intersect1d(found, true)) for found, true in zip(answer.ids, truth, strict=True)]
    return {
        "allowed": within.count,
        "recall_10": float(np.mean(hits)) / K,
        "recall_1": float((answer.ids[:, 0] == truth[:, 0]).mean()),
        "batch_ms": 1e3 * min(seconds) / len(queries),
        "leaves": float(counts.leaves.mean()),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench filters", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--prefix", default="photosift500k")
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--index", type=Path, help="keep the index here; used again when it is there")
    options = parser.parse_args(arguments)
    source = options.data / f"{options.prefix}_base.bvecs"
    base, queries = (read_vectors(options.data, options.prefix, name) for name in ("base", "query"))
    queries = queries[: options.queries]
    with tempfile.TemporaryDirectory() as folder:
        built = options.index if options.index and options.index.exists() else None
        place = built or aggtree.build(source, options.index or f"{folder}/index", memory=options.memory).path
        with aggtree.open(place, vectors=source) as index, threadpool_limits(1):
            index.warm()
            points = [
                {"filter": kind, "share": share, **measure(index, base, queries, within)}
                for (kind, share), within in filters(base).items()
            ]
    parameters = {"prefix": options.prefix, "rows": len(base), "queries": len(queries), "rerank": CANDIDATES}
    record.write("filters", parameters, {"points": points})
    return 0
