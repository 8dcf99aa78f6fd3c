"""The command `aggtree`: argument parsing, and how errors, signals and results reach the user.

Exit codes: 0 done; 1 what was asked is not so (damage found, no index); 2 a wrong input or argument;
130 and 143 stopped by Ctrl-C or SIGTERM.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from aggtree.jobs.build_index import DEFAULT_MEMORY, RunOptions
from aggtree.jobs.progress import JsonProgress, Progress, make_progress
from aggtree.storage.errors import AggtreeError
from aggtree.storage.version import __version__

Command = TypeVar("Command", bound=Callable[..., Any])


class Terminated(BaseException):
    """SIGTERM: unwinds like Ctrl-C, so that workers are closed and temporary files removed."""


def _terminate(_number: int, _frame: object) -> NoReturn:
    raise Terminated


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="aggtree")
@click.option("--traceback", is_flag=True, envvar="AGGTREE_TRACEBACK", help="Show where an error came from.")
def cli(traceback: bool) -> None:
    """Nearest-neighbour indexes of billions of vectors, built out of core, searched by memory map.

    \b
    Examples:
      aggtree plan base.bvecs
      aggtree build base.bvecs sift.index --memory 4GiB
      aggtree search sift.index query.bvecs -k 100 --ground-truth groundtruth.ivecs
      aggtree verify sift.index

    \b
    Completion, for bash (zsh and fish likewise):
      eval "$(_AGGTREE_COMPLETE=bash_source aggtree)"
    """


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
            help="Tasks at once; 0: one after the other in this process.  [default: all cores]",
        ),
        click.option(
            "--scheduler",
            default=None,
            metavar="ADDRESS",
            help="Use an existing Dask cluster, e.g. tcp://host:8786.",
        ),
        json_option,
    ]
)

recipe_options = _apply(
    [
        click.option("--dictionaries", type=click.IntRange(1), metavar="M", help="Number of dictionaries."),
        click.option(
            "--words",
            metavar="SIZES",
            help="Words of each: 256, or a list such as 4096,256x8.  [default: by rows]",
        ),
        click.option(
            "--beam",
            type=click.IntRange(1),
            default=10,
            show_default=True,
            metavar="L",
            help="Paths of encoding.",
        ),
        click.option(
            "--train-rows", type=click.IntRange(1), metavar="N", help="Rows to train on.  [default: by rows]"
        ),
        click.option(
            "--batch-rows",
            type=click.IntRange(1),
            metavar="N",
            help="Rows of a training batch.  [default: 100000]",
        ),
        click.option(
            "--shard-rows",
            type=click.IntRange(1),
            metavar="N",
            help="Rows of a code shard.  [default: by rows]",
        ),
        click.option(
            "--cooling",
            type=click.Choice(["joint", "kmeans"]),
            default="joint",
            show_default=True,
            help="How dictionaries are refined; kmeans is the paper's way.",
        ),
        click.option(
            "--bucket", type=click.IntRange(1), metavar="T", help="Nodes of at most T vectors are not split."
        ),
        click.option(
            "--stray", type=click.IntRange(1), metavar="S", help="Groups of at most S vectors become no node."
        ),
        click.option(
            "--norm-bytes",
            type=click.Choice(["1", "2", "4"]),
            default="1",
            show_default=True,
            help="Bytes of a stored norm.",
        ),
        click.option("--seed", type=int, default=0, show_default=True, help="Of everything random."),
        click.option("--skip-invalid", is_flag=True, help="Leave out rows with NaN or infinite values."),
    ]
)


def _progress(as_json: bool) -> Progress:
    return JsonProgress(sys.stdout) if as_json else make_progress("auto")


def _recipe_arguments(options: dict[str, Any]) -> dict[str, Any]:
    return options | {"norm_bytes": int(options["norm_bytes"])}


@cli.command()
@click.argument("source")
@click.argument("index", type=click.Path(path_type=Path))
@recipe_options
@run_options
@click.option("--replace", is_flag=True, help="Build anew beside what INDEX holds, and take its place.")
def build(
    source: str,
    index: Path,
    *,
    memory: str,
    workers: int | None,
    scheduler: str | None,
    as_json: bool,
    replace: bool,
    **options: Any,
) -> None:
    """Build the index of all vectors of SOURCE in the directory INDEX.

    Run again after an interruption, the same command continues where it stopped.

    \b
    Examples:
      aggtree build base.bvecs sift.index --memory 1GiB
      aggtree build synthetic:sift?rows=20000000 big.index --workers 2
      aggtree build s3://bucket/base.fbin sift.index --scheduler tcp://head:8786
    """
    from aggtree.jobs import reports
    from aggtree.jobs.build_index import build as build_index

    result = build_index(
        source,
        index,
        memory=memory,
        workers=workers,
        scheduler=scheduler,
        replace=replace,
        progress=_progress(as_json),
        **_recipe_arguments(options),
    )
    reports.show_build(result, as_json=as_json)


@cli.command()
@click.argument("source")
@click.argument("index", type=click.Path(path_type=Path))
@recipe_options
@run_options
@click.option("--replace", is_flag=True, help="Start anew beside what INDEX holds.")
def train(
    source: str,
    index: Path,
    *,
    memory: str,
    workers: int | None,
    scheduler: str | None,
    as_json: bool,
    replace: bool,
    **options: Any,
) -> None:
    """Start a build of SOURCE in INDEX and learn its dictionaries; `encode` and `tree` go on.

    \b
    Example:
      aggtree train base.bvecs sift.index --words 4096,256x8
    """
    from aggtree.jobs import reports
    from aggtree.jobs.build_index import run_build
    from aggtree.jobs.recipe import choose_recipe
    from aggtree.jobs.streams import as_source

    opened = as_source(source)
    recipe = choose_recipe(opened.rows, **_recipe_arguments(options))
    run = RunOptions(memory=memory, workers=workers, scheduler=scheduler, progress=_progress(as_json))
    result = run_build(opened, index.absolute(), recipe, run, replace=replace, only_train=True)
    reports.show_stage("train", result, as_json=as_json)


@cli.command()
@click.argument("source")
@click.argument("index", type=click.Path(path_type=Path))
@run_options
def encode(
    source: str, index: Path, *, memory: str, workers: int | None, scheduler: str | None, as_json: bool
) -> None:
    """Encode all vectors of SOURCE with the dictionaries that `train` left in INDEX.

    \b
    Example:
      aggtree encode base.bvecs sift.index --workers 2
    """
    from aggtree.jobs import reports
    from aggtree.jobs.build_index import continue_build
    from aggtree.jobs.streams import as_source

    run = RunOptions(memory=memory, workers=workers, scheduler=scheduler, progress=_progress(as_json))
    result = continue_build(index.absolute(), "encode", run, as_source(source))
    reports.show_stage("encode", result, as_json=as_json)


@cli.command()
@click.argument("index", type=click.Path(path_type=Path))
@run_options
def tree(index: Path, memory: str, workers: int | None, scheduler: str | None, as_json: bool) -> None:
    """Sort the codes that `encode` left in INDEX, build the tree from them and commit the index.

    \b
    Example:
      aggtree tree sift.index --memory 1GiB
    """
    from aggtree.jobs import reports
    from aggtree.jobs.build_index import continue_build

    run = RunOptions(memory=memory, workers=workers, scheduler=scheduler, progress=_progress(as_json))
    result = continue_build(index.absolute(), "tree", run)
    reports.show_build(result, as_json=as_json)


@cli.command()
@click.argument("source")
@recipe_options
@run_options
def plan(
    source: str, memory: str, workers: int | None, scheduler: str | None, as_json: bool, **options: Any
) -> None:
    """Tell what a build of SOURCE would need: rows, partitions, memory, disk, time.

    The time comes from a short measurement on a sample of the rows; nothing is written.

    \b
    Example:
      aggtree plan base.bvecs --memory 1GiB --workers 2
    """
    from aggtree.jobs import reports
    from aggtree.jobs.estimate import plan_build

    run = RunOptions(memory=memory, workers=workers, scheduler=scheduler)
    reports.show_plan(plan_build(source, _recipe_arguments(options), run), as_json=as_json)


def _limits(_context: object, _parameter: object, text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected numbers such as 32,512") from None


@cli.command()
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("queries")
@click.option("-k", type=click.IntRange(1), default=100, show_default=True, help="Neighbours per query.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the ids to this .ivecs or .npy file.")
@click.option(
    "--ground-truth", metavar="FILE", help="True neighbours, for recall: .ivecs, .ibin, .npy, .hdf5."
)
@click.option(
    "--limits", callback=_limits, metavar="L1,L2,..", help="Nodes kept per level.  [default: by size]"
)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="For the batch.")
@json_option
def search(
    index: Path,
    queries: str,
    *,
    k: int,
    out: Path | None,
    ground_truth: str | None,
    limits: tuple[int, ...],
    threads: int,
    as_json: bool,
) -> None:
    """Answer the queries of a file; print recall, time per query, nodes and leaves visited.

    \b
    Examples:
      aggtree search sift.index query.bvecs -k 10 --out answers.ivecs
      aggtree search sift.index query.bvecs --ground-truth groundtruth.ivecs --limits 64,1024
    """
    from aggtree.engine.params import SearchParams
    from aggtree.jobs import reports, search_job
    from aggtree.storage.index_reader import open_index

    if out is not None:
        search_job.check_output(out)
    with open_index(index) as opened:
        block = search_job.read_queries(queries, opened.dimension)
        truth = search_job.load_truth(ground_truth, len(block)) if ground_truth else None
        answer, report = search_job.run_queries(
            opened, block, k=k, params=SearchParams(limits=limits), threads=threads, truth=truth
        )
    if out is not None:
        search_job.save_ids(out, answer.ids)
    reports.show_search(report, out, as_json=as_json)


@cli.command()
@click.argument("source")
@click.argument("queries")
@click.option("-k", type=click.IntRange(1), default=100, show_default=True, help="Neighbours per query.")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Write the ids to this .ivecs or .npy file."
)
@click.option("--threads", type=click.IntRange(1), default=None, help="[default: all cores]")
@click.option(
    "--memory", default=DEFAULT_MEMORY, show_default=True, metavar="SIZE", help="Allowed for this process."
)
@json_option
def exact(
    source: str, queries: str, *, k: int, out: Path, threads: int | None, memory: str, as_json: bool
) -> None:
    """Find the exact neighbours of QUERIES among all rows of SOURCE, streamed from disk.

    \b
    Example:
      aggtree exact base.bvecs query.bvecs -k 100 --out groundtruth.ivecs
    """
    from aggtree.jobs import reports, search_job
    from aggtree.jobs.exact_job import exact_neighbours
    from aggtree.jobs.memory import parse_size
    from aggtree.storage.vector_source import open_source

    search_job.check_output(out)
    threads = threads or len(os.sched_getaffinity(0))
    with open_source(source) as base, _progress(as_json) as progress:
        block = search_job.read_queries(queries, base.dimension)
        ids, _ = exact_neighbours(
            base, block, k=k, threads=threads, allowed=parse_size(memory), progress=progress
        )
    search_job.save_ids(out, ids)
    reports.show_exact(out, ids.shape, as_json=as_json)


@cli.command()
@click.argument("index", type=click.Path(path_type=Path))
@json_option
def info(index: Path, as_json: bool) -> None:
    """Tell what INDEX is: parameters, sizes, bytes per vector by part, nodes and leaves per level.

    \b
    Example:
      aggtree info sift.index
    """
    from aggtree.jobs import reports
    from aggtree.storage.index_reader import open_index

    with open_index(index) as opened:
        reports.show_info(opened, as_json=as_json)


@cli.command()
@click.argument("index", type=click.Path(path_type=Path))
@click.option("--workers", type=click.IntRange(1), default=None, metavar="N", help="[default: all cores]")
@json_option
def verify(index: Path, workers: int | None, as_json: bool) -> None:
    """Read every byte of INDEX and check it; name each damage, exit code 1 if there is any.

    \b
    Example:
      aggtree verify sift.index --workers 2
    """
    from aggtree.jobs import reports
    from aggtree.jobs.verify_job import verify_with_progress

    with _progress(as_json) as progress:
        damages = verify_with_progress(index, workers or len(os.sched_getaffinity(0)), progress)
    reports.show_damages(index, damages, as_json=as_json)
    if damages:
        raise SystemExit(1)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry point: run the command; every error is one line and an exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    wants_traceback = "--traceback" in arguments or bool(os.environ.get("AGGTREE_TRACEBACK"))
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = cli.main(arguments, standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        _stopped(arguments, "Ctrl-C")
        sys.exit(130)
    except Terminated:
        _stopped(arguments, "SIGTERM")
        sys.exit(143)
    except BrokenPipeError:
        # Whoever read our output has gone, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (AggtreeError, ValueError, OSError, MemoryError) as error:
        if wants_traceback:
            raise
        from aggtree.jobs.tasks import describe

        click.echo(f"error: {describe(error)}", err=True)
        sys.exit(2)
    except Exception as error:
        if wants_traceback:
            raise
        from aggtree.jobs.tasks import describe

        click.echo(f"internal error: {describe(error)} (--traceback shows where; please report it)", err=True)
        sys.exit(1)


def _stopped(arguments: list[str], why: str) -> None:
    resumable = arguments[:1] and arguments[0] in ("build", "train", "encode", "tree")
    click.echo(
        f"stopped by {why}" + ("; the same command continues from here" if resumable else ""), err=True
    )


if __name__ == "__main__":
    main()
