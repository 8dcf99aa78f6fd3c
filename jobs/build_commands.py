"""The commands that build: `plan`, `build`, and its stages `train`, `encode` and `tree`."""

from pathlib import Path
from typing import Any

import click

from aggtree.jobs.build_index import RunOptions
from aggtree.jobs.command_options import progress_for, recipe_arguments, recipe_options, run_options

ids_option = click.option(
    "--ids",
    metavar="FILE",
    help="Own ids of the rows, int64: .npy, .i64, .hdf5::NAME or .parquet::NAME. [default: row numbers]",
)


@click.command()
@click.argument("source")
@click.argument("index", type=click.Path(path_type=Path))
@recipe_options
@run_options
@ids_option
@click.option("--replace", is_flag=True, help="Build anew beside what INDEX holds, and take its place.")
@click.option("--repair", is_flag=True, help="Verify a finished index, and make again what is damaged.")
def build(
    source: str,
    index: Path,
    *,
    memory: str,
    workers: int | None,
    scheduler: str | None,
    codes: str | None,
    as_json: bool,
    ids: str | None,
    replace: bool,
    repair: bool,
    **options: Any,
) -> None:
    """Build the index of SOURCE in the directory INDEX.

    Run again after an interruption, the same command continues where it stopped.

    \b
    Examples:
      aggtree build base.bvecs sift.index --memory 1GiB
      aggtree build synthetic:sift?rows=20000000 big.index --workers 2
      aggtree build base.npy my.index --ids ids.npy
      aggtree build s3://bucket/base.fbin sift.index --codes s3://bucket/sift.zarr
    """
    from aggtree.jobs import reports
    from aggtree.jobs.build_index import build as build_index

    result = build_index(
        source,
        index,
        ids=ids,
        memory=memory,
        workers=workers,
        scheduler=scheduler,
        codes=codes,
        replace=replace,
        repair=repair,
        progress=progress_for(as_json),
        **recipe_arguments(options),
    )
    reports.show_build(result, as_json=as_json)


@click.command()
@click.argument("source")
@click.argument("index", type=click.Path(path_type=Path))
@recipe_options
@run_options
@ids_option
@click.option("--replace", is_flag=True, help="Start anew beside what INDEX holds.")
def train(
    source: str,
    index: Path,
    *,
    memory: str,
    workers: int | None,
    scheduler: str | None,
    codes: str | None,
    as_json: bool,
    ids: str | None,
    replace: bool,
    **options: Any,
) -> None:
    """Start a build: learn dictionaries from SOURCE.

    `encode` and `tree` go on in the same directory.

    \b
    Example:
      aggtree train base.bvecs sift.index --words 4096,256x8
    """
    from aggtree.jobs import reports
    from aggtree.jobs.build_index import run_build
    from aggtree.jobs.recipe import choose_recipe
    from aggtree.jobs.streams import as_source
    from aggtree.storage.id_source import open_ids

    opened = as_source(source)
    own_ids = None if ids is None else open_ids(ids)
    recipe = choose_recipe(opened.rows, **recipe_arguments(options))
    run = RunOptions(
        memory=memory, workers=workers, scheduler=scheduler, codes=codes, progress=progress_for(as_json)
    )
    result = run_build(opened, index.absolute(), recipe, run, ids=own_ids, replace=replace, only_train=True)
    reports.show_stage("train", result, as_json=as_json)


@click.command()
@click.argument("source")
@click.argument("index", type=click.Path(path_type=Path))
@run_options
def encode(
    source: str,
    index: Path,
    *,
    memory: str,
    workers: int | None,
    scheduler: str | None,
    codes: str | None,
    as_json: bool,
) -> None:
    """Encode SOURCE with the dictionaries in INDEX.

    Continues what `train` began; `tree` goes on.

    \b
    Example:
      aggtree encode base.bvecs sift.index --workers 2
    """
    from aggtree.jobs import reports
    from aggtree.jobs.build_index import continue_build
    from aggtree.jobs.streams import as_source

    run = RunOptions(
        memory=memory, workers=workers, scheduler=scheduler, codes=codes, progress=progress_for(as_json)
    )
    result = continue_build(index.absolute(), "encode", run, as_source(source))
    reports.show_stage("encode", result, as_json=as_json)


@click.command()
@click.argument("index", type=click.Path(path_type=Path))
@run_options
def tree(
    index: Path, *, memory: str, workers: int | None, scheduler: str | None, codes: str | None, as_json: bool
) -> None:
    """Build the tree from the codes in INDEX, and commit.

    Sorts the codes that `encode` left there, builds the tree from them and makes it the index. The
    tree of a finished index is built again if it is damaged.

    \b
    Example:
      aggtree tree sift.index --memory 1GiB
    """
    from aggtree.jobs import reports
    from aggtree.jobs.build_index import continue_build

    run = RunOptions(
        memory=memory, workers=workers, scheduler=scheduler, codes=codes, progress=progress_for(as_json)
    )
    result = continue_build(index.absolute(), "tree", run)
    reports.show_build(result, as_json=as_json)


@click.command()
@click.argument("source")
@recipe_options
@run_options
def plan(
    source: str,
    *,
    memory: str,
    workers: int | None,
    scheduler: str | None,
    codes: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Tell what a build of SOURCE would need.

    Rows, partitions, memory, disk and time, which is measured on a sample of the rows. Nothing is written.

    \b
    Example:
      aggtree plan base.bvecs --memory 1GiB --workers 2
    """
    from aggtree.jobs import reports
    from aggtree.jobs.estimate import plan_build

    run = RunOptions(memory=memory, workers=workers, scheduler=scheduler, codes=codes)
    reports.show_plan(plan_build(source, recipe_arguments(options), run), as_json=as_json)
