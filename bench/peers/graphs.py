"""Peers that keep the vectors and search a graph over them: hnswlib and usearch, where they are installed.

They keep every vector in memory, so tables show bytes per vector beside their times.
"""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

LINKS = 16
CONSTRUCTION = 100
WIDTHS = (10, 20, 40, 80, 160, 320)

Search = Callable[[np.ndarray], np.ndarray]
Peer = tuple[str, dict[int, Search], float]


def graph_peers(base: np.ndarray, k: int, threads: int) -> Iterator[Peer]:
    """Name, searches by the candidates they keep, and bytes per vector, of each graph that is installed."""
    makers = {"hnswlib": hnswlib_peer, "usearch": usearch_peer}
    for name, make in makers.items():
        if find_spec(name) is not None:
            yield make(base, k, threads)


def hnswlib_peer(base: np.ndarray, k: int, threads: int) -> Peer:
    import hnswlib

    index = hnswlib.Index(space="l2", dim=base.shape[1])
    index.init_index(max_elements=len(base), M=LINKS, ef_construction=CONSTRUCTION, random_seed=0)
    index.add_items(base, num_threads=threads)

    def search(width: int) -> Search:
        def run(queries: np.ndarray) -> np.ndarray:
            index.set_ef(max(width, k))
            return np.asarray(index.knn_query(queries, k=k, num_threads=1)[0], np.int64)

        return run

    efforts = sorted({max(width, k) for width in WIDTHS})
    return "hnswlib", {width: search(width) for width in efforts}, index.index_file_size() / len(base)


def usearch_peer(base: np.ndarray, k: int, threads: int) -> Peer:
    from usearch.index import Index

    index: Any = Index(
        ndim=base.shape[1], metric="l2sq", dtype="f32", connectivity=LINKS, expansion_add=CONSTRUCTION
    )
    index.add(np.arange(len(base)), base, threads=threads)

    def search(width: int) -> Search:
        def run(queries: np.ndarray) -> np.ndarray:
            index.expansion_search = max(width, k)
            found = index.search(queries, k, threads=1)
            return np.asarray(found.keys, np.int64).reshape(len(queries), -1)

        return run

    efforts = sorted({max(width, k) for width in WIDTHS})
    return "usearch", {width: search(width) for width in efforts}, index.serialized_length / len(base)
