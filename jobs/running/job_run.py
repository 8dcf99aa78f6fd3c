"""The frame of every job that writes an index: options, plan, lock, workers, time and memory."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aggtree.jobs.planning.costs import Workload
from aggtree.jobs.planning.plan import Plan, StageName, make_plan
from aggtree.jobs.planning.recipe import Recipe
from aggtree.jobs.running.cores import usable_cores
from aggtree.jobs.running.memory import MemoryMeter, format_size, parse_size
from aggtree.jobs.running.progress import ProgressChoice, make_progress
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.remote_files import local_path
from aggtree.storage.sources.base import VectorSource
from aggtree.storage.work.job_record import JobRecord, unfinished_jobs
from aggtree.storage.work.lock import BuildLock

if TYPE_CHECKING:
    from aggtree.jobs.running.executors import DaskExecutor, Executor
    from aggtree.jobs.running.stage_runner import StageResult
    from aggtree.jobs.stages.pipeline import StageInputs, Stages

DEFAULT_MEMORY = "4GiB"


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """The result of a build; memory in bytes for the whole process tree.

    left_out : rows with NaN or infinite values that are not in the index.
    distortion : mean squared error of a sample of the rows; None if it was not measured.
    recall : share of the ten true nearest neighbours in the sample that a search finds among its rows.
    warnings : one line for each reason why answers may be worse than expected.
    already_built : the index existed, built from the same input with the same parameters.
    """

    path: Path
    rows: int
    left_out: int
    seconds: float
    allowed: int
    projected: int
    peak: int
    stages: "tuple[StageResult, ...]" = ()
    distortion: float | None = None
    recall: float | None = None
    warnings: tuple[str, ...] = ()
    already_built: bool = False


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of a job that do not change a byte of the index.

    memory : limit for this process and all its child processes, such as `4GiB`.
    workers : number of parallel tasks; 0 to run them in this process, None for one per core.
    scheduler : address of an existing Dask scheduler, such as `tcp://host:8786`.
    codes : URL of the code store, such as `s3://bucket/codes.zarr`; None keeps it in the index directory, or
        where a build that is continued has it.
    progress : receives the events of the job; see `make_progress`.
    """

    memory: str | int = DEFAULT_MEMORY
    workers: int | None = None
    scheduler: str | None = None
    codes: str | None = None
    progress: ProgressChoice = None

    @property
    def allowed(self) -> int:
        return parse_size(self.memory)

    @property
    def most_workers(self) -> int:
        if self.workers is not None and self.workers < 0:
            raise ValueError(f"workers {self.workers}: expected 0 or more")
        return usable_cores() if self.workers is None else self.workers


@dataclass(frozen=True, kw_only=True)
class JobRun:
    """A planned job that holds the lock of its directory.

    cluster : the existing cluster it runs on, if any.
    began : start of the call, by the monotonic clock.
    """

    index: Path
    options: RunOptions
    plan: Plan
    cluster: "DaskExecutor | None"
    began: float

    def run(
        self,
        job: JobRecord,
        inputs: "StageInputs",
        *,
        first: StageName = "train",
        last: StageName = "commit",
    ) -> BuildResult:
        """Run the stages of a job from `first` to `last`; returns its result."""
        with self._stages(job, inputs) as stages:
            rows = stages.run(first, last)
            return BuildResult(
                path=self.index,
                rows=rows,
                left_out=stages.rows - rows,
                seconds=time.monotonic() - self.began,
                allowed=self.plan.allowed,
                projected=self.plan.projected,
                peak=stages.runner.peak,
                stages=tuple(stages.runner.results),
                distortion=stages.quality.distortion if stages.quality else None,
                recall=stages.quality.recall if stages.quality else None,
                warnings=stages.warnings,
            )

    def done_before(self, *, rows: int, left_out: int) -> BuildResult:
        """The result of a job that was finished before."""
        return BuildResult(
            path=self.index,
            rows=rows,
            left_out=left_out,
            seconds=0.0,
            allowed=self.plan.allowed,
            projected=self.plan.projected,
            peak=0,
            already_built=True,
        )

    @contextmanager
    def _stages(self, job: JobRecord, inputs: "StageInputs") -> "Iterator[Stages]":
        """The stages with progress, memory meter, and workers started on first use."""
        from aggtree.engine.simd.compile_notice import notice_shown_by
        from aggtree.jobs.planning.disk_space import check_room
        from aggtree.jobs.running.checks import check_scheduler, check_worker_memory, check_workers
        from aggtree.jobs.running.stage_runner import StageRunner
        from aggtree.jobs.running.warm_up import compile_kernels
        from aggtree.jobs.stages.code_location import open_codes
        from aggtree.jobs.stages.pipeline import Stages

        recipe = Recipe.from_json(job.parameters)
        if job.codes:
            open_codes(job, recipe)  # a location that cannot be written is reported before hours of training
        check_room(job, self.plan)
        if self.cluster is not None:
            check_scheduler(self.cluster.client)
            check_worker_memory(self.cluster.client, self.plan.worker_bytes)
            check_workers(self.cluster, inputs.source, job.index, job.codes)
        with (
            make_progress(self.options.progress) as progress,
            notice_shown_by(progress.note),
            MemoryMeter() as meter,
        ):
            progress.memory = lambda: meter.now
            progress.note(f"{job.index}: {job.source['rows']:,} rows, {_described(self.plan)}")
            compile_kernels(recipe, job.source, progress)
            meter.begin_stage()  # what compiling took is no stage's

            def start_executor() -> "Executor":
                executor = self._executor()
                if self.plan.mode != "process":
                    progress.note(executor.description)
                return executor

            runner = StageRunner(
                job=job, plan=self.plan, start_executor=start_executor, progress=progress, meter=meter
            )
            try:
                yield Stages(job=job, recipe=recipe, plan=self.plan, inputs=inputs, runner=runner)
            finally:
                runner.close()

    def _executor(self) -> "Executor":
        """The executor of the plan's tasks."""
        from aggtree.jobs.running.executors import InProcess, local_cluster

        if self.cluster is not None:
            return self.cluster
        return (
            local_cluster(self.plan.workers) if self.plan.mode == "cluster" else InProcess(self.plan.workers)
        )


@contextmanager
def plan_and_lock(
    index: Path,
    recipe: Recipe,
    fingerprint: dict[str, Any],
    options: RunOptions,
    source: VectorSource | None,
    *,
    began: float,
) -> Iterator[JobRun]:
    """Make the plan before anything is written, then take the directory's lock."""
    codes = [options.codes] if options.codes else []
    with ExitStack() as stack:
        cluster = stack.enter_context(cluster_of(options))
        with suppress(
            IndexFormatError
        ):  # a damaged record is reported, or written again, by who starts the job
            codes += [job.codes for job in unfinished_jobs(index)]
        work = workload_of(recipe, fingerprint, source, next(iter(codes), ""))
        plan = plan_of(work, options, source, cluster)
        stack.enter_context(BuildLock(index))
        yield JobRun(index=index, options=options, plan=plan, cluster=cluster, began=began)


@contextmanager
def cluster_of(options: RunOptions) -> "Iterator[DaskExecutor | None]":
    """The existing cluster that these options name; None when they name none."""
    if not options.scheduler:
        yield None
        return
    from aggtree.jobs.running.executors import existing_cluster

    with existing_cluster(options.scheduler) as cluster:
        yield cluster


def plan_of(
    work: Workload, options: RunOptions, source: VectorSource | None, cluster: "DaskExecutor | None"
) -> Plan:
    """The plan of a job of this size with these options."""
    from aggtree.jobs.running.streams import travels

    return make_plan(
        work,
        allowed=options.allowed,
        workers=options.most_workers,
        travels=source is None or travels(source),
        scheduler_workers=cluster.workers if cluster else 0,
    )


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
    return replace(work, remote=any(local_path(place) is None for place in places))


def _described(plan: Plan) -> str:
    """Memory and workers of a plan, in words."""
    count = f"{plan.workers} workers" if plan.workers > 1 else "1 worker"
    place = {"process": "in this process", "cluster": "as processes", "scheduler": "of the cluster"}
    projected, allowed = format_size(plan.projected), format_size(plan.allowed)
    return f"memory {projected} projected of {allowed} allowed, {count} {place[plan.mode]}"
