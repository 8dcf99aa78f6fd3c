"""What a search costs and finds on this machine, measured by `aggtree tune`, kept beside the manifest.

    sift.index/tuning.json   sealed record: the build it was measured on, and for each k the points that
                             find more than every faster one

It belongs to no build: it may be written again at any time, and is refused when the index is another one.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aggtree.engine.params import SearchParams
from aggtree.storage.atomic import Json
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.sealed_json import read_beside, write_sealed

TUNING = "tuning.json"
FORMAT = "aggtree tuning"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class TunedPoint:
    """One way to search.

    limits, reach, rerank : its parameters; rerank 0 compares with reconstructions only.
    recall : mean share of the true k nearest neighbours among the k answers.
    error : how far the mean over other queries of the same kind may be from it, with 95 % certainty.
    milliseconds : median of queries answered one by one on one thread.
    """

    limits: tuple[int, ...]
    rerank: int
    recall: float
    milliseconds: float
    error: float = 0.0
    reach: float = math.inf

    @property
    def params(self) -> SearchParams:
        return SearchParams(limits=self.limits, reach=self.reach)

    def to_json(self) -> dict[str, Json]:
        # JSON has no infinity.
        reach: dict[str, Json] = {"reach": self.reach} if self.reach < math.inf else {}
        return {
            "limits": list(self.limits),
            **reach,
            "rerank": self.rerank,
            "recall": self.recall,
            "error": self.error,
            "milliseconds": self.milliseconds,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "TunedPoint":
        made = cls(
            limits=tuple(int(limit) for limit in record["limits"]),
            rerank=int(record["rerank"]),
            recall=float(record["recall"]),
            milliseconds=float(record["milliseconds"]),
            error=float(record.get("error", 0.0)),
            reach=float(record.get("reach", math.inf)),
        )
        _ = made.params  # its own checks
        return made


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The points of an index, by k.

    build : id of the build they were measured on.
    points : for each k, faster ones first; each finds more than those before it.
    """

    build: str
    points: dict[int, tuple[TunedPoint, ...]] = field(default_factory=dict)

    def with_points(self, k: int, points: Iterable[TunedPoint]) -> "Tuning":
        """The same with the best of `points` for k."""
        return replace(self, points={**self.points, k: pareto(points)})

    def choose(self, k: int, recall: float | None, milliseconds: float | None) -> TunedPoint:
        """The fastest point that reaches a recall, or the one that finds most within a time.

        ValueError when there is none; it says what there is.
        """
        if k not in self.points:
            known = ", ".join(map(str, sorted(self.points)))
            raise ValueError(f"the index is tuned for k {known}, not for {k}: run `aggtree tune -k {k}`")
        points = self.points[k]
        if recall is not None:
            for point in points:
                if point.recall >= recall:
                    return point
            raise ValueError(f"recall {recall}: the most that was measured is {points[-1].recall:.4f}")
        within = [
            point for point in points if milliseconds is not None and point.milliseconds <= milliseconds
        ]
        if not within:
            fastest = points[0].milliseconds
            raise ValueError(f"time_ms {milliseconds}: the fastest that was measured takes {fastest:.3f} ms")
        return within[-1]


def pareto(points: Iterable[TunedPoint]) -> tuple[TunedPoint, ...]:
    """Those points that find more than every faster one, faster ones first."""
    best: list[TunedPoint] = []
    for point in sorted(points, key=lambda point: (point.milliseconds, -point.recall)):
        if not best or point.recall > best[-1].recall:
            best.append(point)
    return tuple(best)


def write_tuning(index: Path, tuning: Tuning) -> None:
    """Put the measurements beside the manifest."""
    points: dict[str, Json] = {
        str(k): [point.to_json() for point in points] for k, points in tuning.points.items()
    }
    write_sealed(
        index / TUNING, {"format": FORMAT, "version": VERSION, "build": tuning.build, "points": points}
    )


def read_tuning(index: Path, build: str) -> Tuning | None:
    """The measurements of this build; None when there are none, or of another build only.

    IndexFormatError when they are damaged.
    """
    path, remedy = index / TUNING, "run `aggtree tune` again"
    record = read_beside(path, (FORMAT, VERSION), build, remedy)
    if record is None:
        return None
    try:
        points = {
            int(k): tuple(TunedPoint.from_json(item) for item in items)
            for k, items in record["points"].items()
        }
        if not all(points.values()):
            raise ValueError("no points")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IndexFormatError(f"{path}: cannot be understood; {remedy}") from error
    return Tuning(build=build, points=points)
