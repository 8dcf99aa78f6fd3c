"""Compare an index grown by appending with one built at once: recall, time and bytes.

    python -m bench append --data DIR [--prefix photosift500k] [--parts 10] [--work DIR]

DIR holds PREFIX_base, PREFIX_query (bvecs) and PREFIX_groundtruth.ivecs. The first part is built with the
dictionaries of an index of all rows, the others are appended; all is compacted, then some rows are deleted.
Bars: R@100 of the grown index within .005 of the one built at once, and after compacting the same bytes.
"""

import argparse
import hashlib
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import aggtree
from aggtree.storage.sources.formats.vecs import write_vecs
from bench import record
from bench.data.data_sets import read_truth, read_vectors, vector_file

K = 100
TURNS = 3
DELETED = 0.01
"""Share of the rows that are deleted, to see what that costs."""


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(place: Path, queries: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """Recall and time per query of an index, in batches on one thread."""
    with aggtree.open(place) as index:
        index.warm()
        times = [seconds(lambda: index.search(queries, K, rerank=0)) for _ in range(TURNS)]
        ids = index.search(queries, K, rerank=0).ids
        return {
            "rows": len(index),
            "segments": len(index.manifest.segments),
            "bytes": sum(index.bytes_by_part().values()),
            "recall": [float((ids[:, :r] == truth[:, :1]).any(axis=1).mean()) for r in (1, 10, 100)],
            "batch_ms": 1e3 * min(times) / len(queries),
        }


def digests(place: Path) -> dict[str, str]:
    """The files of the one build of an index."""
    (build,) = place.glob("build-*")
    return {
        str(path.relative_to(build)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(build.rglob("*"))
        if path.is_file()
    }


def write_parts(folder: Path, base: np.ndarray, parts: int) -> list[Path]:
    """The rows in files of about equal size."""
    ends = [len(base) * number // parts for number in range(parts + 1)]
    paths = [folder / f"part{number}.bvecs" for number in range(parts)]
    for path, (start, stop) in zip(paths, pairwise(ends), strict=True):
        path.write_bytes(write_vecs(base[start:stop], "bvecs"))
    return paths


def run(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Build, append, delete and compact; all measurements."""
    base, queries = (read_vectors(options.data, options.prefix, name) for name in ("base", "query"))
    truth = read_truth(options.data, options.prefix)
    paths = write_parts(work, base, options.parts)
    limits: dict[str, Any] = {"memory": options.memory, "workers": options.workers}
    whole, grown = work / "whole.index", work / "grown.index"
    source = vector_file(options.data, options.prefix, "base")
    found: dict[str, Any] = {"build_seconds": seconds(lambda: aggtree.build(source, whole, **limits))}
    # The same dictionaries, so that the tree is all that differs.
    taken = {"dictionaries": whole, **limits}
    again = work / "again.index"
    found["encode_seconds"] = seconds(lambda: aggtree.build(source, again, **taken))
    aggtree.build(paths[0], grown, **taken)
    found["append_seconds"] = [
        seconds(lambda p=path: aggtree.append(grown, p, **limits)) for path in paths[1:]
    ]
    found["whole"], found["grown"] = (measure(place, queries, truth) for place in (whole, grown))
    found["difference"] = found["grown"]["recall"][-1] - found["whole"]["recall"][-1]
    found["compact_seconds"] = seconds(lambda: aggtree.compact(grown, **limits))
    found["compacted"] = measure(grown, queries, truth)
    found["same_bytes"] = digests(grown) == digests(again)
    gone = np.setdiff1d(np.arange(len(base)), truth)[:: round(1 / DELETED)]
    found["delete_seconds"] = seconds(lambda: aggtree.delete(grown, gone))
    found["deleted"] = measure(grown, queries, truth)
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench append", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--prefix", default="photosift500k")
    parser.add_argument("--parts", type=int, default=10)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--work", type=Path, help="an empty folder to work in instead of a temporary one")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.work) as folder, threadpool_limits(1):
        results = run(options, Path(folder))
    parameters = {"prefix": options.prefix, "parts": options.parts, "memory": options.memory}
    record.write("append", parameters, results)
    return 0 if results["same_bytes"] and abs(results["difference"]) <= 0.005 else 1
