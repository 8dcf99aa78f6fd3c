"""Spoiled files for every reader, each kind in a process of its own with limited memory."""

import json
import subprocess
import sys
from pathlib import Path

import fuzz_readers

INPUTS = 100_000


def run(place: Path, seed: int, inputs: int = INPUTS) -> dict[str, int]:
    """Give all readers together at least so many inputs; slow readers get fewer of them."""
    kinds = fuzz_readers.make_kinds(place)
    share = -(-inputs // sum(kind.speed for kind in kinds.values()))
    total = {"readers": len(kinds), "inputs": 0, "refused": 0, "crashes, hangs or other errors": 0}
    for number, (name, kind) in enumerate(kinds.items()):
        directory = place / f"kind-{number}"
        directory.mkdir()
        command = [sys.executable, fuzz_readers.__file__, name, share * kind.speed, seed, directory]
        result = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            print(f"{name}: {result.stderr[-3000:]}", file=sys.stderr, flush=True)
            total["crashes, hangs or other errors"] += 1
            continue
        for what, count in json.loads(result.stdout).items():
            total[what] += count
    return total


def met(counts: dict[str, int]) -> bool:
    return counts["inputs"] >= INPUTS and counts["crashes, hangs or other errors"] == 0
