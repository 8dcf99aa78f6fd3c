"""The stages of a job, each of which continues where it was stopped.

    train    build-<id>/dictionaries             checkpoint in work-<id>/trainer
    encode   build-<id>/codes.zarr, or a URL     one task per shard
    sort     work-<id>/runs/<shard>              one task per shard
    build    work-<id>/parts/<partition>         one task per partition, cut by work-<id>/splits
    commit   build-<id>/tree/*, then manifest    in this process

A build, an append and a compaction run the same stages in this order; they differ in the inputs of the stages
(`StageInputs`). A partition counts as done when its output has been renamed and its record written, in this
order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.quality import Quality
from aggtree.jobs.planning.plan import STAGES, Plan, StageName
from aggtree.jobs.planning.recipe import Recipe
from aggtree.jobs.planning.reused_dictionaries import ReusedDictionaries
from aggtree.jobs.running.stage_runner import StageRunner
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
from aggtree.jobs.stages.code_location import (
    forget_codes_of_other_dictionaries,
    open_codes,
    remote_codes,
    shard_records,
    store_records,
)
from aggtree.jobs.stages.commit import placed
from aggtree.jobs.stages.drift import DRIFT_ROWS, note_training_error
from aggtree.jobs.stages.encode import EncodeTask, encode_shard
from aggtree.jobs.stages.measure import measured_quality, warnings_of
from aggtree.jobs.stages.own_ids import own_ids_record, same_vectors
from aggtree.jobs.stages.sort import SortTask, sort_shard
from aggtree.jobs.stages.source_location import note_source, source_location
from aggtree.jobs.stages.train import CHECKPOINT, TrainJob, learning_curve, train
from aggtree.storage.atomic import make_directory, remove_file, remove_tree
from aggtree.storage.errors import JobError, SourceError
from aggtree.storage.index.build_report import write_report
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.index.dictionary_file import load_dictionaries, load_state
from aggtree.storage.index.format import DICTIONARIES
from aggtree.storage.index.manifest import commit_manifest
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.index.writer import describe_build, stitch_partitions
from aggtree.storage.sources.base import VectorSource
from aggtree.storage.work.job_record import JobRecord, finish_job

RUNS = "runs"
PARTITIONS = "partitions"
SPLITS = "splits"


@dataclass(frozen=True, kw_only=True)
class StageInputs:
    """The inputs of the stages of a job.

    source : the open source of vectors; None if no stage to run needs it.
    dictionaries : trained before, to use or to continue, as the recipe states.
    code_tasks : produces codes without encoding: the function, and its task for each shard of the store.
    kept : file with a bit for each row that is not skipped; None for all.
    """

    source: VectorSource | None = None
    dictionaries: ReusedDictionaries | None = None
    code_tasks: Callable[[CodeStore], tuple[Function, Sequence[Task]]] | None = None
    kept: Path | None = None


@dataclass(kw_only=True)
class Stages:
    """The stages of one job: its record on disk, its inputs, and its runner.

    left_out : number of rows that the stages skipped, as far as they ran.
    quality : what the commit measured on a sample; warnings : what is wrong, in one line each.
    """

    job: JobRecord
    recipe: Recipe
    plan: Plan
    inputs: StageInputs
    runner: StageRunner
    left_out: int = 0
    quality: Quality | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        note_source(self.job, self.inputs.source)

    def run(self, first: StageName = "train", last: StageName = "commit") -> int:
        """Run the stages from `first` to `last`; returns the number of rows of the index."""
        for name in STAGES[STAGES.index(first) : STAGES.index(last) + 1]:
            getattr(self, name)()
        return self.rows - self.left_out

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

    def train(self) -> None:
        """Train the dictionaries or copy reused ones, unless they exist."""
        reused = self.inputs.dictionaries
        if self.job.done("train") and self.dictionaries.exists():
            return
        make_directory(self.job.build_directory)
        if reused is not None and not self.recipe.trains:
            reused.copy_to(self.dictionaries)
            self.job.record_done("train", 0, {"error": None})
            return
        train_job = TrainJob(
            params=self.recipe.annealing,
            batch_rows=self.recipe.batch_rows,
            train_rows=self.recipe.train_rows,
            checkpoint=self.job.work_directory / CHECKPOINT,
            dictionaries=self.dictionaries,
            skip_invalid=self.recipe.skip_invalid,
            start=None if reused is None else reused.path,
            metric=self.recipe.metric,
            planes=self.recipe.tree.planes,
        )
        threads = self.plan.stage("train").workers
        progress = self.runner.progress
        error = train(
            self._needed_source(), train_job, threads=threads, ahead=self.plan.ahead, progress=progress
        )
        transform = load_dictionaries(self.dictionaries)[0].transform
        curve = learning_curve(load_state(train_job.checkpoint), transform)
        forget_codes_of_other_dictionaries(self.job)
        self.job.record_done("train", 0, {"error": error} | curve)
        remove_file(train_job.checkpoint)
        self.runner.end("train", error=f"{error:.5g}")

    def encode(self) -> None:
        """Encode the shards that are missing, or copy their codes."""
        if not self.job.done("train"):
            raise JobError(
                f"{self.job.index}: the dictionaries are not trained yet; "
                "call aggtree.build or run `aggtree train` first"
            )
        store = self._code_store()
        missing = self._missing_shards(store)
        if not missing:
            return
        function, tasks = (self.inputs.code_tasks or self._encoding)(store)
        self.runner.run("encode", function, [tasks[number] for number in missing], total=self.rows)
        if self.inputs.source is not None:
            self._refuse_changed(self.inputs.source)

    def _encoding(self, store: CodeStore) -> tuple[Function, Sequence[Task]]:
        """Encoding, and its task for each shard."""
        source = self._needed_source()
        ranges = (store.shard_range(number) for number in range(store.shards))
        return encode_shard, [
            EncodeTask(
                number=number,
                start=start,
                stop=stop,
                source=source.spec if travels(source) else source,
                codes=store.location,
                dictionaries=self.dictionaries,
                annealing=self.recipe.annealing,
                skip_invalid=self.recipe.skip_invalid,
                stored_norms=self.recipe.metric != "ip" and self.recipe.tree.norm_bytes in (1, 2),
                sample=DRIFT_ROWS if self.job.task == "append" else 0,
            )
            for number, (start, stop) in enumerate(ranges)
        ]

    def _missing_shards(self, store: CodeStore) -> list[int]:
        present = store.present(shard_records(self.job))
        return [number for number in range(store.shards) if number not in present]

    def _refuse_changed(self, source: VectorSource) -> None:
        """Refuse a source that changed: the index would mix rows of two states."""
        if same_vectors(source, self.job.source):
            return
        for stage in ("train", "encode"):
            self.job.forget(stage)
        raise SourceError(f"{source.spec}: was changed while it was read; build again with `replace`")

    def sort(self) -> None:
        """Sort the shards whose runs are missing, unless all partitions built from them exist."""
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
                kept=self.inputs.kept,
                wide_ids=self.rows > 2**32,
            )
            for number in range(store.shards)
            if number not in done or not _has_size(self.runs / str(number), done[number])
        ]
        if tasks:
            self.runner.run("sort", sort_shard, tasks, total=self.rows)

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
        self.runner.run("build", build_partition, tasks, total=int(sizes.sum()))
        remove_tree(self.runs)

    def commit(self) -> None:
        """Join the partitions into the tree's files and make this build the index."""
        self.runner.close()
        if self.job.task == "append":
            note_training_error(self.job)
        self.runner.meter.begin_stage()  # the workers' memory was the last stage's
        made = self._describe()
        manifest = placed(self.job, made)
        commit_manifest(self.job.index, manifest)
        self.left_out = self.rows - made.rows
        self._measure()
        self.runner.end("commit")
        if self.job.task == "build" and manifest.first_segment.build == self.job.build:
            write_report(self.job, self.quality)
        finish_job(self.job.index)

    def _measure(self) -> None:
        """See how good the codes are, and say what is wrong."""
        far_rows = sum(int(record.get("far", 0)) for record in self.job.done("encode").values())
        self.quality = measured_quality(self.job, self.recipe, self.inputs.source, self._code_store())
        self.warnings = warnings_of(self.quality, self.recipe, far_rows, self.rows)
        for line in self.warnings:
            self.runner.progress.note(line)

    def _describe(self) -> SegmentManifest:
        """Write the tree's files; returns the segment for the manifest."""
        partitions, progress = sorted(self.job.done("build")), self.runner.progress
        progress.begin("commit", len(partitions) * (len(self.recipe.words) + 1), unit="slices")
        reported = 0

        def advance(done: int, _: int) -> None:
            nonlocal reported
            progress.advance(done - reported)
            reported = done

        tree = stitch_partitions(
            self.job.index,
            self.job.build,
            [self.partitions / str(number) for number in partitions],
            CodeLayout(self.recipe.words),
            norm_bytes=self.recipe.tree.norm_bytes,
            planes=self.recipe.tree.planes,
            metric=self.recipe.metric,
            progress=advance,
        )
        codes = store_records(self.job, self._code_store())
        vectors, vectors_seal = source_location(self.job)
        return describe_build(
            self.job.index,
            self.job.build,
            tree=tree,
            codes=() if self.job.codes else codes,
            source_rows=self.rows,
            parameters=self.job.parameters,
            source=self.job.source,
            remote_codes=remote_codes(self.job, codes),
            vectors=vectors,
            vectors_seal=vectors_seal,
            metric=self.recipe.metric,
            own_ids=own_ids_record(self.job),
        )

    def _needed_source(self) -> VectorSource:
        if self.inputs.source is None:
            raise JobError(
                f"{self.job.index}: codes are missing; call aggtree.build or run `aggtree encode` first, "
                "or build again with `repair` if the index is damaged"
            )
        return self.inputs.source

    def _code_store(self) -> CodeStore:
        return open_codes(self.job, self.recipe)

    def _partitions_are_ready(self) -> bool:
        """Whether every partition was built, so that the runs are not needed any more."""
        done = self.job.done("build")
        if not done or not self.splits.exists():
            return False
        partitions = len(load_splits(self.splits)) - 1
        return all(
            number in done and _has_size(self.partitions / str(number), done[number])
            for number in range(partitions)
        )

    def _splits(self, runs: Sequence[Path]) -> Splits:
        """The partitioning of an earlier run, if it fits the present budget; otherwise a new one."""
        if self.splits.exists():
            splits = load_splits(self.splits)
            if np.diff(splits.sum(axis=1)).max() <= self.plan.partition_rows:
                return splits
        self.job.forget("build")
        remove_tree(self.partitions)
        splits = choose_splits(runs, self.plan.partition_rows)
        save_splits(self.splits, splits, runs, CodeLayout(self.recipe.words))
        return splits


def _has_size(path: Path, record: Mapping[str, Any]) -> bool:
    """Whether the output of a finished task exists with the size in its record."""
    return path.is_file() and path.stat().st_size == record["bytes"]
