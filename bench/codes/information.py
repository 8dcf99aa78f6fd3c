"""Information of codes like the paper's figures 1 and 2: ours against PQ, OPQ and residual quantization.

    python -m bench information --data DIR [--prefix photosift500k] [--rounds 25]

Mutual-information matrices of all codes (capacity), of the codes of local vectors (the 100 nearest of each
query: local aggregation), self-information and conditional entropies; one JSON line per method. `python -m
bench numbers` makes the table and the pictures from the lines.
"""

import argparse
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.training import information
from aggtree.engine.training.annealing import DictionaryAnnealing
from aggtree.storage.sources.base import read_ground_truth
from bench import record
from bench.data.data_sets import read_vectors

LAYOUT = CodeLayout((256,) * 8)
METHODS = ("pq", "opq", "rq", "da")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench information", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--prefix", default="photosift500k")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--queries", type=int, default=500)
    return parser.parse_args(arguments)


def faiss_codes(method: str, learn: np.ndarray, base: np.ndarray) -> np.ndarray:
    learn32, base32 = learn.astype(np.float32), base.astype(np.float32)
    dimension, width = learn.shape[1], LAYOUT.levels
    if method == "rq":
        quantizer = faiss.ResidualQuantizer(dimension, width, 8)
        quantizer.max_beam_size = 10
        quantizer.use_beam_LUT = 1
    else:
        quantizer = faiss.ProductQuantizer(dimension, width, 8)
    if method == "opq":
        rotation = faiss.OPQMatrix(dimension, width)
        rotation.train(learn32)
        learn32, base32 = rotation.apply(learn32), rotation.apply(base32)
    quantizer.train(learn32)
    return quantizer.compute_codes(base32)


def measure(codes: np.ndarray, neighbours: np.ndarray) -> dict[str, Any]:
    return {
        "self_information": information.self_information(codes, LAYOUT).tolist(),
        "mutual": information.mutual_information(codes, LAYOUT, correction=True).tolist(),
        "conditional": information.conditional_entropies(codes, LAYOUT).tolist(),
        "local_mutual": information.local_mutual_information(codes, neighbours, LAYOUT).tolist(),
        "local_conditional": information.local_conditional_entropies(codes, neighbours, LAYOUT).tolist(),
    }


def run(options: argparse.Namespace) -> None:
    """Measure every method and record it."""
    learn, base = (
        read_vectors(options.data, options.prefix, "learn"),
        read_vectors(options.data, options.prefix, "base"),
    )
    truth = read_ground_truth(options.data / f"{options.prefix}_groundtruth.ivecs")[: options.queries]
    for method in METHODS:
        if method == "da":
            codes = DictionaryAnnealing(8, 256, rounds=options.rounds).fit(learn).encode(base)
        else:
            codes = faiss_codes(method, learn, base)
        parameters = {"prefix": options.prefix, "method": method, "neighbours": truth.shape[1]}
        record.write("information", parameters, measure(codes, truth.astype(np.int64)))


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    faiss.omp_set_num_threads(1)
    with threadpool_limits(1):
        run(options)
    return 0
