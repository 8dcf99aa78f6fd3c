"""Recall of data that are moved, scaled, turned, repeated, padded or have outliers, in many cases of each."""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from helpers.invariance import PROPERTIES, Losses, losses

from aggtree.engine.params import Metric

CASES = 300


def run(place: Path, seed: int, cases: int = CASES) -> dict[str, int]:
    """Look at so many cases of each property, with both kinds of leaves; nothing is written to `place`."""
    total = {"properties": 0, "cases": 0, "cases reported by the build": 0, "silent losses": 0}
    # Those of one metric and kind follow one another, and share what they compare with.
    tasks = sorted(
        (metric, planes, number, cases)
        for number, (metric, _) in enumerate(PROPERTIES)
        for planes in (False, True)
    )
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
        for (metric, planes, number, _), found in zip(tasks, pool.map(_look_at, tasks), strict=True):
            kind = "planes" if planes else "records"
            name = f"{metric} {PROPERTIES[number][1].__name__} {kind}"
            line = f"{name}: mean loss {found.mean:.4f}, most {max(found.lost, default=0):.3f}"
            print(f"{line}, {found.reported} reported", file=sys.stderr, flush=True)
            total["properties"] += 1
            total["cases"] += len(found.lost) + found.reported
            total["cases reported by the build"] += found.reported
            total["silent losses"] += found.silent
    return total


def _look_at(task: tuple[Metric, bool, int, int]) -> Losses:
    metric, planes, number, cases = task
    return losses(metric, PROPERTIES[number][1], planes=planes, cases=cases)


def met(counts: dict[str, int]) -> bool:
    return counts["cases"] >= CASES * counts["properties"] and counts["silent losses"] == 0
