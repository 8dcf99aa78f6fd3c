"""Spoiled files for every reader, each kind in a forked process with limited memory."""

import sys
from pathlib import Path

from reliability.builds import start_child, status_of
from reliability.programs import fuzz_readers

INPUTS = 100_000


def run(place: Path, seed: int, inputs: int = INPUTS) -> dict[str, int]:
    """Give all readers together at least so many inputs; slow readers get fewer of them."""
    kinds = fuzz_readers.make_kinds(place)
    share = -(-inputs // sum(kind.speed for kind in kinds.values()))
    total = {"readers": len(kinds), "inputs": 0, "refused": 0, "crashes, hangs or other errors": 0}
    for name, kind in kinds.items():
        count, report = share * kind.speed, place / "refused"
        code = status_of(start_child(lambda: fuzz_readers.fuzz_alone(kind, count, seed, report)))  # noqa: B023
        if code != 0:
            print(f"{name}: ended with {code}", file=sys.stderr, flush=True)
            total["crashes, hangs or other errors"] += 1
            continue
        total["inputs"] += count
        total["refused"] += int(report.read_text())
    return total


def met(counts: dict[str, int]) -> bool:
    return counts["inputs"] >= INPUTS and counts["crashes, hangs or other errors"] == 0
