"""The commands that build: `plan`, `build`, and its stages `train`, `encode` and `commit`."""

from pathlib import Path
from typing import Any

import click

from aggtree.jobs.cli.options import given_options, ids_option, recipe_options, run_options
from aggtree.jobs.running.job_run import RunOptions

index_argument = click.argument("index", type=click.Path(path_type=Path))


@click.command()
@click.argument("source")
@index_argument
@recipe_options
@run_options
@ids_option
@click.option(
    "--replace", is_flag=True, help="Build beside an existing index in INDEX, and replace it when done."
)
@click.option("--repair", is_flag=True, help="Verify a finished index, and rebuild what is damaged.")
def build(source: str, index: Path, **options: Any) -> None:
    """Build an index of SOURCE in the directory INDEX.

    After an interruption, the same command continues where it stopped.

    \b
    Examples:
      aggtree build base.bvecs sift.index --memory 1GiB
      aggtree build synthetic:sift?rows=20000000 big.index --workers 2
      aggtree build base.npy my.index --ids ids.npy
      aggtree build joined:old.npy,new.npy new.index --dictionaries old.index --continue
      aggtree build s3://bucket/base.fbin sift.index --codes s3://bucket/sift.zarr
    """
    from aggtree.jobs.build import build as build_index
    from aggtree.jobs.cli import tables

    given, as_json = given_options(options)
    tables.show_build(build_index(source, index, **given), as_json=as_json)


@click.command()
@click.argument("source")
@index_argument
@recipe_options
@run_options
@ids_option
@click.option("--replace", is_flag=True, help="Start a new build beside an existing index in INDEX.")
def train(source: str, index: Path, **options: Any) -> None:
    """Start a build: train dictionaries on SOURCE.

    `encode` and `commit` continue in the same directory. With --dictionaries OLD.index --continue, the
    dictionaries of OLD.index are trained further on SOURCE.

    \b
    Examples:
      aggtree train base.bvecs sift.index --words 4096,256x8
      aggtree train new.bvecs new.index --dictionaries old.index --continue
    """
    from aggtree.jobs.build import build as build_index
    from aggtree.jobs.cli import tables

    given, as_json = given_options(options)
    tables.show_stage("train", build_index(source, index, only_train=True, **given), as_json=as_json)


@click.command()
@click.argument("source")
@index_argument
@run_options
def encode(source: str, index: Path, **options: Any) -> None:
    """Encode SOURCE with the dictionaries in INDEX.

    The second step after `train`; `commit` is the last.

    \b
    Example:
      aggtree encode base.bvecs sift.index --workers 2
    """
    from aggtree.jobs.build import continue_build
    from aggtree.jobs.cli import tables
    from aggtree.jobs.running.streams import as_source

    given, as_json = given_options(options)
    result = continue_build(index.absolute(), "encode", RunOptions(**given), as_source(source))
    tables.show_stage("encode", result, as_json=as_json)


@click.command()
@index_argument
@run_options
def commit(index: Path, **options: Any) -> None:
    """Sort the codes in INDEX, build the tree, and commit.

    The last three stages: sort the codes that `encode` wrote, build the tree from them, and make it the
    index. If the tree of a finished index is damaged, it is rebuilt.

    \b
    Example:
      aggtree commit sift.index --memory 1GiB
    """
    from aggtree.jobs.build import continue_build
    from aggtree.jobs.cli import tables

    given, as_json = given_options(options)
    result = continue_build(index.absolute(), "commit", RunOptions(**given))
    tables.show_build(result, as_json=as_json)


@click.command()
@click.argument("source")
@recipe_options
@run_options
def plan(source: str, **options: Any) -> None:
    """Show what a build of SOURCE would need.

    Shows rows, partitions, memory, disk space, and time, estimated from a sample of the rows. Nothing is
    written.

    \b
    Example:
      aggtree plan base.bvecs --memory 1GiB --workers 2
    """
    from aggtree.jobs.cli import tables
    from aggtree.jobs.plan import plan as plan_build

    given, as_json = given_options(options)
    del given["progress"]
    tables.show_plan(plan_build(source, **given), as_json=as_json)
