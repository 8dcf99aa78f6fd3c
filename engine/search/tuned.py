"""Choose among the measured searches the one that meets a recall or a time."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from aggtree.engine.params import SearchParams
from aggtree.engine.search.request import SearchRequest


@dataclass(frozen=True, kw_only=True)
class TunedPoint:
    """One setting of the search parameters, with its recall and time.

    limits, pruning_ratio, rerank : its parameters; rerank 0 compares with reconstructions only.
    recall : mean fraction of the true k nearest neighbours among the k answers.
    error : half-width of the 95 % confidence interval of the recall.
    milliseconds : median of queries answered one by one on one thread.
    """

    limits: tuple[int, ...]
    rerank: int
    recall: float
    milliseconds: float
    error: float = 0.0
    pruning_ratio: float = math.inf

    @property
    def params(self) -> SearchParams:
        """The search parameters of this point."""
        return SearchParams(limits=self.limits, pruning_ratio=self.pruning_ratio)


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The points of an index, by k.

    build : id of the build they were measured on.
    points : for each k, fastest first; each has a higher recall than those before it.
    """

    build: str
    points: dict[int, tuple[TunedPoint, ...]] = field(default_factory=dict)

    def with_points(self, k: int, points: Iterable[TunedPoint]) -> "Tuning":
        """A copy with the Pareto front of `points` for k."""
        return replace(self, points={**self.points, k: pareto(points)})

    def apply(self, request: SearchRequest) -> SearchRequest:
        """The request with its recall or time replaced by limits and candidates."""
        point = self.choose(request.k, request.recall, request.time_ms)
        return replace(request, params=point.params, rerank=point.rerank, recall=None, time_ms=None)

    def choose(self, k: int, recall: float | None, milliseconds: float | None) -> TunedPoint:
        """The fastest point that reaches a recall, or the one with the highest recall within a time.

        ValueError if there is none; its message states what was measured.
        """
        if k not in self.points:
            known = ", ".join(map(str, sorted(self.points)))
            raise ValueError(f"the index is tuned for k {known}, not for {k}: tune it for {k} too")
        points = self.points[k]
        if recall is not None:
            for point in points:
                if point.recall >= recall:
                    return point
            raise ValueError(f"recall {recall}: the highest measured recall is {points[-1].recall:.4f}")
        within = [
            point for point in points if milliseconds is not None and point.milliseconds <= milliseconds
        ]
        if not within:
            fastest = points[0].milliseconds
            raise ValueError(f"time_ms {milliseconds}: the fastest measured search takes {fastest:.3f} ms")
        return within[-1]


def pareto(points: Iterable[TunedPoint]) -> tuple[TunedPoint, ...]:
    """The Pareto front: points whose recall exceeds that of every faster one, fastest first."""
    best: list[TunedPoint] = []
    for point in sorted(points, key=lambda point: (point.milliseconds, -point.recall)):
        if not best or point.recall > best[-1].recall:
            best.append(point)
    return tuple(best)
