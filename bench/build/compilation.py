"""Compilation: CPU seconds until the first answer, from an empty kernel cache, and of each kernel.

    python -m bench compilation [--rows 10000] [--repeats 5]

Each step is a process of its own: a build until its training starts, and the rest of it; then, on another
cache that is empty at first, the first search, the first with a filter, with re-ranking, and after rows were
appended and deleted; then a process that finds all kernels on disk. CPU seconds include those of child
processes, imports and opening. Seconds of a kernel are those that no kernel it calls took.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numba.core import event

from bench import record

STEP = "--step"
DIMENSION = 128
STEPS = ("build", "search", "filter", "rerank", "segments")


def cpu_seconds() -> float:
    """Of this process and the children it waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, kinds))


class Compilations(event.Listener):
    """CPU seconds of each kernel compiled in this process, with those it calls counted apart."""

    def __init__(self) -> None:
        self.own: dict[str, float] = {}
        self._began: list[tuple[str, float, float]] = []
        event.register("numba:compile", self)

    def on_start(self, event: Any) -> None:
        """Compilation of a function begins, perhaps within that of one that calls it."""
        function = event.data["dispatcher"].py_func
        name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        self._began.append((name, time.process_time(), 0.0))

    def on_end(self, event: Any) -> None:
        """It ends."""
        name, began, inside = self._began.pop()
        taken = time.process_time() - began
        self.own[name] = self.own.get(name, 0.0) + taken - inside
        if self._began:
            outer, start, others = self._began[-1]
            self._began[-1] = (outer, start, others + taken)


def build(directory: Path, rows: int) -> dict[str, float]:
    """Seconds until training starts, and of the whole build."""
    import aggtree

    class Watch(aggtree.Progress):
        training = 0.0

        def show(self, event: str, **facts: object) -> None:
            if event == "begin" and self.stage == "train":
                self.training = cpu_seconds()

    vectors = np.random.default_rng(0).integers(0, 100, (rows, DIMENSION)).astype(np.uint8)
    np.save(directory / "base.npy", vectors)
    watch = Watch()
    aggtree.build(directory / "base.npy", directory / "index", progress=watch)
    return {"training_starts": watch.training, "build": cpu_seconds()}


def request(step: str, directory: Path) -> dict[str, float]:
    """Seconds of the first request of a kind, the import of the package and opening included."""
    import aggtree

    if step == "segments":
        aggtree.append(directory / "index", directory / "base.npy", progress=False)
        aggtree.delete(directory / "index", [1])
    before = 0.0 if step == "search" else cpu_seconds()
    options: dict[str, Any] = {"filter": {"within": [0, 1, 2]}, "rerank": {"rerank": 50}}.get(step, {})
    with aggtree.open(directory / "index") as index:
        index.search(np.ones(DIMENSION, np.uint8), k=10, **options)
    return {step: cpu_seconds() - before}


def carry_out(step: str, directory: Path, rows: int) -> dict[str, Any]:
    """One step in this process."""
    compilations = Compilations() if step != "build" else None
    seconds = build(directory, rows) if step == "build" else request(step, directory)
    kernels = {} if compilations is None else compilations.own
    return {"seconds": seconds, "kernels": kernels}


def least(work: str, directory: Path, repeats: int) -> dict[str, float]:
    """The least wall and CPU seconds of a line of Python in a new process, which measures itself."""
    command = [sys.executable, "-c", PROGRAM.format(work=work), str(directory / "index")]
    runs = (subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(repeats))
    taken = [json.loads(run.stdout) for run in runs]
    return {name: min(run[name] for run in taken) for name in ("wall", "cpu")}


PROGRAM = """
import json, time
wall, cpu = time.perf_counter(), time.process_time()
import sys, aggtree
{work}
print(json.dumps(dict(wall=time.perf_counter() - wall, cpu=time.process_time() - cpu)))
"""
OPEN = "aggtree.open(sys.argv[1]).search([1] * 128, k=10)"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench compilation", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(STEP, choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step:
        print(json.dumps(carry_out(options.step, options.directory, options.rows)))
        return 0
    results: dict[str, Any] = {"seconds": {}, "kernels": {}}
    with TemporaryDirectory() as place:
        directory = Path(place)
        for step in STEPS:
            # A build leaves no kernel to the steps of a search, as if another machine had built.
            cache = directory / ("build" if step == "build" else "search")
            environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
            command = [sys.executable, "-m", "bench", "compilation", STEP, step]
            command += ["--directory", place, "--rows", str(options.rows)]
            run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            found = json.loads(run.stdout)
            results["seconds"] |= found["seconds"]
            if found["kernels"]:
                results["kernels"][step] = found["kernels"]
            print(step, {name: round(value, 2) for name, value in found["seconds"].items()}, flush=True)
        os.environ["NUMBA_CACHE_DIR"] = str(directory / "search")
        results["cache_bytes"] = sum(file.stat().st_size for file in (directory / "search").rglob("*.nbk"))
        results["open_and_search"] = least(OPEN, directory, options.repeats)
        results["import"] = least("", directory, options.repeats)
    print({name: results[name] for name in ("open_and_search", "import", "cache_bytes")})
    record.write("compilation", {"rows": options.rows, "repeats": options.repeats}, results)
    return 0
