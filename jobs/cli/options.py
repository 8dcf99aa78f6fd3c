"""Options that several commands share."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_args

import click

from aggtree.engine.params import METRICS, AnnealingParams, Cooling
from aggtree.engine.search.request import Rerank
from aggtree.jobs.planning.defaults import QUALITIES
from aggtree.jobs.running.job_run import DEFAULT_MEMORY
from aggtree.jobs.running.progress import JsonProgress, Progress, make_progress

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
            help="Memory limit for this process and all its child processes.",
        ),
        click.option(
            "--workers",
            type=click.IntRange(0),
            default=None,
            metavar="N",
            help="Parallel tasks; 0: run them in this process. [default: all cores]",
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
            help="Store the code shards there, e.g. s3://bucket/x.zarr. [default: inside INDEX]",
        ),
        json_option,
    ]
)


class Renamed(click.Option):
    """An option whose former name still works, but is not listed in the help."""

    def __init__(self, declarations: Sequence[str], *, former: str, **attributes: Any) -> None:
        super().__init__(declarations, **attributes)
        self.former = former

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        listed = self.opts
        self.opts = [*listed, self.former]
        super().add_to_parser(parser, ctx)
        self.opts = listed


def _count(
    name: str, metavar: str, text: str, otherwise: str = "by rows", **attributes: Any
) -> Callable[[Any], Any]:
    """An integer option of at least 1, chosen by the build when it is left out."""
    words = f"{text} [default: {otherwise}]"
    return click.option(name, type=click.IntRange(1), metavar=metavar, help=words, **attributes)


def _choice(name: str, choices: Sequence[str], text: str) -> Callable[[Any], Any]:
    """An option whose default is the first choice."""
    return click.option(name, type=click.Choice(choices), default=choices[0], show_default=True, help=text)


class _CountOrIndex(click.ParamType):  # type: ignore[type-arg]
    """A number of dictionaries, or the index whose dictionaries are reused."""

    name = "count or index"

    def convert(self, value: Any, parameter: Any, context: Any) -> int | str:
        if isinstance(value, str) and not value.lstrip("-").isdecimal():
            return value
        return click.IntRange(1).convert(value, parameter, context)


recipe_options = _apply(
    [
        click.option(
            "--dictionaries",
            type=_CountOrIndex(),
            metavar="M|INDEX",
            help="Number of dictionaries, or an index whose trained ones are reused. [default: by rows]",
        ),
        click.option(
            "--continue",
            "continue_training",
            is_flag=True,
            help="Continue to train the dictionaries of --dictionaries INDEX on SOURCE.",
        ),
        click.option(
            "--words",
            metavar="SIZES",
            help="Words (codewords) of each: 256, or a list such as 4096,256x8. [default: by rows]",
        ),
        _count(
            "--bytes-per-vector",
            "B",
            "Instead of words: bytes of a code of 16-word dictionaries.",
            "by dimension",
        ),
        click.option(
            "--size",
            metavar="SIZE",
            help="Instead of words: the longest such codes whose index takes at most so much, e.g. 20GiB.",
        ),
        _count("--beam", "L", "Beam width of encoding.", str(AnnealingParams.beam)),
        _count("--train-rows", "N", "Rows to train on, in all passes."),
        _count("--batch-rows", "N", "Rows of a training batch.", "100000"),
        _count("--shard-rows", "N", "Rows of a code shard."),
        _choice("--quality", QUALITIES, "How much time training may take."),
        _choice("--cooling", get_args(Cooling), "How dictionaries are refined; kmeans as in the paper."),
        _count("--bucket", "T", "Nodes of at most T vectors are not split.", "by words"),
        _count(
            "--direct-leaves",
            "S",
            "Groups of at most S vectors get no node: they are leaves of the split node.",
            "1",
            cls=Renamed,
            former="--stray",
        ),
        _choice("--norm-bytes", ("1", "2", "4"), "Bytes of a stored norm."),
        _choice("--metric", METRICS, "Euclidean distance, inner product or cosine."),
        click.option(
            "--seed", type=int, default=AnnealingParams.seed, show_default=True, help="Random seed."
        ),
        click.option("--skip-invalid", is_flag=True, help="Skip rows with NaN or infinite values."),
    ]
)


def progress_for(as_json: bool) -> Progress:
    return JsonProgress(sys.stdout) if as_json else make_progress("auto")


ids_option = click.option(
    "--ids",
    metavar="FILE",
    help="Your ids of the rows, int64: .npy, .i64, .hdf5::NAME or .parquet::NAME. [default: row numbers]",
)
restart_option = click.option(
    "--replace", is_flag=True, help="Discard what another unfinished command left in INDEX."
)


def id_set(_context: object, _parameter: object, text: str | None) -> range | str | None:
    """A range written as 1000:2000, or the name of a file."""
    start, colon, stop = (text or "").partition(":")
    if colon and start.lstrip("-").isdecimal() and stop.lstrip("-").isdecimal():
        return range(int(start), int(stop))
    return text


def candidates(_context: object, _parameter: object, text: str) -> Rerank:
    """A number of candidates, or auto."""
    if text == "auto":
        return "auto"
    if not text.isdecimal():
        raise click.BadParameter(f"{text!r}: expected a number of candidates, or auto")
    return int(text)


def given_options(options: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The options a user gave, as Python's functions take them, and whether JSON is wanted."""
    as_json = bool(options.pop("as_json", False))
    given = {name: value for name, value in options.items() if value is not None}
    if "norm_bytes" in given:
        given["norm_bytes"] = int(given["norm_bytes"])
    return given | {"progress": progress_for(as_json)}, as_json
