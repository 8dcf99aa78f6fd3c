"""The command `aggtree`: argument parsing, errors, signals and results.

Exit codes: 0 done; 1 `verify` found damage, or a fault of aggtree itself; 2 an input, an argument or a limit
that the message names; 130 and 143 stopped by Ctrl-C or SIGTERM.
"""

import os
import signal
import sys
from pathlib import Path
from typing import ClassVar, NoReturn

import click

from aggtree.jobs.cli import (
    build_commands,
    grow_commands,
    report_command,
    search_commands,
    tune_command,
    warm_up_command,
)
from aggtree.jobs.cli.options import json_option, progress_for
from aggtree.storage.errors import AggtreeError
from aggtree.storage.version import __version__


class Terminated(BaseException):
    """SIGTERM: unwinds like Ctrl-C, so that workers are closed and temporary files removed."""


def terminate(_number: int, _frame: object) -> NoReturn:
    raise Terminated


class Commands(click.Group):
    """Commands whose former names still work, but are not listed in the help."""

    FORMER: ClassVar[dict[str, str]] = {"tree": "commit"}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self.FORMER.get(cmd_name, cmd_name))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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


for command in (
    build_commands.plan,
    build_commands.build,
    build_commands.train,
    build_commands.encode,
    build_commands.commit,
    grow_commands.append,
    grow_commands.delete,
    grow_commands.compact,
    search_commands.search,
    search_commands.exact,
    tune_command.tune,
    report_command.report,
    grow_commands.export,
    warm_up_command.warm_up,
):
    cli.add_command(command)


@cli.command()
@click.argument("index", type=click.Path(path_type=Path))
@json_option
def info(index: Path, as_json: bool) -> None:
    """Show the parameters of INDEX and the sizes of its parts.

    Shows parameters, bytes per vector by part, segments and deleted rows, and nodes and leaves per level.

    \b
    Example:
      aggtree info sift.index
    """
    from aggtree.jobs.cli.info_tables import show_info
    from aggtree.storage.index.reader import open_index

    with open_index(index) as opened:
        show_info(opened, as_json=as_json)


@cli.command()
@click.argument("index", type=click.Path(path_type=Path))
@click.option(
    "--workers", type=click.IntRange(1), default=None, metavar="N", help="Threads.  [default: all cores]"
)
@click.option("--deep", is_flag=True, help="Also compare the tree with the codes it was built from.")
@json_option
def verify(index: Path, *, workers: int | None, deep: bool, as_json: bool) -> None:
    """Read every byte of INDEX and check it.

    Checks the checksums of all files and the structure of the tree. Each damage is reported on one line; the
    exit code is 1 if there is any.

    \b
    Example:
      aggtree verify sift.index --workers 2
    """
    from aggtree.jobs.cli import tables
    from aggtree.jobs.verify import verify as verify_index

    damages = verify_index(index, workers=workers, deep=deep, progress=progress_for(as_json))
    tables.show_damages(index, damages, as_json=as_json)
    if damages:
        raise SystemExit(1)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry point: run the command; every error is one line and an exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    wants_traceback = "--traceback" in arguments or bool(os.environ.get("AGGTREE_TRACEBACK"))
    signal.signal(signal.SIGTERM, terminate)
    try:
        code = cli.main(arguments, prog_name="aggtree", standalone_mode=False)
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
        # The reader of our output has closed the pipe, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (AggtreeError, ValueError, OSError, MemoryError) as error:
        if wants_traceback:
            raise
        from aggtree.jobs.running.tasks import describe

        click.echo(f"error: {describe(error)}", err=True)
        sys.exit(2)
    except Exception as error:
        if wants_traceback:
            raise
        from aggtree.jobs.running.tasks import describe

        click.echo(f"internal error: {describe(error)} (--traceback shows where; please report it)", err=True)
        sys.exit(1)


def _stopped(arguments: list[str], why: str) -> None:
    resumable = {"build", "train", "encode", "commit", *Commands.FORMER, "append", "compact"}
    remedy = "" if resumable.isdisjoint(arguments[:1]) else "; the same command continues from here"
    click.echo(f"stopped by {why}{remedy}", err=True)


if __name__ == "__main__":
    main()
