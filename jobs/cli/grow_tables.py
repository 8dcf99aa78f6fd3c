"""What `append`, `delete`, `compact` and `export` did, as a user reads it."""

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
    """Which rows were added, and whether they suit the dictionaries."""
    if as_json:
        print_json({"event": "result"} | asdict(result) | {"drifted": result.drifted})
        return
    last = result.first_row + result.rows + result.left_out - 1
    if result.already_built:
        click.echo(f"{result.path}: these vectors are there already, rows {result.first_row:,} to {last:,}")
        return
    show_stages(result)
    if result.left_out:
        click.echo(f"{result.left_out:,} rows with NaN or infinite values were left out")
    click.echo(
        f"{result.path}: rows {result.first_row:,} to {last:,} added in {format_time(result.seconds)}, "
        f"peak memory {format_size(result.peak)} of {format_size(result.allowed)} allowed"
    )
    if result.distortion is not None:
        before = "not known" if result.before is None else f"{result.before:.5g}"
        click.echo(f"mean squared error {result.distortion:.5g}; of the rows trained on {before}")
    show_warnings(result)
    if result.drifted:
        click.echo(
            f"that is more than {DRIFTED:g} times as much: the dictionaries do not suit these vectors. Train "
            f"them further and encode all anew: aggtree build joined:OLD,{source} NEW.index "
            f"--dictionaries {result.path} --continue"
        )


def show_delete(result: DeleteResult, *, as_json: bool) -> None:
    """How many vectors are gone and left."""
    if as_json:
        print_json({"event": "result"} | asdict(result))
        return
    before = f", {result.missing:,} were not there any more" if result.missing else ""
    click.echo(f"{result.path}: {result.deleted:,} deleted{before}, {result.rows:,} left")


def show_compact(result: BuildResult, *, as_json: bool) -> None:
    """What the merged index is, and what it took."""
    if as_json:
        print_json({"event": "result"} | asdict(result))
        return
    if result.already_built:
        click.echo(f"{result.path}: is one tree without deleted rows already")
        return
    show_stages(result)
    click.echo(
        f"{result.path}: one tree of {result.rows:,} rows in {format_time(result.seconds)}, peak memory "
        f"{format_size(result.peak)} of {format_size(result.allowed)} allowed"
    )


def show_export(result: ExportResult, *, as_json: bool) -> None:
    """Which files were written."""
    if as_json:
        print_json({"event": "result"} | asdict(result))
        return
    names = " and ".join(map(str, result.files))
    click.echo(f"{names}: {result.rows:,} codes of {result.width} bytes, and their ids")
