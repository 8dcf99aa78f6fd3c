"""Results of `append`, `delete`, `compact` and `export`."""

from dataclasses import asdict

import click

from aggtree.jobs.append import DRIFTED, AppendResult
from aggtree.jobs.cli.tables import print_json, show_stages, show_warnings
from aggtree.jobs.delete import DeleteResult
from aggtree.jobs.export import ExportResult
from aggtree.jobs.running.job_run import BuildResult
from aggtree.jobs.running.memory import format_size
from aggtree.jobs.running.progress import format_time


def show_append(result: AppendResult, source: str, *, as_json: bool) -> None:
    """The rows added, and whether the dictionaries fit them."""
    if as_json:
        print_json({"event": "result"} | asdict(result) | {"drifted": result.drifted})
        return
    last = result.first_row + result.rows + result.left_out - 1
    if result.already_built:
        click.echo(f"{result.path}: already contains these vectors, rows {result.first_row:,} to {last:,}")
        return
    show_stages(result)
    if result.left_out:
        click.echo(f"{result.left_out:,} rows with NaN or infinite values were skipped")
    click.echo(
        f"{result.path}: rows {result.first_row:,} to {last:,} added in {format_time(result.seconds)}, "
        f"peak memory {format_size(result.peak)} of {format_size(result.allowed)} allowed"
    )
    if result.distortion is not None:
        before = "unknown" if result.before is None else f"{result.before:.5g}"
        click.echo(f"mean squared error {result.distortion:.5g}; of the training rows {before}")
    show_warnings(result)
    if result.drifted:
        click.echo(
            f"that is more than {DRIFTED:g} times as much: the dictionaries do not fit these vectors. Train "
            f"them further and encode all vectors again: aggtree build joined:OLD,{source} NEW.index "
            f"--dictionaries {result.path} --continue"
        )


def show_delete(result: DeleteResult, *, as_json: bool) -> None:
    """How many vectors were deleted, and how many remain."""
    if as_json:
        print_json({"event": "result"} | asdict(result))
        return
    before = f", {result.missing:,} not in the index" if result.missing else ""
    click.echo(f"{result.path}: {result.deleted:,} deleted{before}, {result.rows:,} remain")


def show_compact(result: BuildResult, *, as_json: bool) -> None:
    """Rows, time and memory of the merged tree."""
    if as_json:
        print_json({"event": "result"} | asdict(result))
        return
    if result.already_built:
        click.echo(f"{result.path}: already one tree without deleted rows")
        return
    show_stages(result)
    click.echo(
        f"{result.path}: one tree of {result.rows:,} rows in {format_time(result.seconds)}, peak memory "
        f"{format_size(result.peak)} of {format_size(result.allowed)} allowed"
    )


def show_export(result: ExportResult, *, as_json: bool) -> None:
    """The files written."""
    if as_json:
        print_json({"event": "result"} | asdict(result))
        return
    names = " and ".join(map(str, result.files))
    click.echo(f"{names}: {result.rows:,} codes of {result.width} bytes, and their ids")
