"""Search against Faiss on one thread: time per query at equal recall, in batches and one by one.

    python -m bench search --data DIR [--words 2048,256x8] [--prefix photosift500k] [--target 0.94]

DIR holds PREFIX_base, PREFIX_learn, PREFIX_query (bvecs) and PREFIX_groundtruth.ivecs. Dictionaries are
learned on the learn file; --cache DIR keeps them and the codes between runs. Each index is driven to the
least effort that reaches the target R@100, then all are timed in turns, so that noise hits all alike.
"""

import argparse
import time
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

import aggtree
from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.params import SearchParams, TreeParams, parse_words
from aggtree.engine.search.searcher import Searcher
from aggtree.engine.training.annealing import DictionaryAnnealing
from aggtree.engine.tree.layout import build_tree
from aggtree.storage.sources.base import read_ground_truth
from bench import record
from bench.data.data_sets import read_vectors

K = 100
TURNS = 7
SINGLE = 500
FAISS_INDEXES = ("IVF2048,PQ8", "OPQ16_64,IVF2048,PQ16x4fsr")
PROBES = (*range(8, 34, 2), 36, 40, 48, 56, 64, 96, 128)

Search = Callable[[np.ndarray], np.ndarray]
Key = TypeVar("Key", bound=Hashable)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench search", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--prefix", default="photosift500k")
    parser.add_argument("--words", type=parse_words, default=parse_words("2048,256x8"))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--bucket", type=int, default=TreeParams.bucket)
    parser.add_argument("--direct-leaves", type=int, default=TreeParams.direct_leaves)
    parser.add_argument("--deeper", type=int, default=256, help="limit of the levels below the first")
    parser.add_argument("--target", type=float, default=0.94)
    parser.add_argument("--cache", type=Path)
    return parser.parse_args(arguments)


def recall(ids: np.ndarray, truth: np.ndarray, depth: int) -> float:
    """Fraction of queries whose true nearest neighbour is among the first `depth` answers."""
    return float((ids[:, :depth] == truth[:, :1]).any(axis=1).mean())


def learned(options: argparse.Namespace) -> tuple[np.ndarray, Dictionaries, np.ndarray]:
    """Codes of the base file, dictionaries and norm ranges, from the cache if it has them."""
    name = "_".join([options.prefix, *map(str, options.words), str(options.rounds)])
    path = options.cache / f"{name}.npz" if options.cache else None
    if path is None or not path.exists():
        annealing = DictionaryAnnealing(words=options.words, rounds=options.rounds).fit(
            read_vectors(options.data, options.prefix, "learn")
        )
        arrays = {
            "codes": annealing.encode(read_vectors(options.data, options.prefix, "base")),
            "words": annealing.dictionaries.words,
            "ranges": annealing.norm_ranges,
        }
        if path is None:
            return arrays["codes"], annealing.dictionaries, arrays["ranges"]
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **arrays)
    with np.load(path) as stored:
        return stored["codes"], Dictionaries(stored["words"], CodeLayout(options.words)), stored["ranges"]


def with_effort(index: aggtree.Index, first: int) -> SearchParams:
    """What the index would choose, but for at most `first` nodes at level 1, and a pruning ratio to match."""
    default = index.searcher.default_params
    return default.scaled(first / default.limits[0])


def least_effort(
    efforts: tuple[int, ...],
    make: Callable[[int], Search],
    queries: np.ndarray,
    truth: np.ndarray,
    target: float,
) -> tuple[int, Search]:
    """The first effort that reaches the target, or the last one."""
    for effort in efforts:
        search = make(effort)
        if recall(search(queries), truth, K) >= target:
            break
    return effort, search


def faiss_search(index: Any, prober: Any) -> Callable[[int], Search]:
    def make(probes: int) -> Search:
        def search(queries: np.ndarray) -> np.ndarray:
            prober.nprobe = probes
            return index.search(queries, K)[1]

        return search

    return make


def faiss_indexes(options: argparse.Namespace) -> dict[str, Callable[[int], Search]]:
    """A trained and filled index of each kind, as a maker of searches."""
    makers = {}
    learn, base = (
        read_vectors(options.data, options.prefix, "learn").astype(np.float32),
        read_vectors(options.data, options.prefix, "base").astype(np.float32),
    )
    for name in FAISS_INDEXES:
        index = faiss.index_factory(base.shape[1], name)
        index.train(learn)
        index.add(base)
        makers[name] = faiss_search(index, faiss.extract_index_ivf(index))
    return makers


def tree_search(options: argparse.Namespace) -> tuple[Searcher, Callable[[int], Search]]:
    codes, dictionaries, ranges = learned(options)
    params = TreeParams(bucket=options.bucket, direct_leaves=options.direct_leaves)
    ids = np.arange(len(codes), dtype=np.uint32)
    searcher = Searcher(build_tree(codes, ids, dictionaries, params, ranges), dictionaries)

    def make(first: int) -> Search:
        limits = SearchParams(limits=(first, options.deeper))
        return lambda queries: searcher.search(queries, K, limits).ids

    return searcher, make


def measure(
    searches: Mapping[Key, Search], queries: np.ndarray, *, turns: int = TURNS, single: int = SINGLE
) -> dict[Key, dict[str, float]]:
    """Milliseconds per query: the least of several turns for a batch, the median one by one."""
    batches: dict[Key, list[float]] = {key: [] for key in searches}
    singles: dict[Key, list[float]] = {key: [] for key in searches}
    for _ in range(turns):
        for key, search in searches.items():
            start = time.perf_counter()
            search(queries)
            batches[key].append((time.perf_counter() - start) / len(queries))
    for number in range(single):
        query = queries[number % len(queries)][None]
        for key, search in searches.items():
            start = time.perf_counter()
            search(query)
            singles[key].append(time.perf_counter() - start)
    return {
        key: {
            "batch_ms": 1e3 * min(batches[key]),
            "single_p50_ms": 1e3 * float(np.median(singles[key])),
            "single_p20_ms": 1e3 * float(np.quantile(singles[key], 0.2)),
        }
        for key in searches
    }


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    faiss.omp_set_num_threads(1)
    queries, truth = (
        read_vectors(options.data, options.prefix, "query"),
        read_ground_truth(options.data / f"{options.prefix}_groundtruth.ivecs"),
    )
    with threadpool_limits(1):
        searcher, tree = tree_search(options)
        searches, results = {}, {}
        floats = queries.astype(np.float32)
        for name, make in {"tree": tree, **faiss_indexes(options)}.items():
            effort, searches[name] = least_effort(PROBES, make, floats, truth, options.target)
            ids = searches[name](floats)
            results[name] = {
                "effort": effort,
                "recall": [recall(ids, truth, depth) for depth in (1, 10, 100)],
            }
        for name, times in measure(searches, floats).items():
            results[name].update(times)
    limits = SearchParams(limits=(results["tree"]["effort"], options.deeper))
    counts = searcher.search_with_counts(floats, K, limits)[1]
    results["tree"].update(nodes=float(counts.nodes.mean()), leaves=float(counts.leaves.mean()))
    shown = {name: value for name, value in vars(options).items() if name not in ("data", "cache")}
    shown["stray"] = shown.pop("direct_leaves")  # as in older results
    record.write("search", shown, results)
    return 0
