"""Time of a whole build beside Faiss: ours with defaults, Faiss's inverted file trained and filled.

    python -m bench build_time --data DIR [--sets glove200k,photosift500k] [--turns 2] [--before AGGTREE]

DIR holds PREFIX_base of each set. All use two threads, in alternating turns, with compiled kernels. Ours is
the command `aggtree build` as users run it, from its start to its end; for Faiss only `train` and `add`
count. `--before` names the `aggtree` command of another version, which builds with its defaults too. Besides
the wall time, which other work on the machine disturbs, processor seconds of all threads are recorded.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from bench import record
from bench.data.data_sets import read_vectors, vector_file

THREADS = 2
SETS: dict[str, dict[str, Any]] = {
    "glove200k": {"options": ["--metric", "cosine", "--bytes-per-vector", "25"], "peer": "IVF1024,PQ50x4fs"},
    "text100k": {"options": ["--metric", "cosine", "--bytes-per-vector", "32"], "peer": "IVF512,PQ64x4fs"},
    "photosift500k": {"options": [], "peer": "IVF1024,PQ8"},
}
"""By set: options of the build, and the index that Faiss builds."""

Seconds = dict[str, float]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench build_time", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--before", help="the aggtree command of another version")
    parser.add_argument("--quality", default="default")
    return parser.parse_args(arguments)


def our_seconds(command: list[str], options: list[str], base: Path) -> Seconds:
    """Seconds of one build in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        where = [str(base), f"{folder}/index", "--workers", str(THREADS)]
        subprocess.run([*command, "build", *where, *options], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall = time.perf_counter() - began
    return {"wall": wall, "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def faiss_seconds(factory: str, base: np.ndarray, *, cosine: bool) -> Seconds:
    """Seconds to train and fill an index of Faiss."""
    faiss.omp_set_num_threads(THREADS)
    metric = faiss.METRIC_INNER_PRODUCT if cosine else faiss.METRIC_L2
    index = faiss.index_factory(base.shape[1], factory, metric)
    began, before = time.perf_counter(), time.process_time()
    index.train(base)
    index.add(base)
    return {"wall": time.perf_counter() - began, "cpu": time.process_time() - before}


def measure(options: argparse.Namespace, name: str) -> dict[str, list[Seconds]]:
    """Seconds of each system in each turn; the first build of each command only compiles."""
    settings = SETS[name]
    base, rows = vector_file(options.data, name, "base"), read_vectors(options.data, name, "base")
    cosine = "cosine" in settings["options"]
    rows = rows.astype(np.float32)
    if cosine:
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    commands = {"aggtree": [sys.executable, "-m", "aggtree"]}
    if options.before:
        commands["before"] = [options.before]
    for command in commands.values():
        our_seconds(command, settings["options"], base)
    turns: dict[str, list[Seconds]] = {name: [] for name in (*commands, "faiss")}
    for _ in range(options.turns):
        for system, command in commands.items():
            quality = ["--quality", options.quality] if system == "aggtree" else []
            turns[system].append(our_seconds(command, settings["options"] + quality, base))
        turns["faiss"].append(faiss_seconds(settings["peer"], rows, cosine=cosine))
    return turns


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    for name in options.sets.split(","):
        turns = measure(options, name)
        parameters = {"set": name, "threads": THREADS, "quality": options.quality, **SETS[name]}
        record.write("build_time", parameters, {"seconds": turns})
        for system, found in turns.items():
            best = {kind: min(turn[kind] for turn in found) for kind in ("wall", "cpu")}
            print(f"{name} {system}: {best['wall']:.1f} s, {best['cpu']:.1f} s of processor time")
    return 0
