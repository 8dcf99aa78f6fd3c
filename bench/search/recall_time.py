"""Recall against time per query: an index built by `aggtree.build` with its defaults, beside Faiss indexes.

    python -m bench recall_time --data DIR [--prefix photosift500k] [--index DIR] [--words SIZES] [--graphs]

DIR holds PREFIX_base, PREFIX_learn, PREFIX_query (bvecs) and PREFIX_groundtruth.ivecs. One thread for all.
Each index is driven through several efforts; all are timed in turns, so that noise hits all alike. With
--graphs also those of hnswlib and usearch that are installed, built on all cores. Bytes per vector are those
of the serialized index, for aggtree of what a query process maps.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

import aggtree
from aggtree.jobs.running.cores import usable_cores
from aggtree.storage.sources.base import read_ground_truth
from bench import record
from bench.data.data_sets import read_vectors, vector_file
from bench.peers.graphs import graph_peers
from bench.search.search import Search, measure, recall, with_effort

K = 100
TURNS = 5
SINGLE = 400
FAISS_INDEXES = ("IVF2048,PQ8", "OPQ16_64,IVF2048,PQ16x4fsr")
PROBES = (4, 8, 16, 32, 64, 128)
FIRST_LIMITS = (4, 8, 16, 32, 64, 128)


def built_index(options: argparse.Namespace, folder: Path) -> tuple[aggtree.Index, dict[str, Any]]:
    """The index of the base file, and what its build took."""
    base = vector_file(options.data, options.prefix, "base")
    result = aggtree.build(
        base, options.index or folder / "index", memory=options.memory, words=options.words
    )
    stages = {stage.name: {"seconds": stage.seconds, "peak": stage.peak} for stage in result.stages}
    index = aggtree.open(result.path)
    needed = sum(size for part, size in index.bytes_by_part().items() if part != "codes.zarr")
    facts = {
        "seconds": result.seconds,
        "peak": result.peak,
        "allowed": result.allowed,
        "stages": stages,
        "words": list(index.layout.words),
        "bytes_per_vector": needed / len(index),
    }
    return index, facts


def tree_searches(index: aggtree.Index) -> dict[int, Search]:
    def search(first: int) -> Search:
        params = with_effort(index, first)
        return lambda queries: index.search(queries, K, params, rerank=0)[0]

    return {first: search(first) for first in FIRST_LIMITS}


def faiss_searches(name: str, learn: np.ndarray, base: np.ndarray) -> tuple[dict[int, Search], float]:
    """Searches by the number of probes, and bytes per vector."""
    index = faiss.index_factory(base.shape[1], name)
    index.train(learn)
    index.add(base)
    prober = faiss.extract_index_ivf(index)

    def search(probes: int) -> Search:
        def run(queries: np.ndarray) -> np.ndarray:
            prober.nprobe = probes
            return index.search(queries, K)[1]

        return run

    size = len(faiss.serialize_index(index)) / len(base)
    return {probes: search(probes) for probes in PROBES}, size


def peers(
    options: argparse.Namespace, learn: np.ndarray, base: np.ndarray
) -> Iterator[tuple[str, dict[int, Search], float]]:
    """The systems beside ours, one built after the other."""
    for name in FAISS_INDEXES:
        yield name, *faiss_searches(name, learn, base)
    if options.graphs:
        yield from graph_peers(base, K, usable_cores())


def measured(
    searches: dict[tuple[str, int], Search], queries: np.ndarray, truth: np.ndarray
) -> list[dict[str, Any]]:
    """Recall and milliseconds per query of each system at each effort."""
    ids = {key: search(queries) for key, search in searches.items()}
    times = measure(searches, queries, turns=TURNS, single=SINGLE)
    return [
        {
            "system": name,
            "effort": effort,
            "recall": [recall(ids[name, effort], truth, depth) for depth in (1, 10, K)],
            "batch_ms": times[name, effort]["batch_ms"],
            "single_ms": times[name, effort]["single_p50_ms"],
        }
        for name, effort in searches
    ]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench recall_time", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--prefix", default="photosift500k")
    parser.add_argument(
        "--words", default=None, help="sizes of the dictionaries; the default follows from the rows"
    )
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--graphs", action="store_true", help="beside hnswlib and usearch, if installed")
    parser.add_argument("--index", type=Path, help="keep the index here; used again when it is there")
    options = parser.parse_args(arguments)
    faiss.omp_set_num_threads(1)
    truth = read_ground_truth(options.data / f"{options.prefix}_groundtruth.ivecs")
    with tempfile.TemporaryDirectory() as folder:
        # Before the vectors are loaded for Faiss: the measured peak is the build's own.
        index, facts = built_index(options, Path(folder))
        learn, base, queries = (
            read_vectors(options.data, options.prefix, name).astype(np.float32)
            for name in ("learn", "base", "query")
        )
        with index, threadpool_limits(1):
            systems, sizes = {"aggtree": tree_searches(index)}, {"aggtree": facts["bytes_per_vector"]}
            for name, efforts, size in peers(options, learn, base):
                systems[name], sizes[name] = efforts, size
            searches = {
                (name, effort): search for name, group in systems.items() for effort, search in group.items()
            }
            points = measured(searches, queries, truth)
    record.write(
        "recall_time",
        {"prefix": options.prefix, "rows": len(base), "queries": len(queries), "memory": options.memory},
        {"build": facts, "points": points, "bytes_per_vector": sizes},
    )
    return 0
