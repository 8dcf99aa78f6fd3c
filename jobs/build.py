"""From a source of vectors to a committed index: plan, lock, and run the stages."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from aggtree.jobs.planning.plan import Plan
from aggtree.jobs.planning.recipe import Recipe
from aggtree.jobs.planning.reused_dictionaries import TakenDictionaries, recipe_for
from aggtree.jobs.running.job_run import (
    BuildResult,
    RunOptions,
    done_before,
    open_stages,
    plan_and_lock,
    result_of,
)
from aggtree.storage.errors import BuildMismatchError, IndexFormatError
from aggtree.storage.index.format import MANIFEST
from aggtree.storage.index.manifest import IndexManifest, read_manifest
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.sources.base import VectorSource
from aggtree.storage.sources.unit_rows import metric_source
from aggtree.storage.work.job_record import JobRecord, build_id, finish_job, start_job, unfinished_jobs

if TYPE_CHECKING:
    from aggtree.storage.sources.ids import IdSource

__all__ = ["BuildResult", "RunOptions", "build", "continue_build", "run_build"]

Stage = Literal["train", "encode", "tree"]


def build(
    source: Any,
    index: str | os.PathLike[str],
    *,
    ids: Any = None,
    replace: bool = False,
    repair: bool = False,
    only_train: bool = False,
    **options: Any,
) -> BuildResult:
    """Build the index of all vectors of `source` in the directory `index`.

    source : a path or name that `open_source` knows, a VectorSource, a numpy array or a Dask array, or a list
        of them whose rows follow one another.
    ids : own ids of the rows, an int64 array or a file that `open_ids` knows; otherwise ids are row numbers.
    replace : build beside what the directory holds, and take its place when done.
    repair : read every byte of a finished index, and make again what is damaged.
    only_train : end when the dictionaries are trained; the same call without it goes on.
    memory, workers, scheduler, codes, progress : see RunOptions.
    dictionaries : how many, or the index whose trained dictionaries are taken instead of training.
    continue_training : go on training the dictionaries taken, with the rows of `source`.
    words, beam, train_rows, seed, cooling, batch_rows, shard_rows, bucket, stray, norm_bytes, skip_invalid,
        metric : see Recipe; what is left out follows from the number of rows.

    The same call continues a build that was interrupted; of a finished one it returns at once.
    """
    from aggtree.jobs.running.streams import as_source
    from aggtree.storage.sources.ids import open_ids

    opened = as_source(source)
    own_ids = None if ids is None else open_ids(ids)
    run, choices = RunOptions.split(options)
    recipe, taken = recipe_for(opened, **choices)
    wanted = {"ids": own_ids, "taken": taken, "replace": replace, "repair": repair, "only_train": only_train}
    return run_build(opened, Path(index).absolute(), recipe, run, **wanted)


@dataclass(frozen=True, kw_only=True)
class BuildTask:
    """What is to be done beside the recipe; see `build`.

    taken : dictionaries to use or to go on from, as the recipe says.
    """

    ids: "IdSource | None" = None
    taken: TakenDictionaries | None = None
    replace: bool = False
    repair: bool = False
    only_train: bool = False


def run_build(
    source: VectorSource,
    index: Path,
    recipe: Recipe,
    options: RunOptions,
    **wanted: Any,
) -> BuildResult:
    """Start or continue a build and run it to its end, or to the end of training; see `BuildTask`."""
    from aggtree.jobs.running.warm_up import compile_source_kernels
    from aggtree.jobs.stages.code_location import check_built_place, checked_place, move_codes
    from aggtree.jobs.stages.own_ids import copy_ids, input_fingerprint

    began = time.monotonic()
    task = BuildTask(**wanted)
    codes = checked_place(options.codes)
    compile_source_kernels(source)
    source = metric_source(source, recipe.metric)
    fingerprint = input_fingerprint(source, task.ids)
    with plan_and_lock(index, recipe, fingerprint, options, source) as (plan, cluster):
        manifest = _committed(index, build_id(recipe.to_json(), fingerprint))
        if manifest is None:
            job = start_job(index, recipe.to_json(), fingerprint, replace=task.replace, codes=codes or "")
            job = move_codes(job, codes)
        else:
            check_built_place(manifest.first_segment, index, codes)
            damaged = reopened(index, [manifest.first_segment], repair=task.repair)
            if damaged is None:
                return _already_built(index, manifest, plan)
            job = damaged
        copy_ids(job, task.ids, plan.allowed)
        with open_stages(job, plan, source, options=options, cluster=cluster) as stages:
            stages.train(task.taken)
            if task.only_train:
                return result_of(stages, None, began)
            stages.encode()
            stages.sort()
            stages.build()
            return result_of(stages, stages.commit().first_segment, began)


def continue_build(
    index: Path, stage: Stage, options: RunOptions, source: VectorSource | None = None
) -> BuildResult:
    """Run one stage of the build that was started in `index`; `tree` also commits it.

    `tree` of a finished index builds its tree again from its codes, if any of its bytes is damaged.
    """
    from aggtree.jobs.stages.code_location import checked_place, move_codes
    from aggtree.jobs.stages.own_ids import same_vectors

    began = time.monotonic()
    codes = checked_place(options.codes)
    started = unfinished_jobs(index)
    built = None
    if started and started[0].task != "build":
        remedy = f"repeat the `aggtree {started[0].task}` that began it"
        raise BuildMismatchError(f"{index}: no build was started here, but {started[0].task}; {remedy}")
    if started:
        parameters, fingerprint = started[0].parameters, started[0].source
    elif stage == "tree" and (index / MANIFEST).exists():
        built = read_manifest(index).first_segment
        parameters, fingerprint = built.parameters, built.source
    else:
        remedy = f"run `aggtree train SOURCE {index}` first"
        raise BuildMismatchError(f"{index}: no build was started here; {remedy}")
    recipe = Recipe.from_json(parameters)
    source = None if source is None else metric_source(source, recipe.metric)
    if source is not None and not same_vectors(source, fingerprint):
        raise BuildMismatchError(f"{source.spec}: not the source that {index} was trained on; name that one")
    with plan_and_lock(index, recipe, fingerprint, options, source) as (plan, cluster):
        job = started[0] if built is None else reopened(index, [built], repair=True)
        if job is None:
            return _already_built(index, read_manifest(index), plan)
        job = move_codes(job, codes)
        with open_stages(job, plan, source, options=options, cluster=cluster) as stages:
            stages.encode()
            if stage == "encode":
                return result_of(stages, None, began)
            stages.sort()
            stages.build()
            return result_of(stages, stages.commit().first_segment, began)


def reopened(index: Path, segments: Sequence[SegmentManifest], *, repair: bool) -> JobRecord | None:
    """The job that repairs a finished build, the first of `segments` that is damaged; None when none is."""
    from aggtree.jobs.repair import check_presence, damages_of, reopen

    if repair:
        damaged, damages = damages_of(index, segments)
        if damages:
            return reopen(index, damaged, damages)
    check_presence(index, read_manifest(index))
    if all(job.build == segments[0].build for job in unfinished_jobs(index)):
        finish_job(index)  # what a process killed after the commit left behind
    return None


def _committed(index: Path, build: str) -> IndexManifest | None:
    """The manifest, if this very build is its first segment."""
    try:
        manifest = read_manifest(index)
    except IndexFormatError:
        return None
    return manifest if manifest.first_segment.build == build else None


def _already_built(index: Path, manifest: IndexManifest, plan: Plan) -> BuildResult:
    rows = manifest.live_rows
    return done_before(index, plan, rows=rows, left_out=manifest.all_source_rows - rows)
