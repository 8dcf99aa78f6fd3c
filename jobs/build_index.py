"""From a source of vectors to a committed index: plan, lock, and run the stages."""

import dataclasses
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from aggtree.engine.params import Cooling, Metric
from aggtree.jobs.costs import Workload
from aggtree.jobs.memory import MemoryMeter, format_size, parse_size
from aggtree.jobs.plan import Plan, make_plan
from aggtree.jobs.progress import Progress, make_progress
from aggtree.jobs.recipe import Recipe, Words, choose_recipe
from aggtree.storage.errors import BuildMismatchError, IndexFormatError
from aggtree.storage.format import MANIFEST
from aggtree.storage.job_record import JobRecord, build_id, finish_job, start_job, unfinished_jobs
from aggtree.storage.lock import BuildLock
from aggtree.storage.manifest import Manifest, read_manifest
from aggtree.storage.remote_files import local_path
from aggtree.storage.unit_rows import metric_source
from aggtree.storage.vector_source import VectorSource

if TYPE_CHECKING:
    from aggtree.jobs.executors import DaskExecutor, Executor
    from aggtree.jobs.stages import StageResult, Stages
    from aggtree.storage.id_source import IdSource

DEFAULT_MEMORY = "4GiB"

Stage = Literal["train", "encode", "tree"]


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """What a build made and what it took; memory in bytes for the whole process tree.

    left_out : rows with NaN or infinite values that are not in the index.
    already_built : the index was there, made from the same input with the same parameters.
    """

    path: Path
    rows: int
    left_out: int
    seconds: float
    allowed: int
    projected: int
    peak: int
    stages: "tuple[StageResult, ...]" = ()
    already_built: bool = False


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a build runs with; none of it changes a byte of the index.

    memory : allowed for this process and all it starts, such as `4GiB`.
    workers : tasks at once; 0 for one after the other in this process, None for all cores.
    scheduler : address of an existing Dask scheduler, such as `tcp://host:8786`.
    codes : URL of the code store, such as `s3://bucket/codes.zarr`; None keeps it in the index directory, or
        where a build that is continued has it.
    """

    memory: str | int = DEFAULT_MEMORY
    workers: int | None = None
    scheduler: str | None = None
    codes: str | None = None
    progress: "str | bool | Progress | None" = None

    @property
    def allowed(self) -> int:
        return parse_size(self.memory)

    @property
    def most_workers(self) -> int:
        if self.workers is not None and self.workers < 0:
            raise ValueError(f"workers {self.workers}: expected 0 or more")
        return len(os.sched_getaffinity(0)) if self.workers is None else self.workers


def build(
    source: Any,
    index: str | os.PathLike[str],
    *,
    ids: Any = None,
    memory: str | int = DEFAULT_MEMORY,
    workers: int | None = None,
    words: Words = None,
    dictionaries: int | None = None,
    beam: int = 10,
    train_rows: int | None = None,
    seed: int = 0,
    cooling: Cooling = "joint",
    batch_rows: int | None = None,
    shard_rows: int | None = None,
    bucket: int | None = None,
    stray: int | None = None,
    norm_bytes: int = 1,
    skip_invalid: bool = False,
    metric: Metric = "l2",
    replace: bool = False,
    repair: bool = False,
    scheduler: str | None = None,
    codes: str | None = None,
    progress: "str | bool | Progress | None" = None,
) -> BuildResult:
    """Build the index of all vectors of `source` in the directory `index`.

    source : a path or name that `open_source` knows, a VectorSource, a numpy array or a Dask array.
    ids : own ids of the rows, an int64 array or a file that `open_ids` knows; otherwise ids are row numbers.
    memory, workers, scheduler, codes, progress : see RunOptions.
    words, dictionaries, beam, ... : see Recipe; what is left out follows from the number of rows.
    replace : build beside what the directory holds, and take its place when done.
    repair : read every byte of a finished index, and make again what is damaged.

    The same call continues a build that was interrupted; of a finished one it returns at once.
    """
    from aggtree.jobs.streams import as_source
    from aggtree.storage.id_source import open_ids

    opened = as_source(source)
    own_ids = None if ids is None else open_ids(ids)
    recipe = choose_recipe(
        opened.rows,
        words=words,
        dictionaries=dictionaries,
        beam=beam,
        seed=seed,
        cooling=cooling,
        train_rows=train_rows,
        batch_rows=batch_rows,
        shard_rows=shard_rows,
        bucket=bucket,
        stray=stray,
        norm_bytes=norm_bytes,
        skip_invalid=skip_invalid,
        metric=metric,
    )
    options = RunOptions(memory=memory, workers=workers, scheduler=scheduler, codes=codes, progress=progress)
    return run_build(
        opened, Path(index).absolute(), recipe, options, ids=own_ids, replace=replace, repair=repair
    )


def run_build(
    source: VectorSource,
    index: Path,
    recipe: Recipe,
    options: RunOptions,
    *,
    ids: "IdSource | None" = None,
    replace: bool = False,
    repair: bool = False,
    only_train: bool = False,
) -> BuildResult:
    """Start or continue a build and run it to its end, or to the end of training."""
    from aggtree.jobs.code_place import check_built_place, checked_place, move_codes
    from aggtree.jobs.own_ids import copy_ids, input_fingerprint
    from aggtree.jobs.warm_up import compile_source_kernels

    began = time.monotonic()
    codes = checked_place(options.codes)
    compile_source_kernels(source)
    source = metric_source(source, recipe.metric)
    fingerprint = input_fingerprint(source, ids)
    with _plan_and_lock(index, recipe, fingerprint, options, source) as (plan, cluster):
        manifest = _committed(index, build_id(recipe.to_json(), fingerprint))
        if manifest is None:
            job = start_job(index, recipe.to_json(), fingerprint, replace=replace, codes=codes or "")
            job = move_codes(job, codes)
        else:
            check_built_place(manifest, index, codes)
            damaged = _reopen(index, manifest, repair=repair)
            if damaged is None:
                return _already_built(index, manifest, plan)
            job = damaged
        copy_ids(job, ids, plan.allowed)
        with _stages(job, plan, source, options=options, cluster=cluster) as stages:
            stages.train()
            if only_train:
                return _result(stages, None, began)
            stages.encode()
            stages.sort()
            stages.build()
            return _result(stages, stages.commit(), began)


def continue_build(
    index: Path, stage: Stage, options: RunOptions, source: VectorSource | None = None
) -> BuildResult:
    """Run one stage of the build that was started in `index`; `tree` also commits it.

    `tree` of a finished index builds its tree again from its codes, if any of its bytes is damaged.
    """
    from aggtree.jobs.code_place import checked_place, move_codes
    from aggtree.jobs.own_ids import same_vectors

    began = time.monotonic()
    codes = checked_place(options.codes)
    started = unfinished_jobs(index)
    manifest = None
    if started:
        parameters, fingerprint = started[0].parameters, started[0].source
    elif stage == "tree" and (index / MANIFEST).exists():
        manifest = read_manifest(index)
        parameters, fingerprint = manifest.parameters, manifest.source
    else:
        remedy = f"run `aggtree train SOURCE {index}` first"
        raise BuildMismatchError(f"{index}: no build was started here; {remedy}")
    recipe = Recipe.from_json(parameters)
    source = None if source is None else metric_source(source, recipe.metric)
    if source is not None and not same_vectors(source, fingerprint):
        raise BuildMismatchError(f"{source.spec}: not the source that {index} was trained on; name that one")
    with _plan_and_lock(index, recipe, fingerprint, options, source) as (plan, cluster):
        job = started[0] if manifest is None else _reopen(index, manifest, repair=True)
        if job is None:
            return _already_built(index, read_manifest(index), plan)
        job = move_codes(job, codes)
        with _stages(job, plan, source, options=options, cluster=cluster) as stages:
            stages.encode()
            if stage == "encode":
                return _result(stages, None, began)
            stages.sort()
            stages.build()
            return _result(stages, stages.commit(), began)


def _reopen(index: Path, manifest: Manifest, *, repair: bool) -> JobRecord | None:
    """The job that repairs a finished index; None when there is nothing to do."""
    from aggtree.jobs.repair import check_presence, reopen
    from aggtree.storage.verify import verify_index

    if repair:
        damages = verify_index(index, workers=len(os.sched_getaffinity(0)), deep=True)
        if damages:
            return reopen(index, manifest, damages)
    check_presence(index, manifest)
    finish_job(index)  # what a process killed after the commit left behind
    return None


@contextmanager
def _plan_and_lock(
    index: Path, recipe: Recipe, fingerprint: dict[str, Any], options: RunOptions, source: VectorSource | None
) -> "Iterator[tuple[Plan, DaskExecutor | None]]":
    """Make the plan before anything is written, then hold the directory's lock."""
    from aggtree.jobs.executors import existing_cluster
    from aggtree.jobs.streams import travels

    movable = source is None or travels(source)
    with ExitStack() as stack:
        cluster = None
        if options.scheduler:
            cluster = stack.enter_context(existing_cluster(options.scheduler))
        codes = [options.codes] if options.codes else []
        with suppress(IndexFormatError):  # a damaged record is told, or written again, by who starts the job
            codes += [job.codes for job in unfinished_jobs(index)]
        work = workload_of(recipe, fingerprint, source, next(iter(codes), ""))
        plan = make_plan(
            work,
            allowed=options.allowed,
            workers=options.most_workers,
            travels=movable,
            scheduler_workers=cluster.workers if cluster else 0,
        )
        stack.enter_context(BuildLock(index))
        yield plan, cluster


def workload_of(
    recipe: Recipe, fingerprint: dict[str, Any], source: VectorSource | None, codes: str = ""
) -> Workload:
    """The size of a build, from what is known of its source and where its codes are to be."""
    work = recipe.workload(
        int(fingerprint["rows"]),
        int(fingerprint["dimension"]),
        str(fingerprint["dtype"]),
        getattr(source, "chunk_rows", 0),
    )
    places = (codes, "" if source is None else source.spec)
    return dataclasses.replace(work, remote=any(local_path(place) is None for place in places))


@contextmanager
def _stages(
    job: JobRecord,
    plan: Plan,
    source: VectorSource | None,
    *,
    options: RunOptions,
    cluster: "DaskExecutor | None",
) -> "Iterator[Stages]":
    """The stages with what they run with: progress, memory meter, and workers when they are needed."""
    from aggtree.jobs.checks import check_scheduler, check_workers
    from aggtree.jobs.code_place import open_codes
    from aggtree.jobs.disk_space import check_room
    from aggtree.jobs.executors import InProcess, local_cluster
    from aggtree.jobs.stages import Stages
    from aggtree.jobs.warm_up import compile_kernels

    recipe = Recipe.from_json(job.parameters)
    if job.codes:
        open_codes(job, recipe)  # a place that cannot be written is told before hours of training
    check_room(job, plan)
    if cluster is not None:
        check_scheduler(cluster.client)
        check_workers(cluster, source, job.index, job.codes)

    def start_executor() -> "Executor":
        if cluster is not None:
            progress.note(cluster.description)
            return cluster
        if plan.mode == "cluster":
            executor: Executor = local_cluster(plan.workers)
            progress.note(executor.description)
            return executor
        return InProcess(plan.workers)

    with make_progress(options.progress) as progress, MemoryMeter() as meter:
        progress.memory = lambda: meter.now
        progress.note(
            f"{job.index}: {job.source['rows']:,} rows, memory {format_size(plan.projected)} projected "
            f"of {format_size(plan.allowed)} allowed, {_workers(plan)}"
        )
        compile_kernels(recipe, job.source, progress)
        meter.begin_stage()  # what compiling took is no stage's
        stages = Stages(
            job=job,
            recipe=recipe,
            plan=plan,
            source=source,
            start_executor=start_executor,
            progress=progress,
            meter=meter,
        )
        try:
            yield stages
        finally:
            stages.close()


def _workers(plan: Plan) -> str:
    count = f"{plan.workers} workers" if plan.workers > 1 else "1 worker"
    place = {"process": "in this process", "cluster": "as processes", "scheduler": "of the cluster"}
    return f"{count} {place[plan.mode]}"


def _committed(index: Path, build: str) -> Manifest | None:
    """The manifest, if this very build is the index already."""
    try:
        manifest = read_manifest(index)
    except IndexFormatError:
        return None
    return manifest if manifest.build == build else None


def _already_built(index: Path, manifest: Manifest, plan: Plan) -> BuildResult:
    return BuildResult(
        path=index,
        rows=manifest.rows,
        left_out=manifest.source_rows - manifest.rows,
        seconds=0.0,
        allowed=plan.allowed,
        projected=plan.projected,
        peak=0,
        already_built=True,
    )


def _result(stages: "Stages", manifest: Manifest | None, began: float) -> BuildResult:
    rows = stages.rows if manifest is None else manifest.rows
    return BuildResult(
        path=stages.job.index,
        rows=rows,
        left_out=stages.rows - rows,
        seconds=time.monotonic() - began,
        allowed=stages.plan.allowed,
        projected=stages.plan.projected,
        peak=max([stages.meter.peak, *(stage.peak for stage in stages.results)]),
        stages=tuple(stages.results),
    )
