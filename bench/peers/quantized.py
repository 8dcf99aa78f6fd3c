"""Peers that compress vectors and re-rank by the vectors themselves: inverted files of Faiss, and ScaNN.

Each peer is built on all cores and searched on one thread. Its searches are numbered by (cells, candidates):
cells looked into, and candidates that are re-ranked.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import faiss
import numpy as np

from bench.search.search import Search

Effort = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """An index of another system, ready to be searched.

    code_bytes : of a vector's code; bytes_per_vector : of all that a query needs besides the vectors, None if
        the system does not tell.
    make : the search of an effort.
    """

    name: str
    code_bytes: float
    bytes_per_vector: float | None
    build_seconds: float
    make: Callable[[Effort], Search]


def faiss_peer(name: str, base: np.ndarray, *, inner_product: bool, k: int, code_bytes: float) -> Peer:
    """An inverted file named as Faiss's factory does, with `IndexRefineFlat`.

    base : (n, d) float32, of length 1 for inner products
    """
    metric = faiss.METRIC_INNER_PRODUCT if inner_product else faiss.METRIC_L2
    start = time.perf_counter()
    inner = faiss.index_factory(base.shape[1], name, metric)
    inner.train(base)
    inner.add(base)
    seconds = time.perf_counter() - start
    size = len(faiss.serialize_index(inner)) / len(base)
    refined = faiss.IndexRefineFlat(inner, faiss.swig_ptr(base))
    prober = faiss.extract_index_ivf(inner)

    def make(effort: Effort) -> Search:
        cells, candidates = effort

        def run(queries: np.ndarray) -> np.ndarray:
            prober.nprobe = cells
            refined.k_factor = candidates / k
            return np.asarray(refined.search(queries, k)[1])

        def alone(queries: np.ndarray) -> np.ndarray:
            prober.nprobe = cells
            return np.asarray(inner.search(queries, k)[1])

        run.kept = (refined, inner, base)  # type: ignore[attr-defined]
        return run if candidates else alone

    return Peer(name=name, code_bytes=code_bytes, bytes_per_vector=size, build_seconds=seconds, make=make)


def scann_peer(base: np.ndarray, *, inner_product: bool, k: int, leaves: int, block: int) -> Peer:
    """ScaNN with asymmetric hashing of `block` dimensions to 4 bits, and its own re-ordering."""
    import scann

    name = f"ScaNN {leaves} leaves, AH {block}"
    distance = "dot_product" if inner_product else "squared_l2"
    threshold = 0.2 if inner_product else float("nan")
    start = time.perf_counter()
    searcher = (
        scann.scann_ops_pybind.builder(base, k, distance)
        .tree(num_leaves=leaves, num_leaves_to_search=leaves // 10, training_sample_size=len(base))
        .score_ah(block, anisotropic_quantization_threshold=threshold)
        .reorder(100)
        .build()
    )
    seconds = time.perf_counter() - start

    def make(effort: Effort) -> Search:
        cells, candidates = effort

        def run(queries: np.ndarray) -> np.ndarray:
            found = searcher.search_batched(
                queries,
                leaves_to_search=cells,
                pre_reorder_num_neighbors=max(candidates, k),
                final_num_neighbors=k,
            )
            return np.asarray(found[0], np.int64)

        return run

    code = -(-base.shape[1] // block) / 2
    return Peer(name=name, code_bytes=code, bytes_per_vector=None, build_seconds=seconds, make=make)


def quantized_peers(
    base: np.ndarray, *, inner_product: bool, k: int, cells: int, code_bytes: int
) -> Iterator[Peer]:
    """The peers of a data set, one built after the other; codes of Faiss have about `code_bytes`."""
    dimension = base.shape[1]
    for size in sorted({code_bytes, max(1, code_bytes // 2)}):
        parts = product_parts(dimension, 2 * size)
        yield faiss_peer(
            f"IVF{cells},PQ{parts}x4fs", base, inner_product=inner_product, k=k, code_bytes=parts / 2
        )
    yield faiss_peer(f"IVF{cells},RaBitQfs", base, inner_product=inner_product, k=k, code_bytes=dimension / 8)
    if find_spec("scann") is not None:
        for block in (2, 4):
            yield scann_peer(base, inner_product=inner_product, k=k, leaves=cells, block=block)


def product_parts(dimension: int, most: int) -> int:
    """The most parts, at most `most`, into which PQ can cut a vector: even ones, which FastScan packs."""
    fitting = (parts for parts in range(most, 1, -1) if dimension % parts == 0 and parts % 2 == 0)
    return next(fitting, 2)
