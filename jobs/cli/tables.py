"""Results of commands: tables on a terminal, one JSON object per line for programs."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from aggtree.engine.search.ranges import RangeAnswer
from aggtree.jobs.planning.estimate import BuildPlan
from aggtree.jobs.running.job_run import BuildResult
from aggtree.jobs.running.memory import format_size
from aggtree.jobs.running.progress import format_time
from aggtree.jobs.search import SearchReport
from aggtree.storage.verify.index import Damage


def print_json(record: dict[str, Any]) -> None:
    """One JSON object on a line."""
    click.echo(json.dumps(record, default=str))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on the terminal; numbers are right-aligned."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, soft_wrap=True).print(table)


def show_build(result: BuildResult, *, as_json: bool) -> None:
    """Rows, time and memory of a build."""
    if as_json:
        print_json({"event": "result"} | asdict(result))
        return
    if result.already_built:
        click.echo(
            f"{result.path}: already built from this source with these parameters, {result.rows:,} rows"
        )
        return
    show_stages(result)
    if result.left_out:
        click.echo(f"{result.left_out:,} rows with NaN or infinite values were skipped")
    click.echo(
        f"{result.path}: {result.rows:,} rows in {format_time(result.seconds)}, peak memory "
        f"{format_size(result.peak)} of {format_size(result.allowed)} allowed"
    )
    if result.recall is not None:
        click.echo(
            f"in a sample of its rows a search finds {result.recall:.3f} of the true ten nearest neighbours; "
            f"mean squared error {result.distortion:.5g}"
        )
    show_warnings(result)


def show_warnings(result: BuildResult) -> None:
    """What is wrong, one line each."""
    for line in result.warnings:
        click.echo(f"warning: {line}", err=True)


def show_stage(stage: str, result: BuildResult, *, as_json: bool) -> None:
    """Time and memory of one stage, and the next command."""
    if as_json:
        print_json({"event": "result"} | asdict(result))
        return
    if result.already_built:
        click.echo(f"{result.path}: already built from this source with these parameters")
        return
    show_stages(result)
    following = {"train": f"aggtree encode SOURCE {result.path}", "encode": f"aggtree commit {result.path}"}
    click.echo(f"{stage} is done; next: {following[stage]}")


def show_stages(result: BuildResult) -> None:
    """Time and memory of each stage."""
    print_table(
        "",
        ("stage", "time", "memory projected", "measured"),
        (
            (stage.name, format_time(stage.seconds), format_size(stage.projected), format_size(stage.peak))
            for stage in result.stages
        ),
    )


def show_plan(plan: BuildPlan, *, as_json: bool) -> None:
    """The plan of a build: tasks, memory, disk space and time."""
    if as_json:
        record = asdict(plan) | {"recipe": plan.recipe.flat(), "projected": plan.plan.projected}
        print_json(record | {"total_seconds": sum(plan.seconds.values())})
        return
    recipe = plan.recipe
    leaves = "leaves in planes" if recipe.tree.planes else f"buckets of {recipe.tree.bucket}"
    click.echo(f"{plan.source}: {plan.rows:,} rows of dimension {plan.dimension}")
    click.echo(
        f"dictionaries {format_words(recipe.words)}, beam {recipe.annealing.beam}, {recipe.train_rows:,} "
        f"training rows, {leaves}"
    )
    print_table(
        "",
        ("stage", "tasks", "rows each", "at once", "memory", "time"),
        (
            (
                stage.name,
                f"{stage.tasks:,}",
                f"{stage.task_rows:,}",
                str(stage.workers),
                format_size(stage.projected),
                format_time(plan.seconds[stage.name]),
            )
            for stage in plan.plan.stages
        ),
    )
    click.echo(
        f"memory {format_size(plan.plan.projected)} projected of {format_size(plan.plan.allowed)} allowed; "
        f"disk {format_size(plan.plan.index_bytes)} for the index and {format_size(plan.plan.work_bytes)} "
        f"while it is built; about {format_time(sum(plan.seconds.values()))}"
    )
    if plan.alternatives:
        print_table(
            "",
            ("bytes per vector", "index", "about"),
            (
                (str(other.bytes_per_vector), format_size(other.index_bytes), format_time(other.seconds))
                for other in plan.alternatives
            ),
        )


def show_search(report: SearchReport, out: Path | None, *, as_json: bool) -> None:
    """Recall, times and visits of a file of queries."""
    if as_json:
        recall = {f"R@{rank}": value for rank, value in report.recall.items()}
        record = asdict(report) | {"recall": recall, "out": out, "reach": report.pruning_ratio}
        del record["pruning_ratio"]  # programs rely on its former name
        print_json(record)
        return
    limits = ",".join(map(str, report.limits))
    rerank = f", the best {report.rerank} re-ranked" if report.rerank else ""
    allowed = "" if report.allowed is None else f", {report.allowed:,} rows allowed"
    pruning = "" if report.pruning_ratio is None else f", pruning ratio {report.pruning_ratio:.3f}"
    click.echo(f"{report.queries:,} queries, k {report.k}, limits {limits}{pruning}{rerank}{allowed}")
    if report.recall:
        click.echo("  ".join(f"R@{rank} {value:.4f}" for rank, value in report.recall.items()))
    if report.found is not None:
        click.echo(f"of the true {report.k} nearest, found {report.found:.4f}")
    click.echo(f"one by one: p50 {report.p50:.3f} ms, p99 {report.p99:.3f} ms")
    threads = f"{report.threads} threads" if report.threads > 1 else "1 thread"
    click.echo(f"as a batch: {report.batch:.3f} ms per query on {threads}")
    click.echo(f"visited per query: {report.nodes:,.0f} nodes, {report.leaves:,.0f} leaves")
    if out is not None:
        click.echo(f"ids written to {out}")


def show_ranges(found: RangeAnswer, milliseconds: float, out: Path | None, *, as_json: bool) -> None:
    """How many answers are within the radius."""
    counts = [int(stop - start) for start, stop in pairwise(found.starts)]
    if as_json:
        print_json({"queries": len(counts), "answers": counts, "batch": milliseconds, "out": out})
        return
    mean = sum(counts) / len(counts)
    click.echo(f"{len(counts):,} queries, {milliseconds:.3f} ms each")
    click.echo(f"answers per query: {min(counts):,} to {max(counts):,}, {mean:,.1f} on average")
    if out is not None:
        click.echo(f"starts, ids and distances written to {out}")


def show_exact(out: Path, shape: tuple[int, ...], *, as_json: bool) -> None:
    """The file of exact neighbours."""
    if as_json:
        print_json({"event": "result", "out": str(out), "queries": shape[0], "k": shape[1]})
    else:
        click.echo(f"{out}: exact {shape[1]} nearest of {shape[0]:,} queries")


def show_damages(index: Path, damages: Sequence[Damage], *, as_json: bool) -> None:
    """One line per damage, or one that states that there is none."""
    if as_json:
        print_json(
            {"event": "result", "index": str(index), "damages": [asdict(damage) for damage in damages]}
        )
        return
    for damage in damages:
        click.echo(str(damage))
    if not damages:
        click.echo(f"{index}: no damage found")


def format_words(words: Sequence[int]) -> str:
    """Sizes as the command line takes them: 4096,256x8."""
    groups: list[list[int]] = []
    for size in words:
        if groups and groups[-1][0] == size:
            groups[-1][1] += 1
        else:
            groups.append([size, 1])
    return ",".join(f"{size}x{times}" if times > 1 else str(size) for size, times in groups)
