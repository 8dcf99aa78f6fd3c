"""Information of codes like the paper's figures 1 and 2: ours against PQ, OPQ and residual quantization.

    python -m bench information --data DIR [--prefix photosift500k] [--rounds 25]
    python -m bench information [--prefix photosift500k]

Mutual-information matrices of all codes (capacity), of the codes of local vectors (the 100 nearest of each
query: local aggregation), self-information and conditional entropies; one JSON line per method, and one
picture and one table made from the lines, which is all that happens without --data.
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
from bench.report.quantizer_report import markdown

LAYOUT = CodeLayout((256,) * 8)
METHODS = ("pq", "opq", "rq", "da")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench information", description=__doc__)
    parser.add_argument("--data", type=Path)
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


def newest(prefix: str) -> dict[str, dict[str, Any]]:
    """The newest results of each method."""
    return {
        line["parameters"]["method"]: line["results"]
        for line in record.read("information")
        if line["parameters"]["prefix"] == prefix
    }


def between(matrix: list[list[float]]) -> float:
    """Mean mutual information of two different dictionaries."""
    return float(np.array(matrix)[~np.eye(len(matrix), dtype=bool)].mean())


def table(prefix: str) -> str:
    """Bits of all dictionaries, and what two of them share among all codes and among local ones."""
    header = (
        "method",
        "Σ H(I_m), bits",
        "shared by two, all codes",
        "shared by two, local codes",
        "local H(I_m | before)",
    )
    rows = []
    for method, results in newest(prefix).items():
        shared = (f"{between(results[kind]):.3f}" for kind in ("mutual", "local_mutual"))
        local = " ".join(f"{bits:.2f}" for bits in results["local_conditional"])
        rows.append((method.upper(), f"{sum(results['self_information']):.2f}", *shared, local))
    return f"## {prefix}\n\n{markdown(header, rows)}"


def plot(prefix: str) -> None:
    """Matrices of the newest line of each method, local codes above all codes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    lines = newest(prefix)
    figure, axes = pyplot.subplots(2, len(METHODS), figsize=(3 * len(METHODS), 6), layout="constrained")
    for column, method in enumerate(METHODS):
        for row, (kind, title) in enumerate((("local_mutual", "local codes"), ("mutual", "all codes"))):
            matrix = np.array(lines[method][kind])
            np.fill_diagonal(matrix, np.nan)
            image = axes[row, column].imshow(matrix, vmin=0)
            axes[row, column].set_title(f"{method.upper()}, {title}")
            figure.colorbar(image, ax=axes[row, column], shrink=0.7)
    figure.savefig(record.RESULTS / f"information_{prefix}.svg")


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
    if options.data is not None:
        faiss.omp_set_num_threads(1)
        with threadpool_limits(1):
            run(options)
    prefixes = sorted({line["parameters"]["prefix"] for line in record.read("information")})
    text = "\n".join(table(prefix) for prefix in prefixes)
    (record.RESULTS / "information.md").write_text(text, encoding="utf-8")
    plot(options.prefix)
    return 0
