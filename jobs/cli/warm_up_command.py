"""The command `warm-up`: compile kernels before they are needed."""

from pathlib import Path

import click

from aggtree.jobs.cli.options import json_option, progress_for
from aggtree.jobs.cli.tables import print_json


@click.command("warm-up")
@click.argument("index", type=click.Path(path_type=Path), required=False)
@click.option("--vectors", metavar="PATH", help="Where the vectors are, if not where they were at the build.")
@click.option("--check", is_flag=True, help="Compile nothing; exit code 1 if anything is missing.")
@json_option
def warm_up(index: Path | None, *, vectors: str | None, check: bool, as_json: bool) -> None:
    """Compile the kernels for this processor ahead of time.

    Those that searches of INDEX need, with filters, deleted rows, segments and re-ranking; without INDEX,
    those of builds and searches of all usual kinds. They are kept on disk, so that the next process compiles
    nothing.

    \b
    Examples:
      aggtree warm-up
      aggtree warm-up sift.index --check
    """
    from aggtree.jobs.warm_up import warm_up as compile_ahead

    missing = compile_ahead(index, vectors=vectors, check=check, progress=progress_for(as_json))
    if as_json:
        print_json({"missing" if check else "compiled": list(missing)})
    elif check:
        click.echo(f"not compiled: {'; '.join(missing)}" if missing else "all kernels are compiled")
    else:
        click.echo(f"compiled: {'; '.join(missing)}" if missing else "all kernels were compiled before")
    if check and missing:
        raise SystemExit(1)
