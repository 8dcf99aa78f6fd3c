"""The stages of a build on its directory, each of which continues where it was stopped.

    train    build-<id>/dictionaries             checkpoint in work-<id>/trainer
    encode   build-<id>/codes.zarr, or a URL     one task per shard
    sort     work-<id>/runs/<shard>              one task per shard
    build    work-<id>/partitions/<partition>    one task per partition, cut by work-<id>/splits
    stitch   build-<id>/tree/*, then the commit  in this process

A partition counts as done when its output has its final name and its record is written, in this order.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from aggtree.engine.dictionaries import CodeLayout
from aggtree.jobs.planning.disk_space import written_bytes
from aggtree.jobs.planning.plan import Plan
from aggtree.jobs.planning.recipe import Recipe
from aggtree.jobs.planning.reused_dictionaries import TakenDictionaries
from aggtree.jobs.running.executors import Executor
from aggtree.jobs.running.memory import MemoryMeter, MemoryTrace, format_size
from aggtree.jobs.running.progress import Progress
from aggtree.jobs.running.streams import travels
from aggtree.jobs.running.tasks import Function, Task
from aggtree.jobs.stages.build import (
    BuildTask,
    Splits,
    build_partition,
    choose_splits,
    load_splits,
    save_splits,
)
from aggtree.jobs.stages.code_location import open_codes, shard_records, store_records
from aggtree.jobs.stages.commit import DRIFT_ROWS, placed
from aggtree.jobs.stages.encode import EncodeTask, encode_shard
from aggtree.jobs.stages.own_ids import own_ids_record, same_vectors
from aggtree.jobs.stages.sort import SortTask, sort_shard
from aggtree.jobs.stages.source_location import remember_source, remembered_source
from aggtree.jobs.stages.train import CHECKPOINT, TrainJob, learning_curve, train
from aggtree.storage.atomic import make_directory, remove_file, remove_tree
from aggtree.storage.errors import JobError, SourceError
from aggtree.storage.index.build_report import StageFigures, record_stage, write_report
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.index.dictionary_file import load_state
from aggtree.storage.index.file_record import RemoteCodes
from aggtree.storage.index.format import DICTIONARIES
from aggtree.storage.index.manifest import IndexManifest, commit_manifest
from aggtree.storage.index.writer import describe_build, stitch_partitions
from aggtree.storage.sources.base import VectorSource
from aggtree.storage.work.job_record import JobRecord, finish_job

RUNS = "runs"
PARTITIONS = "partitions"
SPLITS = "splits"


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """What one stage took: seconds, projected and measured peak of memory."""

    name: str
    seconds: float
    projected: int
    peak: int


@dataclass(kw_only=True)
class Stages:
    """One build: its record on disk, and what it runs with.

    source : open, or None for the stages that need no vectors.
    start_executor : called by the first stage that needs workers.
    """

    job: JobRecord
    recipe: Recipe
    plan: Plan
    source: VectorSource | None
    start_executor: Callable[[], Executor]
    progress: Progress
    meter: MemoryMeter
    results: list[StageResult] = field(default_factory=list)
    _executor: Executor | None = None
    _worker_peaks: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        remember_source(self.job, self.source)

    @property
    def rows(self) -> int:
        return int(self.job.source["rows"])

    @property
    def dictionaries(self) -> Path:
        return self.job.build_directory / DICTIONARIES

    @property
    def splits(self) -> Path:
        return self.job.work_directory / SPLITS

    @property
    def runs(self) -> Path:
        return self.job.work_directory / RUNS

    @property
    def partitions(self) -> Path:
        return self.job.work_directory / PARTITIONS

    def train(self, taken: TakenDictionaries | None = None) -> None:
        """Learn the dictionaries, or take some that were trained before, unless they are there."""
        if self.job.done("train") and self.dictionaries.exists():
            return
        make_directory(self.job.build_directory)
        if taken is not None and not self.recipe.trains:
            taken.copy_to(self.dictionaries)
            self.job.record_done("train", 0, {"error": None})
            return
        train_job = TrainJob(
            params=self.recipe.annealing,
            batch_rows=self.recipe.batch_rows,
            train_rows=self.recipe.train_rows,
            checkpoint=self.job.work_directory / CHECKPOINT,
            dictionaries=self.dictionaries,
            skip_invalid=self.recipe.skip_invalid,
            start=None if taken is None else taken.path,
        )
        threads = self.plan.stage("train").workers
        error = train(
            self._needed_source(), train_job, threads=threads, ahead=self.plan.ahead, progress=self.progress
        )
        curve = learning_curve(load_state(train_job.checkpoint))
        self.job.record_done("train", 0, {"error": error} | curve)
        remove_file(train_job.checkpoint)
        self._end("train", error=f"{error:.5g}")

    def encode(self) -> None:
        """Encode the shards that are missing."""
        if not self.job.done("train"):
            raise JobError(
                f"{self.job.index}: the dictionaries are not trained yet; run `aggtree train` first"
            )
        store = self._code_store()
        missing = self._missing_shards(store)
        if not missing:
            return
        source = self._needed_source()
        tasks = [
            EncodeTask(
                number=number,
                start=store.shard_range(number)[0],
                stop=store.shard_range(number)[1],
                source=source.spec if travels(source) else source,
                codes=store.location,
                dictionaries=self.dictionaries,
                beam=self.recipe.beam,
                skip_invalid=self.recipe.skip_invalid,
                sample=DRIFT_ROWS if self.job.task == "append" else 0,
            )
            for number in missing
        ]
        self.run_stage("encode", encode_shard, tasks, total=self.rows)
        self._refuse_changed(source)

    def encode_by(self, function: Function, tasks: Sequence[Task], shown: str) -> None:
        """Let other tasks than encoding, one for each shard, make the codes of shards that are missing."""
        missing = self._missing_shards(self._code_store())
        if missing:
            todo = [task for task in tasks if task.number in missing]
            self.run_stage("encode", function, todo, total=self.rows, shown=shown)

    def _missing_shards(self, store: CodeStore) -> list[int]:
        present = store.present(shard_records(self.job))
        return [number for number in range(store.shards) if number not in present]

    def _refuse_changed(self, source: VectorSource) -> None:
        """An index of rows of two states of a source would be an index of neither."""
        if same_vectors(source, self.job.source):
            return
        for stage in ("train", "encode"):
            self.job.forget(stage)
        raise SourceError(f"{source.spec}: was changed while it was read; build again with --replace")

    def sort(self, kept: Path | None = None) -> None:
        """Sort the shards whose runs are missing, unless the partitions made from them are all there.

        kept : file with a bit for each row that is not left out; None for all.
        """
        if self._partitions_are_ready():
            return
        store = self._code_store()
        encoded = self.job.done("encode")
        done = self.job.done("sort")
        make_directory(self.runs)
        tasks = [
            SortTask(
                number=number,
                start=store.shard_range(number)[0],
                stop=store.shard_range(number)[1],
                codes=store.location,
                run=self.runs / str(number),
                skip=tuple(encoded[number]["invalid"]),
                kept=kept,
                wide_ids=self.rows > 2**32,
            )
            for number in range(store.shards)
            if number not in done or not _has_size(self.runs / str(number), done[number])
        ]
        if tasks:
            self.run_stage("sort", sort_shard, tasks, total=self.rows)

    def build(self) -> None:
        """Build the partitions of the tree that are missing."""
        if self._partitions_are_ready():
            return
        runs = tuple(self.runs / str(number) for number in range(self._code_store().shards))
        splits = self._splits(runs)
        make_directory(self.partitions)
        done = self.job.done("build")
        sizes = np.diff(splits.sum(axis=1))
        tasks = [
            BuildTask(
                number=number,
                rows=int(sizes[number]),
                runs=runs,
                splits=self.splits,
                dictionaries=self.dictionaries,
                tree=self.recipe.tree,
                partition=self.partitions / str(number),
            )
            for number in range(len(sizes))
            if number not in done or not _has_size(self.partitions / str(number), done[number])
        ]
        self.run_stage("build", build_partition, tasks, total=int(sizes.sum()))
        remove_tree(self.runs)

    def commit(self) -> IndexManifest:
        """Stitch the partitions into the tree's files and make this build the index."""
        self.close()
        self.meter.begin_stage()  # the workers' memory was the last stage's
        partitions = sorted(self.job.done("build"))
        self.progress.begin("stitch", len(partitions) * (len(self.recipe.words) + 1), unit="slices")
        told = 0

        def advance(done: int, _: int) -> None:
            nonlocal told
            self.progress.advance(done - told)
            told = done

        tree = stitch_partitions(
            self.job.index,
            self.job.build,
            [self.partitions / str(number) for number in partitions],
            CodeLayout(self.recipe.words),
            norm_bytes=self.recipe.norm_bytes,
            progress=advance,
        )
        codes = store_records(self.job, self._code_store())
        made = describe_build(
            self.job.index,
            self.job.build,
            tree=tree,
            codes=() if self.job.codes else codes,
            source_rows=self.rows,
            parameters=self.job.parameters,
            source=self.job.source,
            remote_codes=RemoteCodes(location=self.job.codes, files=codes) if self.job.codes else None,
            vectors=remembered_source(self.job),
            metric=self.recipe.metric,
            own_ids=own_ids_record(self.job),
        )
        manifest = placed(self.job, made)
        commit_manifest(self.job.index, manifest)
        self._end("stitch")
        if self.job.task == "build" and manifest.first_segment.build == self.job.build:
            write_report(self.job)
        finish_job(self.job.index)
        return manifest

    def close(self) -> None:
        """Give the workers back."""
        if self._executor is not None:
            self._executor.close()
            self._executor = None

    def _needed_source(self) -> VectorSource:
        if self.source is None:
            raise JobError(
                f"{self.job.index}: codes are missing; run `aggtree encode` first, "
                "or `aggtree build --repair` for a damaged index"
            )
        return self.source

    def _code_store(self) -> CodeStore:
        return open_codes(self.job, self.recipe)

    def _partitions_are_ready(self) -> bool:
        """Whether every partition was built, so that the runs, which are removed then, are not needed."""
        done = self.job.done("build")
        if not done or not self.splits.exists():
            return False
        partitions = len(load_splits(self.splits)) - 1
        return all(
            number in done and _has_size(self.partitions / str(number), done[number])
            for number in range(partitions)
        )

    def _splits(self, runs: Sequence[Path]) -> Splits:
        """The cut of an earlier run, if its partitions fit the present budget; otherwise a new one."""
        if self.splits.exists():
            splits = load_splits(self.splits)
            if np.diff(splits.sum(axis=1)).max() <= self.plan.partition_rows:
                return splits
        self.job.forget("build")
        remove_tree(self.partitions)
        splits = choose_splits(runs, self.plan.partition_rows)
        save_splits(self.splits, splits, runs, CodeLayout(self.recipe.words))
        return splits

    def run_stage(
        self, stage: str, function: Function, tasks: Sequence[Task], total: int, shown: str = ""
    ) -> None:
        """Run tasks, record each as it is done, and tell what the stage took; `shown` is its name."""
        done = total - sum(task.rows for task in tasks)
        if self._executor is None:
            self._executor = self.start_executor()
        self.progress.begin(shown or stage, total, done=done)
        for task, outcome in self._executor.run(stage, function, tasks, self.progress):
            self.job.record_done(stage, task.number, outcome.value)
            self._worker_peaks[outcome.worker] = outcome.peak
        self._end(stage)

    def _end(self, stage: str, **facts: str) -> None:
        trace = self.meter.trace
        peak = self.meter.take_stage_peak()
        if self.plan.mode == "scheduler":
            # Workers of an existing cluster are no children of this process: they told their peaks.
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

    def _figures(self, stage: str, trace: MemoryTrace) -> StageFigures:
        """What the stage that ends now took, for the report of the build."""
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


def _has_size(path: Path, record: Mapping[str, Any]) -> bool:
    """Whether the output of a finished task is there with the size its record says."""
    return path.is_file() and path.stat().st_size == record["bytes"]
