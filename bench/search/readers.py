"""Many query processes on one index: throughput, private memory, cold and warm latency.

    python -m bench readers --index INDEX --queries SOURCE [--processes 1,2,4,8] [--seconds 5] [--k 100]
        [--limits L1,L2,..]

Every process starts fresh, opens the index, answers all queries once and reports that it is ready. When all
are ready, each answers queries one by one on one thread for the given number of seconds. `anonymous` is
memory that no other process can share, `private` also counts mapped pages that only this process maps at the
moment, `proportional` divides shared pages among the processes that map them. Cold latency is that of a new
process after the index's files were dropped from the page cache (posix_fadvise), with each query run once;
`read_bytes` is how much was then read from disk. For warm latency the whole tree is read into memory first.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import record

ANSWER = "--answer"
KINDS = {
    "anonymous": ("Anonymous:",),
    "private": ("Private_Clean:", "Private_Dirty:"),
    "proportional": ("Pss:",),
}


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench readers", description=__doc__)
    parser.add_argument("--index", required=True)
    parser.add_argument("--queries", required=True)
    parser.add_argument("--processes", default="1,2,4,8")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--limits", default="", help="nodes kept per level; chosen from the size if left out")
    parser.add_argument("--cold-queries", type=int, default=500)
    parser.add_argument(ANSWER, choices=["cold", "many"], help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def memory() -> dict[str, int]:
    """What this process uses now, in bytes, by kind."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {words[0]: int(words[1]) for words in map(str.split, lines)}
    return {kind: 1024 * sum(kilobytes[name] for name in names) for kind, names in KINDS.items()}


def read_bytes() -> int:
    """Bytes this process had the disk deliver."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return 0


def forget(index: str) -> None:
    """Make the system drop the files of an index from its page cache."""
    for path in Path(index).rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def percentiles(seconds: list[float]) -> dict[str, float]:
    """p50 and p99 in milliseconds."""
    return {f"p{rank}_ms": 1000 * float(np.percentile(seconds, rank)) for rank in (50, 99)}


class Reader:
    """The index and the queries, in this process."""

    def __init__(self, options: argparse.Namespace) -> None:
        import aggtree
        from aggtree.storage.sources.base import open_source

        with open_source(options.queries) as source:
            self.queries = source.read(0, source.rows)
        self.index = aggtree.open(options.index)
        limits = tuple(int(limit) for limit in options.limits.split(",") if limit)
        self.params = aggtree.SearchParams(limits=limits) if limits else self.index.searcher.default_params
        self.k = options.k

    def once(self, number: int) -> float:
        """Seconds of one query."""
        began = time.perf_counter()
        self.index.search(self.queries[number % len(self.queries)], self.k, self.params, rerank=0)
        return time.perf_counter() - began


def answer_cold(options: argparse.Namespace) -> dict[str, Any]:
    """First queries on a cold cache, then the same on a warm one."""
    first = Reader(options)
    first.once(0)  # loads the compiled kernels, which are no part of the index
    first.index.close()
    del first
    forget(options.index)
    reader = Reader(options)
    count = min(options.cold_queries, len(reader.queries))
    before = read_bytes()
    found: dict[str, Any] = {}
    found["cold"] = percentiles([reader.once(number) for number in range(count)])
    found["cold"]["read_bytes"] = read_bytes() - before
    began = time.perf_counter()
    reader.index.warm()
    found["warm_seconds"] = time.perf_counter() - began
    for number in range(count):
        reader.once(number)
    before = read_bytes()
    found["warm"] = percentiles([reader.once(number) for number in range(count)])
    found["warm"]["read_bytes"] = read_bytes() - before
    return found | {"limits": list(reader.params.limits), "queries": count}


def answer_many(options: argparse.Namespace) -> dict[str, Any]:
    """Answer queries one by one for a while, from the parent's signal on."""
    reader = Reader(options)
    reader.index.warm()
    for number in range(len(reader.queries)):
        reader.once(number)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    # Each process begins elsewhere, as strangers would.
    number, taken, began = os.getpid(), [], time.perf_counter()
    while time.perf_counter() - began < options.seconds:
        taken.append(reader.once(number))
        number += 1
    seconds = time.perf_counter() - began
    return {"answers": len(taken), "seconds": seconds, **percentiles(taken), **memory()}


def command(options: argparse.Namespace, kind: str) -> list[str]:
    given = {name: getattr(options, name) for name in ("index", "queries", "seconds", "k", "limits")}
    given["cold-queries"] = options.cold_queries
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "bench", "readers", *words, ANSWER, kind]


def many(options: argparse.Namespace, count: int) -> dict[str, Any]:
    """What `count` processes at once answer."""
    readers = [
        subprocess.Popen(command(options, "many"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for reader in readers:
        if reader.stdout is None or reader.stdout.readline() != "ready\n":
            raise SystemExit("bench readers: a query process ended before it was ready")
    for reader in readers:
        if reader.stdin is not None:
            reader.stdin.write("go\n")
            reader.stdin.flush()
    found = [json.loads(reader.communicate()[0]) for reader in readers]
    return {
        "queries_per_second": sum(part["answers"] / part["seconds"] for part in found),
        "p50_ms": float(np.median([part["p50_ms"] for part in found])),
        "p99_ms": max(part["p99_ms"] for part in found),
        **{kind: [part[kind] for part in found] for kind in KINDS},
    }


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    if options.answer == "many":
        sys.stdout.write(json.dumps(answer_many(options)))
        return 0
    if options.answer == "cold":
        sys.stdout.write(json.dumps(answer_cold(options)))
        return 0
    done = subprocess.run(command(options, "cold"), stdout=subprocess.PIPE, text=True, check=True)
    results = dict(json.loads(done.stdout))
    results["processes"] = {count: many(options, int(count)) for count in options.processes.split(",")}
    import aggtree

    with aggtree.open(options.index) as index:
        parts = index.bytes_by_part()
        results["rows"], results["mapped_bytes"] = len(index), sum(parts.values()) - parts["codes.zarr"]
    shown = {name: getattr(options, name) for name in ("queries", "seconds", "k", "limits")}
    record.write("readers", shown | {"index": Path(options.index).name}, results)
    return 0
