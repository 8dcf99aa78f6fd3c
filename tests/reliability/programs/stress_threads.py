"""Threads that share one open index: every answer is compared, while it changes and while it is closed.

    python stress_threads.py DIRECTORY SEED CALLS THREADS

DIRECTORY holds an index and, as manifest-<n>.json, each of its states, whose files are all there. Threads
call all that an index offers, with changing k, parameters, filters, radius and re-ranking, and refresh it
while states take turns. Near the end of a round one of them closes the index; from then on calls raise the
error that says so. An answer must be that of one of the states, bit by bit. Prints a JSON object of counts.
"""

import faulthandler
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from aggtree.engine.params import SearchParams
from aggtree.storage.atomic import write_bytes
from aggtree.storage.index.format import MANIFEST
from aggtree.storage.index.reader import Index, open_index

CALLS_OF_A_ROUND = 4000
HANG_SECONDS = 600
SWITCH_SECONDS = 1e-6
REFUSED = {
    "the index is closed": "calls of a closed index",
    "make it again with `filter`": "filters of a state before",
}
PARAMS = (
    None,
    SearchParams.unlimited(),
    SearchParams(limits=(4, 8)),
    SearchParams(limits=(9,), pruning_ratio=2.0),
)

Call = Callable[[Index], tuple[bytes, ...]]


def as_bytes(answer: Any) -> tuple[bytes, ...]:
    return tuple(np.ascontiguousarray(part).tobytes() for part in answer)


def counted(index: Index, queries: np.ndarray, **options: Any) -> tuple[bytes, ...]:
    answer, counts = index.search_with_counts(queries, **options)
    return as_bytes((*answer, *counts))


def make_calls(dimension: int, seed: int) -> list[Call]:
    """Calls of every kind; each is made again and again, by every thread."""
    random = np.random.default_rng(seed)
    calls: list[Call] = []

    def add(what: str, queries: np.ndarray, **options: Any) -> None:
        if what == "filter":
            rows = options.pop("rows")
            calls.append(lambda index: as_bytes(index.search(queries, within=index.filter(rows), **options)))
        elif what == "counts":
            calls.append(lambda index: counted(index, queries, **options))
        else:
            calls.append(lambda index: as_bytes(getattr(index, what)(queries, **options)))

    for _ in range(40):
        queries = random.integers(0, 256, (int(random.integers(1, 4)), dimension)).astype(np.float32)
        params = PARAMS[int(random.integers(len(PARAMS)))]
        k = int(random.integers(1, 60))
        add("search", queries, k=k, params=params)
        add("search", queries[0], k=k, params=params, threads=2)
        add("counts", queries, k=k, params=params)
        add("search", queries, k=k, params=params, radius=float(random.integers(100, 400)))
    for number in range(10):
        queries = random.integers(0, 256, (2, dimension)).astype(np.float32)
        rows = range(int(random.integers(0, 200)), int(random.integers(400, 900)))
        add("search", queries, k=7, rerank=30)
        add("search", queries, k=7, within=rows, params=PARAMS[2])
        add("filter", queries, rows=np.arange(number, 800, 3), k=9, rerank=40)
        add("range_search", queries, radius=150.0 + 10 * number, params=PARAMS[1])
    calls.append(lambda index: as_bytes([index.reconstruct(np.arange(10, 30))]))
    return calls


class Stress:
    """The answers that are right, and what the threads found."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.index = directory / "index"
        self.states = [path.read_bytes() for path in sorted(directory.glob("manifest-*.json"))]
        self.right: list[set[tuple[bytes, ...]]] = []
        self.counts: Counter[str] = Counter()
        self.stop = threading.Event()
        self.lock = threading.Lock()
        for number, state in enumerate(self.states):
            write_bytes(self.index / MANIFEST, state)
            with open_index(self.index) as opened:
                if number == 0:
                    self.calls = make_calls(opened.dimension, seed)
                    self.right = [set() for _ in self.calls]
                for answers, call in zip(self.right, self.calls, strict=True):
                    answers.add(call(opened))

    def ask(self, shared: Index, seed: int, calls: int, closing: int) -> Counter[str]:
        """One thread of a round: calls and refreshes; it closes the index before call number `closing`."""
        random, found = np.random.default_rng(seed), Counter[str]()
        for number in range(calls):
            if number == closing:
                shared.close()
            what = int(random.integers(-1, len(self.calls)))
            try:
                if what < 0:
                    shared.refresh()
                    found["refreshes"] += 1
                else:
                    wrong = self.calls[what](shared) not in self.right[what]
                    found["wrong answers"] += wrong
                    found["answers"] += 1
            except ValueError as error:
                name = next((name for text, name in REFUSED.items() if text in str(error)), "other errors")
                found[name] += 1
                if name == "other errors":
                    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            except Exception as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                found["other errors"] += 1
            found["calls"] += 1
        return found

    def change_states(self) -> None:
        """Commit one state after the other."""
        while not self.stop.is_set():
            for state in self.states:
                write_bytes(self.index / MANIFEST, state)
                self.counts["commits"] += 1
                time.sleep(0.02)

    def round(self, seed: int, threads: int, calls: int) -> None:
        shared = open_index(self.index)
        random = np.random.default_rng(seed)
        closing = int(random.integers(calls * 7 // 8, calls))

        def run(number: int) -> None:
            found = self.ask(shared, seed * threads + number, calls, closing if number == 0 else -1)
            with self.lock:
                self.counts.update(found)

        workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.counts["rounds"] += 1


def main(directory: Path, seed: int, calls: int, threads: int) -> None:
    stress = Stress(directory, seed)
    faulthandler.enable()
    sys.setswitchinterval(SWITCH_SECONDS)
    committer = threading.Thread(target=stress.change_states)
    committer.start()
    each = min(CALLS_OF_A_ROUND, calls) // threads
    try:
        while stress.counts["answers"] < calls:
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            stress.round(seed + stress.counts["rounds"], threads, each)
    finally:
        stress.stop.set()
        committer.join()
    faulthandler.cancel_dump_traceback_later()
    left = len(list(Path("/proc/self/fd").iterdir()))
    print(json.dumps(stress.counts | {"files open at the end": left}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    os._exit(0)
