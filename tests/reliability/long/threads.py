"""One index shared by 16 threads that search, filter, re-rank, refresh and close it; answers are compared."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from helpers.places import program
from helpers.small_builds import SMALL, vectors

import aggtree
from aggtree.storage.index.format import MANIFEST

THREADS, CALLS = 16, 1_000_000
PARTS = (0, 900, 1300)


def prepare(place: Path) -> None:
    """An index and its states: as built, with rows appended, with rows deleted."""
    base, index = vectors(PARTS[-1]), place / "index"
    for number in range(2):
        np.save(place / f"{number}.npy", base[PARTS[number] : PARTS[number + 1]])

    def keep(number: int) -> None:
        (place / f"manifest-{number}.json").write_bytes((index / MANIFEST).read_bytes())

    aggtree.build(place / "0.npy", index, workers=0, **SMALL | {"train_rows": 900, "batch_rows": 900})
    keep(0)
    aggtree.append(index, place / "1.npy", workers=0)
    keep(1)
    aggtree.delete(index, np.arange(3, PARTS[-1], 11)[3:])
    keep(2)


def stress(place: Path, seed: int, calls: int, threads: int = THREADS) -> dict[str, int]:
    """The counts of a process that makes so many calls."""
    prepare(place)
    command = program("reliability.programs.stress_threads", place, seed, calls, threads)
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.stderr:
        print(result.stderr[-4000:], file=sys.stderr, flush=True)
    if result.returncode != 0:
        return {"crashes or hangs": 1}
    found: dict[str, int] = json.loads(result.stdout)
    return {"threads": threads} | found | {"crashes or hangs": 0}


def run(place: Path, seed: int) -> dict[str, int]:
    return stress(place, seed, CALLS)


def met(counts: dict[str, int]) -> bool:
    bad = ("wrong answers", "other errors", "crashes or hangs")
    return counts.get("answers", 0) >= CALLS and not any(counts.get(name, 0) for name in bad)
