"""Time per query at a given R@10, re-ranked, on embeddings and on SIFT and GIST, beside other systems.

    python -m bench embeddings --data DIR [--sets glove200k,text100k] [--indexes DIR] [--peers faiss,scann]

DIR holds PREFIX_base, PREFIX_query and their exact neighbours. R@10 is the share of the ten true nearest
among ten answers. One thread for all. Each system is driven through cells to look into and candidates to
re-rank; all efforts that no other dominates are timed in turns. Instruction sets are forced from outside, for
both sides: `NUMBA_CPU_NAME=haswell FAISS_OPT_LEVEL=AVX2`.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

import aggtree
from aggtree.engine.params import SearchParams
from bench import record
from bench.data.data_sets import read_neighbours, read_vectors, vector_file
from bench.peers.quantized import Effort, Peer, quantized_peers
from bench.search.search import Search, measure
from bench.search.targets import TARGETS

K = 10
TURNS = 5
SINGLE = 300
CANDIDATES = (20, 30, 50, 80, 120, 200, 400)
CELLS = (2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 90, 128, 180, 256, 360)
GOOD_ENOUGH = 0.985
"""R@10 beyond which no further effort is tried."""


class DataSet:
    """Vectors and queries as the metric compares them, and the ten true nearest."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.prefix = prefix
        self.path = vector_file(folder, prefix, "base")
        self.truth, self.metric = read_neighbours(folder, prefix)
        self.base, self.queries = (
            read_vectors(folder, prefix, name).astype(np.float32) for name in ("base", "query")
        )
        if self.metric == "cosine":
            self.base /= np.linalg.norm(self.base, axis=1, keepdims=True)
            self.queries /= np.linalg.norm(self.queries, axis=1, keepdims=True)

    @property
    def cells(self) -> int:
        """Cells of the peers: the power of two nearest to 2 √n."""
        return 2 ** round(np.log2(2 * np.sqrt(len(self.base))))

    @property
    def code_bytes(self) -> int:
        """Bytes of the codes compared: 4 bits for two dimensions, at most 32."""
        return min(32, self.base.shape[1] // 4)

    @property
    def our_bytes(self) -> int:
        """Bytes of our codes so that an index takes no more than the peer; dictionaries and ids count."""
        rows, dimension = self.base.shape
        word = 4 * dimension / rows
        theirs = self.code_bytes + 8 + self.cells * word
        sizes = range(self.code_bytes, 2, -1)
        ours = (size for size in sizes if size + 4 + (self.cells + 32 * size) * word <= theirs)
        return next(ours, 2)


def recall_at_10(ids: np.ndarray, truth: np.ndarray) -> float:
    """Share of the ten true nearest among ten answers."""
    return float((ids[:, :, None] == truth[:, None, :K]).any(axis=2).mean())


def our_search(index: aggtree.Index, params: SearchParams, candidates: int) -> Search:
    return lambda queries: index.search(queries, K, params, rerank=candidates).ids


def our_searches(index: aggtree.Index) -> Iterator[tuple[Effort, Search]]:
    """Searches by nodes of level 1 and candidates, with the pruning ratio of that many nodes."""
    default = index.params
    for candidates in CANDIDATES:
        for cells in CELLS:
            params = default.scaled(cells / default.limits[0])

            yield (cells, candidates), our_search(index, params, candidates)


def useful(
    searches: Iterator[tuple[Effort, Search]], queries: np.ndarray, truth: np.ndarray
) -> list[dict[str, Any]]:
    """Efforts whose recall no quicker one has, each with its search; timed once."""
    points: list[dict[str, Any]] = []
    exhausted: dict[int, float] = {}
    for (cells, candidates), search in searches:
        if exhausted.get(candidates, 0) > GOOD_ENOUGH:
            continue
        found, seconds = np.empty(0), np.inf
        for _ in range(2):
            start = time.perf_counter()
            found = search(queries)
            seconds = min(seconds, time.perf_counter() - start)
        recall = recall_at_10(found, truth)
        gained = recall - exhausted.get(candidates, 0)
        exhausted[candidates] = recall if gained > 0.0005 else 1.0
        points.append({"effort": (cells, candidates), "recall": recall, "seconds": seconds, "search": search})
    points.sort(key=lambda point: point["seconds"])
    kept, best = [], 0.0
    for point in points:
        if point["recall"] > best and point["recall"] > TARGETS[0] - 0.1:
            kept.append(point)
        best = max(best, point["recall"])
    return kept


def peer_searches(peer: Peer) -> Iterator[tuple[Effort, Search]]:
    for candidates in CANDIDATES:
        for cells in CELLS:
            yield (cells, candidates), peer.make((cells, candidates))


def built(options: argparse.Namespace, data: DataSet, folder: Path) -> tuple[aggtree.Index, dict[str, Any]]:
    """The index of a set, built with the defaults and as many bytes as the peer's codes."""
    place = (options.indexes or folder) / f"{data.prefix}.index"
    facts: dict[str, Any] = {}
    if not place.exists():
        result = aggtree.build(
            data.path, place, metric=data.metric, bytes_per_vector=data.our_bytes, memory="2GiB"
        )
        facts = {"seconds": result.seconds, "peak": result.peak}
    index = aggtree.open(place, vectors=data.path)
    needed = sum(size for part, size in index.bytes_by_part().items() if part != "codes.zarr")
    return index, facts | {"words": list(index.layout.words), "bytes_per_vector": needed / len(index)}


def compare(options: argparse.Namespace, prefix: str, folder: Path) -> dict[str, Any]:
    """All systems on one set: points of recall and time, and bytes."""
    data = DataSet(options.data, prefix)
    index, facts = built(options, data, folder)
    systems: dict[str, dict[str, Any]] = {"aggtree": facts}
    points = {"aggtree": useful(our_searches(index), data.queries, data.truth)}
    facts["default"] = recall_at_10(index.search(data.queries, K).ids, data.truth)
    facts["codes_alone"] = recall_at_10(index.search(data.queries, K, rerank=0).ids, data.truth)
    inner_product = data.metric != "l2"
    faiss.omp_set_num_threads(os.cpu_count() or 1)
    for peer in quantized_peers(
        data.base, inner_product=inner_product, k=K, cells=data.cells, code_bytes=data.code_bytes
    ):
        faiss.omp_set_num_threads(1)
        found = useful(peer_searches(peer), data.queries, data.truth)
        points[peer.name] = found
        systems[peer.name] = {
            "bytes_per_vector": peer.bytes_per_vector,
            "code_bytes": peer.code_bytes,
            "seconds": peer.build_seconds,
        }
        if peer.name.startswith("IVF"):
            alone = peer.make((data.cells, 0))
            systems[peer.name]["codes_alone"] = recall_at_10(alone(data.queries), data.truth)
        faiss.omp_set_num_threads(os.cpu_count() or 1)
    faiss.omp_set_num_threads(1)
    searches = {(name, point["effort"]): point["search"] for name, group in points.items() for point in group}
    times = measure(searches, data.queries, turns=TURNS, single=SINGLE)
    for name, group in points.items():
        systems[name]["points"] = [
            {
                "effort": point["effort"],
                "recall": point["recall"],
                "batch_ms": times[name, point["effort"]]["batch_ms"],
                "single_ms": times[name, point["effort"]]["single_p50_ms"],
            }
            for point in group
        ]
    index.close()
    return {
        "rows": len(data.base),
        "dimension": data.base.shape[1],
        "metric": data.metric,
        "systems": systems,
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench embeddings", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", default="glove200k,text100k,photogist10k,photosift500k")
    parser.add_argument("--indexes", type=Path, help="keep the indexes here; used again when they are there")
    options = parser.parse_args(arguments)
    forced = {name: os.environ.get(name, "") for name in ("NUMBA_CPU_NAME", "FAISS_OPT_LEVEL")}
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        for prefix in options.sets.split(","):
            results = compare(options, prefix, Path(folder))
            record.write("embeddings", {"set": prefix, "forced": forced}, results)
    return 0
