"""Recall of data that are moved, scaled, turned, repeated, padded or have outliers, in many cases of each."""

import sys
from pathlib import Path

from helpers.invariance import PROPERTIES, losses

CASES = 300


def run(place: Path, seed: int, cases: int = CASES) -> dict[str, int]:
    """Look at so many cases of each property, with both kinds of leaves; nothing is written to `place`."""
    total = {"properties": 0, "cases": 0, "cases reported by the build": 0, "silent losses": 0}
    for metric, change in PROPERTIES:
        for planes in (False, True):
            found = losses(metric, change, planes=planes, cases=cases)
            kind = "planes" if planes else "records"
            line = (
                f"{metric} {change.__name__} {kind}: mean loss {found.mean:.4f}, most {max(found.lost):.3f}"
            )
            print(f"{line}, {found.reported} reported", file=sys.stderr, flush=True)
            total["properties"] += 1
            total["cases"] += len(found.lost) + found.reported
            total["cases reported by the build"] += found.reported
            total["silent losses"] += found.silent
    return total


def met(counts: dict[str, int]) -> bool:
    return counts["cases"] >= CASES * counts["properties"] and counts["silent losses"] == 0
