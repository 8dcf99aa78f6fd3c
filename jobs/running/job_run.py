"""What every job that writes an index runs with: its options, plan, lock, workers, and what it took."""

import dataclasses
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aggtree.jobs.planning.costs import Workload
from aggtree.jobs.planning.plan import Plan, make_plan
from aggtree.jobs.planning.recipe import Recipe
from aggtree.jobs.running.memory import MemoryMeter, format_size, parse_size
from aggtree.jobs.running.progress import Progress, make_progress
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.remote_files import local_path
from aggtree.storage.sources.base import VectorSource
from aggtree.storage.work.job_record import JobRecord, unfinished_jobs
from aggtree.storage.work.lock import BuildLock

if TYPE_CHECKING:
    from aggtree.jobs.running.executors import DaskExecutor, Executor
    from aggtree.jobs.stages.pipeline import StageResult, Stages

DEFAULT_MEMORY = "4GiB"


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

    @classmethod
    def split(cls, options: dict[str, Any]) -> "tuple[RunOptions, dict[str, Any]]":
        """The options of a run among keyword arguments, and the others."""
        names = {field.name for field in dataclasses.fields(cls)}
        own = {name: value for name, value in options.items() if name in names}
        return cls(**own), {name: value for name, value in options.items() if name not in names}

    @property
    def allowed(self) -> int:
        return parse_size(self.memory)

    @property
    def most_workers(self) -> int:
        if self.workers is not None and self.workers < 0:
            raise ValueError(f"workers {self.workers}: expected 0 or more")
        return len(os.sched_getaffinity(0)) if self.workers is None else self.workers


@contextmanager
def plan_and_lock(
    index: Path, recipe: Recipe, fingerprint: dict[str, Any], options: RunOptions, source: VectorSource | None
) -> "Iterator[tuple[Plan, DaskExecutor | None]]":
    """Make the plan before anything is written, then hold the directory's lock."""
    from aggtree.jobs.running.executors import existing_cluster
    from aggtree.jobs.running.streams import travels

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
def open_stages(
    job: JobRecord,
    plan: Plan,
    source: VectorSource | None,
    *,
    options: RunOptions,
    cluster: "DaskExecutor | None",
) -> "Iterator[Stages]":
    """The stages with what they run with: progress, memory meter, and workers when they are needed."""
    from aggtree.jobs.planning.disk_space import check_room
    from aggtree.jobs.running.checks import check_scheduler, check_workers
    from aggtree.jobs.running.executors import InProcess, local_cluster
    from aggtree.jobs.running.warm_up import compile_kernels
    from aggtree.jobs.stages.code_location import open_codes
    from aggtree.jobs.stages.pipeline import Stages

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


def result_of(stages: "Stages", made: SegmentManifest | None, began: float) -> BuildResult:
    """The result of a job that made a segment, or of stages that end before there is one."""
    rows = stages.rows if made is None else made.rows
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


def done_before(index: Path, plan: Plan, *, rows: int, left_out: int) -> BuildResult:
    """The result of a job whose work had been done before."""
    return BuildResult(
        path=index,
        rows=rows,
        left_out=left_out,
        seconds=0.0,
        allowed=plan.allowed,
        projected=plan.projected,
        peak=0,
        already_built=True,
    )
