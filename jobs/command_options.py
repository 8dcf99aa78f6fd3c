"""Options that several commands share."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from aggtree.jobs.build_index import DEFAULT_MEMORY
from aggtree.jobs.progress import JsonProgress, Progress, make_progress

Command = TypeVar("Command", bound=Callable[..., Any])


def _apply(options: list[Callable[[Any], Any]]) -> Callable[[Command], Command]:
    def decorate(function: Command) -> Command:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON lines for programs.")

run_options = _apply(
    [
        click.option(
            "--memory",
            default=DEFAULT_MEMORY,
            show_default=True,
            metavar="SIZE",
            help="Allowed for this process and all it starts.",
        ),
        click.option(
            "--workers",
            type=click.IntRange(0),
            default=None,
            metavar="N",
            help="Tasks at once; 0: one after the other in this process. [default: all cores]",
        ),
        click.option(
            "--scheduler",
            default=None,
            metavar="ADDRESS",
            help="Use an existing Dask cluster, e.g. tcp://host:8786.",
        ),
        click.option(
            "--codes",
            default=None,
            metavar="URL",
            help="Keep the code shards there, e.g. s3://bucket/x.zarr. [default: inside INDEX]",
        ),
        json_option,
    ]
)


def _count(name: str, metavar: str, text: str, otherwise: str = "by rows") -> Callable[[Any], Any]:
    """An option that is a number of at least 1; left out, it is chosen."""
    return click.option(name, type=click.IntRange(1), metavar=metavar, help=f"{text} [default: {otherwise}]")


def _choice(name: str, choices: list[str], text: str) -> Callable[[Any], Any]:
    """An option whose default is the first choice."""
    return click.option(name, type=click.Choice(choices), default=choices[0], show_default=True, help=text)


recipe_options = _apply(
    [
        _count("--dictionaries", "M", "Number of dictionaries."),
        click.option(
            "--words",
            metavar="SIZES",
            help="Words of each: 256, or a list such as 4096,256x8. [default: by rows]",
        ),
        _count("--beam", "L", "Paths kept by encoding.", "10"),
        _count("--train-rows", "N", "Rows to train on, in all passes."),
        _count("--batch-rows", "N", "Rows of a training batch.", "100000"),
        _count("--shard-rows", "N", "Rows of a code shard."),
        _choice("--cooling", ["joint", "kmeans"], "How dictionaries are refined; kmeans is the paper's way."),
        _count("--bucket", "T", "Nodes of at most T vectors are not split.", "by words"),
        _count("--stray", "S", "Groups of at most S vectors become no node.", "1"),
        _choice("--norm-bytes", ["1", "2", "4"], "Bytes of a stored norm."),
        _choice("--metric", ["l2", "ip", "cosine"], "Euclidean distance, inner product or cosine."),
        click.option("--seed", type=int, default=0, show_default=True, help="Of everything random."),
        click.option("--skip-invalid", is_flag=True, help="Leave out rows with NaN or infinite values."),
    ]
)


def progress_for(as_json: bool) -> Progress:
    return JsonProgress(sys.stdout) if as_json else make_progress("auto")


def recipe_arguments(options: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None}
    return given | {"norm_bytes": int(options["norm_bytes"])}
