"""Exact re-ranking on one thread: what it costs, and time at equal R@1 beside Faiss' IndexRefineFlat.

    python -m bench rerank --data DIR [--prefix photosift500k] [--index DIR] [--target 0.94]

DIR holds PREFIX_base, PREFIX_learn, PREFIX_query (bvecs) and PREFIX_groundtruth.ivecs. For each number of
candidates, each system is driven to the least effort whose re-ranked R@1 reaches the target; all are then
timed in turns, so that noise hits all alike, and the fastest of each system counts.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

import aggtree
from aggtree.storage.sources.base import read_ground_truth
from bench import record
from bench.data.data_sets import read_vectors
from bench.search.search import Search, measure, recall, with_effort

K = 10
CANDIDATES = (30, 50, 100, 200)
EFFORTS = (*range(8, 34, 2), 36, 40, 48, 56, 64, 80, 96, 128)
FAISS_INDEX = "IVF2048,PQ8,RFlat"

Maker = Callable[[int, int], Search]


def tree_maker(index: aggtree.Index, *, rerank: bool = True) -> Maker:
    """Searches of the tree by effort and candidates; without `rerank`, for the candidates alone."""

    def make(effort: int, candidates: int) -> Search:
        params = with_effort(index, effort)
        if rerank:
            return lambda queries: index.search(queries, K, params, rerank=candidates).ids
        return lambda queries: index.search(queries, candidates, params, rerank=0).ids

    return make


def faiss_maker(learn: np.ndarray, base: np.ndarray) -> Maker:
    index = faiss.index_factory(base.shape[1], FAISS_INDEX)
    index.train(learn)
    index.add(base)
    prober = faiss.extract_index_ivf(index)

    def make(effort: int, candidates: int) -> Search:
        def search(queries: np.ndarray) -> np.ndarray:
            prober.nprobe = effort
            index.k_factor = candidates / K
            return index.search(queries, K)[1]

        return search

    return make


def reaching(make: Maker, queries: np.ndarray, truth: np.ndarray, target: float) -> dict[int, int]:
    """For each number of candidates the least effort that reaches the target, where one does."""
    found = {}
    for candidates in CANDIDATES:
        for effort in EFFORTS:
            if recall(make(effort, candidates)(queries), truth, 1) >= target:
                found[candidates] = effort
                break
    return found


def summary(points: list[dict[str, Any]]) -> dict[str, Any]:
    """The fastest point of each system, and the ratios that count."""
    best = {
        (system, time_of): min(
            (point for point in points if point["system"] == system), key=lambda point: point[time_of]
        )
        for system in ("aggtree", FAISS_INDEX)
        for time_of in ("batch_ms", "single_ms")
    }
    answer: dict[str, Any] = {}
    for time_of in ("batch_ms", "single_ms"):
        ours, theirs = best["aggtree", time_of], best[FAISS_INDEX, time_of]
        (plain,) = (
            point
            for point in points
            if point["system"] == "candidates alone" and point["candidates"] == ours["candidates"]
        )
        answer[time_of] = {
            "aggtree": ours,
            "faiss": theirs,
            "to_faiss": ours[time_of] / theirs[time_of],
            "to_candidates_alone": ours[time_of] / plain[time_of],
        }
    return answer


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench rerank", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--prefix", default="photosift500k")
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--index", type=Path, help="keep the index here; used again when it is there")
    parser.add_argument("--target", type=float, default=0.94)
    options = parser.parse_args(arguments)
    faiss.omp_set_num_threads(1)
    truth = read_ground_truth(options.data / f"{options.prefix}_groundtruth.ivecs")
    with tempfile.TemporaryDirectory() as folder:
        source = options.data / f"{options.prefix}_base.bvecs"
        built = options.index if options.index and options.index.exists() else None
        place = built or aggtree.build(source, options.index or f"{folder}/index", memory=options.memory).path
        learn, base, queries = (
            read_vectors(options.data, options.prefix, name).astype(np.float32)
            for name in ("learn", "base", "query")
        )
        with aggtree.open(place, vectors=source) as index, threadpool_limits(1):
            makers = {"aggtree": tree_maker(index), FAISS_INDEX: faiss_maker(learn, base)}
            index.warm()
            efforts = {
                (system, candidates): effort
                for system, make in makers.items()
                for candidates, effort in reaching(make, queries, truth, options.target).items()
            }
            searches = {
                (system, candidates): makers[system](effort, candidates)
                for (system, candidates), effort in efforts.items()
            }
            plain = tree_maker(index, rerank=False)
            for (system, candidates), effort in list(efforts.items()):
                if system == "aggtree":
                    efforts["candidates alone", candidates] = effort
                    searches["candidates alone", candidates] = plain(effort, candidates)
            recalls = {key: recall(search(queries), truth, 1) for key, search in searches.items()}
            times = measure(searches, queries)
    points = [
        {"system": key[0], "candidates": key[1], "effort": efforts[key], "recall": recalls[key]}
        | {"batch_ms": times[key]["batch_ms"], "single_ms": times[key]["single_p50_ms"]}
        for key in searches
    ]
    record.write(
        "rerank",
        {"prefix": options.prefix, "rows": len(base), "queries": len(queries), "target": options.target},
        {"points": points, "summary": summary(points)},
    )
    return 0
