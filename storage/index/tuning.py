"""Recall and time of searches on this machine, measured by `aggtree.tune`, kept beside the manifest.

    sift.index/tuning.json   sealed record: the build it was measured on, and for each k the points that
                             find more than every faster one

It belongs to no build: it may be written again at any time, and is refused when the index is another one.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aggtree.engine.search.tuned import TunedPoint, Tuning
from aggtree.storage.atomic import Json
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.format import TUNING
from aggtree.storage.sealed_json import read_beside, write_sealed

FORMAT = "aggtree tuning"
VERSION = 1


def point_to_json(point: TunedPoint) -> dict[str, Json]:
    """A point as it is written, and as `tune` prints it for programs."""
    # JSON has no infinity. On disk the pruning ratio keeps its first name.
    pruned: dict[str, Json] = {"reach": point.pruning_ratio} if point.pruning_ratio < math.inf else {}
    return {
        "limits": list(point.limits),
        **pruned,
        "rerank": point.rerank,
        "recall": point.recall,
        "error": point.error,
        "milliseconds": point.milliseconds,
    }


def point_from_json(record: Mapping[str, Any]) -> TunedPoint:
    """The point a record describes; ValueError, KeyError or TypeError when it describes none."""
    made = TunedPoint(
        limits=tuple(int(limit) for limit in record["limits"]),
        rerank=int(record["rerank"]),
        recall=float(record["recall"]),
        milliseconds=float(record["milliseconds"]),
        error=float(record.get("error", 0.0)),
        pruning_ratio=float(record.get("reach", math.inf)),
    )
    _ = made.params  # its own checks
    return made


def write_tuning(index: Path, tuning: Tuning) -> None:
    """Write the measurements beside the manifest."""
    points: dict[str, Json] = {
        str(k): [point_to_json(point) for point in points] for k, points in tuning.points.items()
    }
    write_sealed(
        index / TUNING, {"format": FORMAT, "version": VERSION, "build": tuning.build, "points": points}
    )


def read_tuning(index: Path, build: str) -> Tuning | None:
    """The measurements of this build; None if there are none, or only those of another build.

    IndexFormatError when they are damaged.
    """
    path, remedy = index / TUNING, "call aggtree.tune or run `aggtree tune` again"
    record = read_beside(path, (FORMAT, VERSION), build, remedy)
    if record is None:
        return None
    try:
        points = {
            int(k): tuple(point_from_json(item) for item in items) for k, items in record["points"].items()
        }
        if not all(points.values()):
            raise ValueError("no points")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IndexFormatError(f"{path}: cannot be understood; {remedy}") from error
    return Tuning(build=build, points=points)
