"""Accuracy of tuning: tune on half of the queries, measure on the other half.

    python -m bench tuning --data DIR [--prefix photosift500k] [--index DIR]

DIR holds PREFIX_base, PREFIX_query (bvecs) and PREFIX_groundtruth.ivecs. One half may by chance be easier
than the other, so the same choice is also made on many random halves: the mean difference is the bias of
tuning, the rest is chance. `sampled` is the command without queries: it tunes on the default number of rows
of the index and measures on as many others.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import aggtree
from aggtree.jobs.running.progress import Progress, make_progress
from aggtree.jobs.search import share_found
from aggtree.jobs.tune import QuerySet, Resources, default_sample, sampled_queries, tune_opened, without
from aggtree.storage.index.tuning import point_to_json
from aggtree.storage.sources.base import read_ground_truth
from bench import record
from bench.data.data_sets import read_vectors

KS = (1, 10)
TARGETS = (0.7, 0.8, 0.9, 0.95, 0.98)
SINGLE = 300
HALVES = 200


def single_ms(index: aggtree.Index, queries: np.ndarray, k: int, recall: float) -> float:
    taken = []
    for query in queries[:SINGLE]:
        began = time.perf_counter()
        index.search(query, k, recall=recall)
        taken.append(time.perf_counter() - began)
    return 1e3 * float(np.median(taken))


def largest_differences(points: list[dict[str, Any]]) -> dict[str, float]:
    """By k. A recall r of one neighbour is known from q queries to ± √(r (1 - r) / q) only."""
    differences = [(point["k"], abs(point["recall"] - point["held_out_recall"])) for point in points]
    return {f"k {k}": max(difference for other, difference in differences if other == k) for k in KS}


def differences_by_halves(
    index: aggtree.Index, k: int, queries: np.ndarray, truth: np.ndarray
) -> dict[str, dict[str, float]]:
    """For each target what the chosen point promises on a random half, less what it finds on the other."""
    points = index.tuning.points[k]
    found = [index.search(queries, k, point.params, rerank=point.rerank).ids for point in points]
    hits = [(ids[:, :, None] == truth[:, None, :k]).any(axis=2).mean(axis=1) for ids in found]
    shares = np.array(hits)
    random = np.random.default_rng(0)
    made: dict[str, list[float]] = {str(target): [] for target in TARGETS}
    for _ in range(HALVES):
        order = random.permutation(len(queries))
        promised = shares[:, order[::2]].mean(axis=1)
        held_out = shares[:, order[1::2]].mean(axis=1)
        for target in TARGETS:
            # Points are sorted by time: the fastest that reaches the target.
            reaching = np.flatnonzero(promised >= target)
            if len(reaching):
                made[str(target)].append(float(promised[reaching[0]] - held_out[reaching[0]]))
    return {
        target: {
            "mean": float(np.mean(values)),
            "deviation": float(np.std(values)),
            "within_02": float(np.mean(np.abs(values) <= 0.02)),
        }
        for target, values in made.items()
        if values
    }


def held_out(index: aggtree.Index, k: int, tuned: QuerySet, other: QuerySet, bar: Progress) -> list[Any]:
    """For each target the point that tuning with `tuned` chooses, and its recall and time for `other`."""
    began = time.perf_counter()
    measured = tune_opened(index, tuned, k, rerank=True, progress=bar)
    seconds = time.perf_counter() - began
    points = []
    for target in (target for target in TARGETS if measured[-1].recall >= target):
        point = index.tuning.choose(k, target, None)
        wanted = k + (other.own is not None)
        found = index.search(
            other.queries, wanted, point.params, rerank=point.rerank and max(point.rerank, wanted)
        )
        ids = found.ids if other.own is None else without(found.ids, other.own, k)
        points.append(
            {
                "k": k,
                "target": target,
                **point_to_json(point),
                "held_out_recall": share_found(ids, other.truth[:, :k]),
                "held_out_ms": single_ms(index, other.queries, k, target),
                "tuning_seconds": seconds,
            }
        )
    return points


def sampled_halves(index: aggtree.Index, k: int, bar: Progress) -> tuple[QuerySet, QuerySet]:
    """As many rows as the command takes by default, and as many others."""
    resources = Resources(threads=1, allowed=1 << 30, progress=bar)
    both = sampled_queries(index, 2 * default_sample(k), k, seed=0, resources=resources)
    assert both.own is not None
    first, second = (
        QuerySet(queries=both.queries[half::2], truth=both.truth[half::2], own=both.own[half::2])
        for half in (0, 1)
    )
    return first, second


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench tuning", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--prefix", default="photosift500k")
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--index", type=Path, help="keep the index here; used again when it is there")
    options = parser.parse_args(arguments)
    source = options.data / f"{options.prefix}_base.bvecs"
    queries = read_vectors(options.data, options.prefix, "query")
    truth = read_ground_truth(options.data / f"{options.prefix}_groundtruth.ivecs")
    tuned, other = (QuerySet(queries=queries[half::2], truth=truth[half::2]) for half in (0, 1))
    points: list[Any] = []
    sampled: list[Any] = []
    halves = {}
    with tempfile.TemporaryDirectory() as folder:
        built = options.index if options.index and options.index.exists() else None
        place = built or aggtree.build(source, options.index or f"{folder}/index", memory=options.memory).path
        with aggtree.open(place, vectors=source) as index, threadpool_limits(1), make_progress(False) as bar:
            for k in KS:
                points += held_out(index, k, tuned, other, bar)
                halves[f"k {k}"] = differences_by_halves(index, k, queries, truth)
                sampled += held_out(index, k, *sampled_halves(index, k, bar), bar)
    results = {
        "points": points,
        "largest_difference": largest_differences(points),
        "halves": halves,
        "sampled": sampled,
        "largest_sampled_difference": largest_differences(sampled),
    }
    record.write("tuning", {"prefix": options.prefix, "queries": len(queries)}, results)
    return 0
