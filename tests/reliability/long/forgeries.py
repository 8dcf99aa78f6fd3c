"""Indexes forged under checksums that match: refused in one line, or answered with rows that exist.

Each kind of index has a process of its own with limited memory: a crash or a hang ends it without its counts.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
from helpers.places import program
from helpers.small_index import Sample, add_segment, make_index, make_sample

from aggtree.engine.params import TreeParams
from aggtree.storage.index import first_groups

FORGERIES = 900
"""Of each kind of index."""
INDEXES = ("plain", "own ids", "grown", "grown with own ids", "grouped", "planes")


def make(index: Path, name: str) -> None:
    """An index with the files that a kind has, of few rows."""
    plain = make_sample(300, (20, 7, 16), params=TreeParams(bucket=20, norm_bytes=2))
    ids = np.arange(300)[::-1] * 3
    if name == "grouped":
        with mock.patch.object(first_groups, "ONE_STAGE", 50):
            make_index(index, make_sample(600, (300, 5, 6), params=TreeParams(bucket=2)))
    elif name == "planes":
        sample = make_sample(300, (20, 7, 16), params=TreeParams(planes=True))
        make_index(index, sample)
        add_segment(index, more_rows(sample, 100), deleted=(1, 350))
    else:
        own = name.endswith("own ids")
        make_index(index, plain, ids=ids if own else None)
        if name.startswith("grown"):
            add = more_rows(plain, 120)
            add_segment(index, add, deleted=(0, 77, 310), ids=np.arange(120) + 10**12 if own else None)


def more_rows(sample: Sample, count: int) -> Sample:
    """A sample of the same dictionaries."""
    return replace(sample, codes=sample.codes[::-1][:count])


def forge(index: Path, name: str, seed: int, count: int) -> dict[str, int]:
    """Make an index and forge others from it; the counts of the process that did."""
    make(index, name)
    command = program("reliability.programs.forge_index", index, seed, count)
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        print((result.stdout + result.stderr)[-4000:], file=sys.stderr, flush=True)
        return {"crashes or hangs": 1}
    *failures, counts = result.stdout.splitlines()
    print("".join(f"{name}: {line}\n" for line in failures), end="", file=sys.stderr, flush=True)
    found: dict[str, int] = json.loads(counts)
    return found


def run(place: Path, seed: int, count: int = FORGERIES) -> dict[str, int]:
    """Forge all kinds of indexes."""
    total = {"kinds of indexes": len(INDEXES), "forgeries": 0, "opened": 0, "failed": 0}
    total |= {"crashes or hangs": 0}
    for name in INDEXES:
        for what, found in forge(place / name, name, seed, count).items():
            total[what] += found
    return total


def met(counts: dict[str, int]) -> bool:
    return counts["forgeries"] >= 5000 and not counts["failed"] and not counts["crashes or hangs"]
