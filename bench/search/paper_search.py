"""The paper's own search: 8 dictionaries of 256, T = 1, limits L_i = L_0 · L_s^i; its curves as a picture.

    python -m bench paper_search --data DIR [--prefix photosift500k] [--cache DIR]

For L_0 = 1, 2, 4, ..., 256 and several L_s: R@100, nodes visited, and milliseconds per query on one thread
(the paper's "search quality", "nodes visited" and "performance curve"), with exhaustive search over the
codes as the line they tend to; and the recall against the number of items retrieved, exhaustively. The
picture is drawn from the recorded line alone.
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


def draw(line: dict[str, Any], path: Path) -> None:
    """The paper's four pictures from a recorded line."""
    from matplotlib.figure import Figure

    results, prefix = line["results"], line["parameters"]["prefix"]
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    quality, visited, speed, retrieved = figure.subplots(2, 2).ravel()
    for growth in sorted({found["L_s"] for found in results["points"]}):
        mine = [found for found in results["points"] if found["L_s"] == growth]
        starts, recalls = [found["L_0"] for found in mine], [found["recall"][2] for found in mine]
        label = f"$L_s$ = {growth:g}"
        quality.plot(starts, recalls, marker=".", label=label)
        visited.plot(starts, [found["nodes"] + found["leaves"] for found in mine], marker=".", label=label)
        speed.plot([found["batch_ms"] for found in mine], recalls, marker=".", label=label)
    every = results["exhaustive"]
    best = every["recall"][every["retrieved"].index(K)] if K in every["retrieved"] else every["recall"][-1]
    quality.axhline(best, color="grey", linestyle=":", label="exhaustive")
    retrieved.plot(every["retrieved"], every["recall"], marker=".", label="8 bytes, exhaustive")
    labels = {
        quality: ("Search quality", "$L_0$", "R@100"),
        visited: ("Nodes and leaves visited per query", "$L_0$", "visited"),
        speed: ("Performance curve, one thread", "ms per query", "R@100"),
        retrieved: ("Recall against items retrieved", "items retrieved", "recall"),
    }
    for axes, (title, x, y) in labels.items():
        axes.set(title=title, xlabel=x, ylabel=y, xscale="log")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    visited.set_yscale("log")
    figure.suptitle(f"{prefix}: limits $L_i = L_0 L_s^i$, T = 1, words {line['parameters']['words']}")
    figure.savefig(path)


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
    draw(record.read("paper_search")[-1], record.RESULTS / f"paper_search_{options.prefix}.svg")
    return 0
