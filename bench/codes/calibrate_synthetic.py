"""Compare the generated source with real descriptors, statistic by statistic.

    python -m bench calibrate_synthetic --base B --learn L --query Q [--other O]      (bvecs files)
    python -m bench calibrate_synthetic --table

The second command prints the tables of the last run, for docs/explanation/synthetic.md.
The generated base has as many rows as the real one; its learning rows and queries are other rows of the
same set. Needs faiss-cpu, and runs on one thread.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.sources.base import VectorSource, open_source
from bench import record

SPEC = "synthetic:sift?rows={rows}&seed=1&first={first}"
LEARN_FIRST, QUERY_FIRST = 2_000_000_000, 10_000_000_000
SEED = 0
SIZES = (9_000, 100_000)
GROWTH = (1_000_000, 10_000_000)
GROWTH_QUERIES = 200
PROBES = (1, 4, 16, 64)
BLOCK = 250_000

Rows = NDArray[np.uint8]


def shape_of(rows: Rows) -> dict[str, Any]:
    """Norms, values and spectrum of at most 100,000 rows."""
    values = rows[:100_000].astype(np.float32)
    norms = np.linalg.norm(values, axis=1)
    spectrum = np.linalg.eigvalsh(np.cov(values.T))[::-1]
    shares = np.cumsum(spectrum) / spectrum.sum()
    return {
        "norm": float(norms.mean()),
        "norm deviation": float(norms.std()),
        "zeros": float((values == 0).mean()),
        "values": np.quantile(values, (0.5, 0.9, 0.99)).tolist(),
        "variance": float(spectrum.sum()),
        "axes": [int(np.searchsorted(shares, share)) + 1 for share in (0.5, 0.9, 0.99)],
        "first axis": float(shares[0]),
    }


def blocks(source: VectorSource, rows: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
    for start in range(0, rows, BLOCK):
        yield start, source.read(start, min(rows, start + BLOCK)).astype(np.float32)


def nearest(
    source: VectorSource, rows: int, queries: Rows, k: int = 100
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Distances and ids (q, k) of the neighbours among the first rows, streamed."""
    import faiss

    keep = faiss.ResultHeap(len(queries), k)
    for start, block in blocks(source, rows):
        distances, ids = faiss.knn(queries.astype(np.float32), block, min(k, len(block)))
        keep.add_result(distances, ids + start)
    keep.finalize()
    return np.sqrt(np.maximum(keep.D, 0)), keep.I


def neighbours(source: VectorSource, rows: int, queries: Rows) -> dict[str, Any]:
    """Distances to the 1st, 10th, 100th neighbour and the local intrinsic dimension (maximum likelihood)."""
    distances, _ = nearest(source, rows, queries)
    logs = np.log(np.maximum(distances[:, :-1], 1e-3) / distances[:, -1:])
    return {
        "rows": rows,
        "first": np.quantile(distances[:, 0], (0.05, 0.5, 0.95)).tolist(),
        "medians": np.median(distances[:, [0, 9, 99]], axis=0).tolist(),
        "intrinsic dimension": float(np.mean(-1 / logs.mean(axis=1))),
    }


def recall(source: VectorSource, learn: Rows, queries: Rows, key: str = "IVF2048,PQ8") -> dict[str, Any]:
    """R@1/10/100 of a Faiss index for several numbers of visited cells."""
    import faiss

    _, truth = nearest(source, source.rows, queries, k=1)
    index = faiss.index_factory(source.dimension, key)
    index.train(learn.astype(np.float32))
    for _, block in blocks(source, source.rows):
        index.add(block)
    result: dict[str, Any] = {"index": key}
    for probes in PROBES:
        index.nprobe = probes
        _, found = index.search(queries.astype(np.float32), 100)
        hits = found == truth
        result[str(probes)] = [float(hits[:, :k].any(axis=1).mean()) for k in (1, 10, 100)]
    return result


class Shuffled(VectorSource):
    """Real rows in random order, because those of one photograph lie together."""

    def __init__(self, path: str) -> None:
        with open_source(path) as source:
            self._values = source.read(0, source.rows)
        self._values = self._values[np.random.default_rng(SEED).permutation(len(self._values))]
        self.spec, self.rows, self.dimension, self.dtype = path, *self._values.shape, self._values.dtype

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        return self._values[start:stop]


def generated(rows: int, first: int = 0) -> VectorSource:
    return open_source(SPEC.format(rows=rows, first=first))


def compare(source: VectorSource, learn: Rows, queries: Rows) -> dict[str, Any]:
    sizes = [size for size in (*SIZES, source.rows) if size <= source.rows]
    return {
        "shape": shape_of(source.read(0, min(source.rows, 100_000))),
        "neighbours": [neighbours(source, size, queries) for size in sizes],
        "recall": recall(source, learn, queries),
    }


def speed() -> float:
    """Generated rows per second of processor time."""
    source = generated(2**40)
    source.read(0, 1000)
    start = time.process_time()
    source.read(0, 200_000)
    return 200_000 / (time.process_time() - start)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    real = Shuffled(options.base)
    learn, queries = Shuffled(options.learn), Shuffled(options.query)
    made = generated(real.rows)
    results = {
        "real": compare(real, learn.read(0, learn.rows), queries.read(0, queries.rows)),
        "generated": compare(
            made,
            generated(learn.rows, LEARN_FIRST).read(0, learn.rows),
            generated(queries.rows, QUERY_FIRST).read(0, queries.rows),
        ),
        "rows per second": speed(),
    }
    if options.other:
        other = Shuffled(options.other)
        rows = min(SIZES[0], other.rows - 1000)
        results["other"] = {
            "shape": shape_of(other.read(0, other.rows)),
            "neighbours": [neighbours(other, rows, other.read(rows, other.rows))],
        }
    few = generated(GROWTH_QUERIES, QUERY_FIRST).read(0, GROWTH_QUERIES)
    results["growth"] = [neighbours(generated(rows), rows, few) for rows in GROWTH]
    return results


def rates(values: list[float]) -> str:
    return " / ".join(f"{value:.3f}"[1:] if value < 1 else "1" for value in values)


def table(results: dict[str, Any], parameters: dict[str, Any]) -> str:
    """The comparison as markdown."""
    columns = {parameters["base"]: results["real"], "synthetic": results["generated"]}
    if "other" in results:
        columns[parameters["other"]] = results["other"]
    lines = [("", *columns), tuple("---" for _ in range(len(columns) + 1))]

    def row(name: str, part: str, text: Any) -> None:
        lines.append((name, *(text(column[part]) if part in column else "" for column in columns.values())))

    row("norm, mean ± deviation", "shape", lambda s: f"{s['norm']:.1f} ± {s['norm deviation']:.1f}")
    row("zeros", "shape", lambda s: f"{s['zeros']:.1%}")
    row("values, 50 / 90 / 99 %", "shape", lambda s: " / ".join(f"{v:.0f}" for v in s["values"]))
    row("total variance", "shape", lambda s: f"{s['variance']:,.0f}")
    row("principal axes for 50 / 90 / 99 % of it", "shape", lambda s: " / ".join(map(str, s["axes"])))
    row("share of the first axis", "shape", lambda s: f"{s['first axis']:.1%}")
    for place, size in enumerate(step["rows"] for step in results["real"]["neighbours"]):

        def at(steps: list[Any], text: Any, place: int = place) -> str:
            return text(steps[place]) if place < len(steps) else ""

        row(
            f"nearest neighbour among {size:,}: median (5 to 95 %)",
            "neighbours",
            lambda steps, at=at: at(steps, lambda s: "{1:.0f} ({0:.0f} to {2:.0f})".format(*s["first"])),
        )
        row(
            "… 10th and 100th neighbour: median",
            "neighbours",
            lambda steps, at=at: at(steps, lambda s: "{1:.0f}, {2:.0f}".format(*s["medians"])),
        )
        row(
            "… local intrinsic dimension",
            "neighbours",
            lambda steps, at=at: at(steps, lambda s: f"{s['intrinsic dimension']:.1f}"),
        )
    for probes in PROBES:
        name = f"Faiss {results['real']['recall']['index']}, {probes} cells: R@1 / 10 / 100"
        row(name, "recall", lambda r, probes=probes: rates(r[str(probes)]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def growth_table(results: dict[str, Any]) -> str:
    steps = [*results["generated"]["neighbours"], *results["growth"]]
    lines = ["| rows | nearest | 10th | 100th | intrinsic dimension |", "|---|---|---|---|---|"]
    for step in steps:
        medians = " | ".join(f"{value:.0f}" for value in step["medians"])
        lines.append(f"| {step['rows']:,} | {medians} | {step['intrinsic dimension']:.1f} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, text in (
        ("base", "real vectors, dimension 128"),
        ("learn", "to train the Faiss index"),
        ("query", "to search"),
        ("other", "another real set, only for its shape and neighbours"),
    ):
        parser.add_argument(f"--{name}", default="", help=text)
    parser.add_argument("--table", action="store_true", help="print the tables of the last run")
    options = parser.parse_args(arguments)
    if options.table:
        last = record.read("calibrate_synthetic")[-1]
        results = last["results"]
        sys.stdout.write(f"{table(results, last['parameters'])}\n\n{growth_table(results)}\n\n")
        sys.stdout.write(
            f"{results['rows per second']:,.0f} rows/s on one core of {last['machine']['processor']}\n"
        )
        return 0
    if not (options.base and options.learn and options.query):
        parser.error("--base, --learn and --query are needed")
    import faiss

    faiss.omp_set_num_threads(1)
    names = {name: Path(getattr(options, name)).name for name in ("base", "learn", "query", "other")}
    record.write("calibrate_synthetic", names, measure(options))
    return 0
