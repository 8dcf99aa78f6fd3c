"""Run and measure one stage: its tasks run on an executor, each recorded as it finishes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aggtree.jobs.planning.disk_space import written_bytes
from aggtree.jobs.planning.plan import Plan, StageName
from aggtree.jobs.running.executors import Executor
from aggtree.jobs.running.memory import MemoryMeter, MemoryTrace, format_size
from aggtree.jobs.running.progress import Progress
from aggtree.jobs.running.tasks import Function, Task
from aggtree.storage.index.build_report import StageFigures, record_stage
from aggtree.storage.work.job_record import JobRecord


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """Time of one stage, and its projected and measured peak memory."""

    name: StageName
    seconds: float
    projected: int
    peak: int


@dataclass(kw_only=True)
class StageRunner:
    """Runs the stages of a job.

    start_executor : called by the first stage that needs workers.
    """

    job: JobRecord
    plan: Plan
    start_executor: Callable[[], Executor]
    progress: Progress
    meter: MemoryMeter
    results: list[StageResult] = field(default_factory=list)
    _executor: Executor | None = None
    _worker_peaks: dict[str, int] = field(default_factory=dict)

    @property
    def peak(self) -> int:
        """The peak memory so far."""
        return max([self.meter.peak, *(stage.peak for stage in self.results)])

    def run(self, stage: StageName, function: Function, tasks: Sequence[Task], *, total: int) -> None:
        """Run tasks, record each as it finishes, and record time and memory of the stage."""
        done = total - sum(task.rows for task in tasks)
        if self._executor is None:
            self._executor = self.start_executor()
        self.progress.begin(stage, total, done=done)
        for task, outcome in self._executor.run(stage, function, tasks, self.progress):
            self.job.record_done(stage, task.number, outcome.value)
            self._worker_peaks[outcome.worker] = outcome.peak
        self.end(stage)

    def end(self, stage: StageName, **facts: str) -> None:
        """Record time and memory of a finished stage; `facts` are displayed with it."""
        trace = self.meter.trace
        peak = self.meter.take_stage_peak()
        if self.plan.mode == "scheduler":
            # Workers of an existing cluster are no children of this process: they reported their peaks.
            peak += sum(self._worker_peaks.values())
        self.results.append(
            StageResult(
                name=stage,
                seconds=self.progress.seconds,
                projected=self.plan.stage(stage).projected,
                peak=peak,
            )
        )
        record_stage(self.job, self._figures(stage, trace))
        self.progress.end(**facts, peak_memory=format_size(peak))

    def close(self) -> None:
        """Release the workers."""
        if self._executor is not None:
            self._executor.close()
            self._executor = None

    def _figures(self, stage: StageName, trace: MemoryTrace) -> StageFigures:
        """Figures of the stage that ends now, for the report of the build."""
        result, progress = self.results[-1], self.progress
        return StageFigures(
            name=stage,
            began=time.time() - result.seconds,
            seconds=result.seconds,
            done=progress.done_now,
            total=progress.total,
            unit=progress.unit,
            projected=result.projected,
            peak=result.peak,
            disk=written_bytes(self.job.index),
            memory=trace.since(time.monotonic() - result.seconds),
        )
