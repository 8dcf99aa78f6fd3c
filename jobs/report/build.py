"""Sections of the report about time: the build, the learning curve, and searches."""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate

from aggtree.engine.quality import Quality
from aggtree.engine.search.tuned import TunedPoint
from aggtree.jobs.report.charts import BOTTOM, LEFT, RIGHT, TOP, WIDTH, Axis, Canvas, LineChart, Series
from aggtree.jobs.report.figures import IndexFigures
from aggtree.jobs.report.html import Figure, Section, Table
from aggtree.jobs.running.memory import format_size
from aggtree.jobs.running.progress import format_time
from aggtree.storage.index.build_report import BuildReport, StageFigures


def build_section(figures: IndexFigures) -> Section:
    report = figures.report
    if report is None or not report.stages:
        reason = figures.missing.get("report", "no report.json of this build is beside the manifest")
        return Section(title="Build", note=f"What the build took is not recorded: {reason}.")
    shown = [_timeline_figure(report.stages)]
    if report.distortions:
        shown.append(_learning_figure(report))
    total = sum(stage.seconds for stage in report.stages)
    note = f"{format_time(total)} of work in {len(report.stages)} stages."
    before = [stage.name for stage in report.stages if stage.done < stage.total]
    if before:
        note += f" Runs that were stopped before the end are not counted in: {', '.join(before)}."
    if report.quality is not None:
        note += f" {_described(report.quality)}"
    return Section(title="Build", note=note, figures=shown)


def _described(quality: Quality) -> str:
    """What the build measured of itself, in words."""
    return (
        f"On a sample of {quality.rows:,} rows the mean squared error is {quality.distortion:,.5g}. "
        f"A search of the whole sample finds {quality.recall:.3f} of the true ten nearest neighbours in it; "
        f"exact distances to the reconstructions find {quality.possible:.3f}."
    )


def _timeline_figure(stages: Sequence[StageFigures]) -> Figure:
    table = Table(
        columns=("stage", "time", "rate", "memory projected", "measured", "disk at its end"),
        rows=[
            (
                stage.name,
                format_time(stage.seconds),
                f"{stage.rate:,.0f} {stage.unit}/s",
                format_size(stage.projected),
                format_size(stage.peak),
                format_size(stage.disk),
            )
            for stage in stages
        ],
    )
    return Figure(
        title="Timeline and memory",
        note="Memory of the whole process tree, by stage; dashed is what the plan projected.",
        svg=timeline(stages),
        table=table,
        keys=tuple(stage.name for stage in stages[:6]),
    )


def timeline(stages: Sequence[StageFigures]) -> str:
    """Memory over the time of all stages, each in its colour, without pauses between them."""
    height = 220.0
    canvas = Canvas(height, "Memory over the time of the build")
    ends = list(accumulate(stage.seconds for stage in stages))
    most = max(max(stage.peak, stage.projected) for stage in stages)
    across = Axis(low=0, high=ends[-1] or 1.0, start=LEFT + 2, stop=WIDTH - RIGHT - 2)
    unit = 2**30 if most >= 4 * 2**30 else 2**20
    up = Axis(low=0, high=1.08 * most / unit, start=height - BOTTOM, stop=TOP + 12)
    for value in up.ticks():
        canvas.line(LEFT, up.at(value), WIDTH - RIGHT, up.at(value))
        canvas.text(LEFT - 5, up.at(value) + 3.5, f"{value:,.0f}", anchor="end")
    for number, (stage, end) in enumerate(zip(stages, ends, strict=True)):
        start = end - stage.seconds
        points = [(across.at(start + seconds), up.at(used / unit)) for seconds, used in _trace(stage)]
        edge = [(across.at(start), up.start), *points, (across.at(end), up.start)]
        canvas.path(edge, series=number, style="area")
        level = up.at(stage.projected / unit)
        canvas.path([(across.at(start), level), (across.at(end), level)], series=number, style="dashed")
        words = f"{stage.name}: {format_time(stage.seconds)}, at most {format_size(stage.peak)}"
        canvas.dot(across.at((start + end) / 2), up.at(stage.peak / unit), words, series=number)
    for value in across.ticks():
        canvas.text(across.at(value), up.start + 14, format_time(value) if value else "0", anchor="middle")
    canvas.line(LEFT, up.start, WIDTH - RIGHT, up.start, "axis")
    canvas.text((LEFT + WIDTH - RIGHT) / 2, height - 5, "time", anchor="middle", style="name")
    canvas.text(4, TOP + 1, "memory, GiB" if unit == 2**30 else "memory, MiB", style="name")
    return canvas.svg()


def _trace(stage: StageFigures) -> Iterator[tuple[float, int]]:
    """Memory from the start of a stage to its end; its peak if there is no trace."""
    points = [(min(seconds, stage.seconds), used) for seconds, used in stage.memory]
    if not points:
        points = [(stage.seconds / 2, stage.peak)]
    yield 0.0, points[0][1]
    yield from points
    yield stage.seconds, points[-1][1]


def _learning_figure(report: BuildReport) -> Figure:
    errors, rounds = report.distortions, report.rounds
    points = [(float(number), error) for number, error in enumerate(errors)]
    online = len(errors) > rounds + 1
    titles = [
        f"{_when(number, rounds)}: mean squared error {error:,.5g}" for number, error in enumerate(errors)
    ]
    note = "Mean squared error of the first batch, round after round"
    if online:
        note += ", then of each further batch as it arrived: rows that nothing was learned from yet"
    return Figure(
        title="Learning curve",
        note=f"{note}.",
        svg=LineChart(
            title="Error while the dictionaries were learned",
            x="rounds, then batches" if online else "rounds",
            y="mean squared error",
            series=[Series(name="error", points=points, titles=titles, dots=len(points) <= 80)],
            marks=[(float(rounds), "batches")] if online else [],
        ).svg(),
        table=Table(
            columns=("after", "error"),
            rows=[(_when(number, rounds), f"{error:,.5g}") for number, error in enumerate(errors)],
        ),
    )


def _when(number: int, rounds: int) -> str:
    if number == 0:
        return "the start"
    return f"round {number}" if number <= rounds else f"batch {number - rounds + 1}"


def tuning_section(figures: IndexFigures) -> Section:
    if not figures.tuned:
        reason = figures.missing.get("tuning", "there are no points")
        return Section(title="Search", note=f"Recall against time was not measured. {reason}.")
    note = "As `aggtree tune` measured it, one query after the other on one thread of the machine it ran on."
    shown = [_tuned_figure(k, points) for k, points in sorted(figures.tuned.items())]
    return Section(title="Search", note=note, figures=shown)


def _tuned_figure(k: int, points: Sequence[TunedPoint]) -> Figure:
    titles = [
        f"recall {point.recall:.4f} in {point.milliseconds:.3f} ms, limits {_limits(point)}"
        + (f", {point.rerank} re-ranked" if point.rerank else "")
        for point in points
    ]
    reranked = frozenset(number for number, point in enumerate(points) if not point.rerank)
    note = f"Share of the true {k} nearest that are found."
    if 0 < len(reranked) < len(points):
        note += " Full dots compare candidates with the vectors themselves."
    return Figure(
        title=f"Recall and time, k {k}",
        note=note,
        svg=LineChart(
            title=f"Recall against milliseconds per query for k {k}",
            x="ms per query",
            y="recall",
            series=[
                Series(
                    name="tuned",
                    points=[(point.milliseconds, point.recall) for point in points],
                    titles=titles,
                    hollow=reranked,
                )
            ],
            x_logarithmic=True,
        ).svg(),
        table=Table(
            columns=("recall", "ms", "re-ranked", "limits"),
            rows=[
                (f"{p.recall:.4f}", f"{p.milliseconds:.3f}", str(p.rerank or ""), _limits(p)) for p in points
            ],
        ),
    )


def _limits(point: TunedPoint) -> str:
    limits = ",".join(map(str, point.limits))
    return limits if point.pruning_ratio == math.inf else f"{limits} within {point.pruning_ratio:.3f}"
