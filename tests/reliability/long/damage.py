"""Every file of an index cut at every 4 KiB, and random bits of it changed.

Each time the index is verified, opened and searched. Each index has a process of its own with limited
memory: a crash or a hang ends it without its counts.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
from helpers.places import program
from helpers.sizes import sized
from helpers.small_index import add_segment, make_index, make_sample

from aggtree.engine.params import TreeParams
from aggtree.storage.index import first_groups

FLIPS, LIES = 400, 150
SAMPLES = {
    "wide": lambda: make_sample(sized(3000, 300), (300, 7, 256, 16)),
    "narrow": lambda: make_sample(
        sized(2000, 200), (9, 256, 200), params=TreeParams(bucket=20, norm_bytes=2)
    ),
    "long": lambda: make_sample(sized(2000, 200), (20, *[30] * 8), params=TreeParams(bucket=32)),
    "exact": lambda: make_sample(
        sized(1500, 150), (5, 8, 4, 3, 2), params=TreeParams(bucket=1, norm_bytes=4)
    ),
    "grouped": lambda: make_sample(sized(1500, 150), (700, 5, 6), params=TreeParams(bucket=2)),
}
LARGE = {"large": lambda: make_sample(12_000, (1000, 60, 256, 16))}


def damage(index: Path, name: str, seed: int, flips: int, lies: int) -> dict[str, int]:
    """Make one of the indexes and damage it; the counts of the process that did."""
    sample = (SAMPLES | LARGE)[name]()
    if name == "grouped":  # with all the files an index may have
        with mock.patch.object(first_groups, "ONE_STAGE", 50):
            make_index(index, sample, ids=np.arange(len(sample.codes))[::-1] * 3)
    else:
        make_index(index, sample)
    if name == "exact":  # grown and shrunk
        add_segment(index, replace(sample, codes=sample.codes[::-3]), deleted=(0, 77, sized(1600, 160)))
    command = program("reliability.programs.damage_index", index, seed, flips, lies)
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        print((result.stdout + result.stderr)[-4000:], file=sys.stderr, flush=True)
        return {"crashes or hangs": 1}
    *failures, counts = result.stdout.splitlines()
    print("".join(f"{line}\n" for line in failures), end="", file=sys.stderr, flush=True)
    found: dict[str, int] = json.loads(counts)
    return found


def run(place: Path, seed: int) -> dict[str, int]:
    """Damage all indexes; the large one is there for its many cuts."""
    total = {"cuts": 0, "flips": 0, "lies": 0, "cuts failed": 0, "flips failed": 0, "lies failed": 0}
    total |= {"crashes or hangs": 0}
    for name in SAMPLES | LARGE:
        for what, count in damage(place / name, name, seed, FLIPS, LIES).items():
            total[what] += count
    return total


def met(counts: dict[str, int]) -> bool:
    failures = (count for what, count in counts.items() if what.endswith("failed"))
    return counts["flips"] >= 2000 and counts["crashes or hangs"] == 0 and not any(failures)
