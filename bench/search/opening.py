"""Opening an index and answering: seconds, private memory, and milliseconds of single queries.

    python -m bench opening --index INDEX --queries SOURCE [--k 100] [--limits L1,L2,..]

Each index is opened in a process of its own. Private memory is what is anonymous: mapped files are shared by
all processes that open the index, and the system takes their pages back when it likes. Queries are sent one
by one on one thread: the first answers come from a cold mapping, then the whole tree is brought into memory
and the same queries are timed again.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import record

ANSWER = "--answer"


def private_bytes() -> int:
    """Anonymous memory of this process as Linux reports it."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


def times(index: Any, queries: np.ndarray, k: int, params: Any) -> dict[str, float]:
    """Percentiles of single queries, in milliseconds."""
    taken = []
    for query in queries:
        began = time.perf_counter()
        index.search(query, k, params, rerank=0)
        taken.append(1000 * (time.perf_counter() - began))
    return {f"p{rank}_ms": float(np.percentile(taken, rank)) for rank in (50, 90, 99)}


def answer(index: str, queries: str, k: int, limits: tuple[int, ...]) -> dict[str, Any]:
    """Open, answer and measure in this process."""
    import aggtree

    imported = private_bytes()
    began, busy = time.perf_counter(), time.process_time()
    opened = aggtree.open(index)
    results: dict[str, Any] = {
        "open_seconds": time.perf_counter() - began,
        "open_cpu_seconds": time.process_time() - busy,
        "import_private": imported,
        "open_private": private_bytes(),
    }
    from aggtree.storage.sources.base import open_source

    with open_source(queries) as source:
        rows = source.read(0, source.rows)
    before = private_bytes()
    params = aggtree.SearchParams(limits=limits) if limits else opened.searcher.default_params
    began = time.perf_counter()
    opened.search(rows[0], k, params, rerank=0)
    results["first_search_seconds"] = time.perf_counter() - began
    results["search_private"] = results["open_private"] + private_bytes() - before
    results["limits"] = list(params.limits)
    results["cold"] = times(opened, rows, k, params)
    began = time.perf_counter()
    opened.warm()
    results["warm_seconds"] = time.perf_counter() - began
    times(opened, rows, k, params)
    results["warm"] = times(opened, rows, k, params)
    began = time.perf_counter()
    _, counts = opened.search_with_counts(rows, k, params, rerank=0)
    results["batch_ms"] = 1000 * (time.perf_counter() - began) / len(rows)
    return results | {"nodes": float(counts.nodes.mean()), "leaves": float(counts.leaves.mean())}


def measured(index: Any, queries: str, k: int = 100, limits: str = "") -> dict[str, Any]:
    """The same in a new process."""
    command = [sys.executable, "-m", "bench", "opening", "--index", str(index), "--queries", queries]
    command += ["--k", str(k), "--limits", limits, ANSWER]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench opening", description=__doc__)
    parser.add_argument("--index", required=True)
    parser.add_argument("--queries", required=True)
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--limits", default="", help="nodes kept per level; chosen from the size if left out")
    parser.add_argument(ANSWER, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.answer:
        limits = tuple(int(limit) for limit in options.limits.split(",") if limit)
        sys.stdout.write(json.dumps(answer(options.index, options.queries, options.k, limits)))
        return 0
    results = measured(options.index, options.queries, options.k, options.limits)
    record.write("opening", {"k": options.k, "queries": options.queries}, results)
    return 0
