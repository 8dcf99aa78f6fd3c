"""Merge all segments of an index into one tree, without the deleted rows.

Codes are copied, not recomputed: the stages after encoding sort them, merge the sorted runs out of core and
build the tree from them, with the bytes that a build of all rows with these dictionaries would have. Rows
keep their numbers; those of deleted rows are not used again.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aggtree.jobs.append import check_unchanged, growing_recipe
from aggtree.jobs.planning.reused_dictionaries import ReusedDictionaries
from aggtree.jobs.repair import check_presence
from aggtree.jobs.running.job_run import DEFAULT_MEMORY, BuildResult, RunOptions, plan_and_lock
from aggtree.jobs.running.progress import ProgressChoice
from aggtree.jobs.running.tasks import Function, Task, Tick
from aggtree.storage.atomic import make_directory, replace_file, write_bytes
from aggtree.storage.checksums import block_checksums
from aggtree.storage.errors import BuildMismatchError, IndexFormatError
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.index.file_record import FileRecord
from aggtree.storage.index.format import OWN_IDS
from aggtree.storage.index.live_rows import kept_bits
from aggtree.storage.index.manifest import IndexManifest, read_manifest
from aggtree.storage.index.opened.segments import map_own_ids
from aggtree.storage.index.own_ids import OwnIds
from aggtree.storage.keywords import explain_keywords
from aggtree.storage.row_bits import read_bits
from aggtree.storage.work.job_record import JobRecord, finish_job, start_job, unfinished_jobs

KEPT = "kept"


@explain_keywords
def compact(
    index: str | os.PathLike[str],
    *,
    replace: bool = False,
    memory: str | int = DEFAULT_MEMORY,
    workers: int | None = None,
    scheduler: str | None = None,
    codes: str | None = None,
    progress: ProgressChoice = None,
) -> BuildResult:
    """Merge all segments of an index into one and drop deleted rows; ids do not change.

    The same call resumes an interrupted one. Queries continue meanwhile, also in processes that have the
    index open.

    replace : discard what another unfinished command left in the directory, and start over.
    memory, workers, scheduler, codes, progress : as of `build`.
    """
    run = RunOptions(memory=memory, workers=workers, scheduler=scheduler, codes=codes, progress=progress)
    return run_compact(Path(index).absolute(), run, replace=replace)


def run_compact(index: Path, options: RunOptions, *, replace: bool = False) -> BuildResult:
    """Start or resume a compaction and run it to completion."""
    from aggtree.jobs.stages.code_location import checked_place, move_codes
    from aggtree.jobs.stages.pipeline import StageInputs

    began = time.monotonic()
    codes = checked_place(options.codes)
    manifest = read_manifest(index)
    recipe = growing_recipe(index, manifest, manifest.all_source_rows)
    with plan_and_lock(index, recipe, merged_source(manifest), options, None, began=began) as run:
        manifest = read_manifest(index)  # which nobody changes now
        check_unchanged(index, manifest, recipe, manifest.all_source_rows)
        check_presence(index, manifest)
        if not manifest.appended_segments and manifest.live is None:
            only = manifest.first_segment
            if all(job.build == only.build for job in unfinished_jobs(index)):
                finish_job(index)  # what a process killed after the commit left behind
            return run.done_before(rows=only.rows, left_out=only.source_rows - only.rows)
        if manifest.live_rows == 0:
            raise BuildMismatchError(
                f"{index}: every row is deleted, nothing would remain; append rows first"
            )
        source = merged_source(manifest)
        job = start_job(index, recipe.to_json(), source, replace=replace, codes=codes or "", task="compact")
        job = move_codes(job, codes)
        kept = _write_kept(job, manifest)
        _join_own_ids(job, manifest)

        def copying(store: CodeStore) -> tuple[Function, Sequence[Task]]:
            return copy_shard, copy_tasks(index, manifest, store, kept)

        dictionaries = ReusedDictionaries.of(index, manifest)
        inputs = StageInputs(dictionaries=dictionaries, code_tasks=copying, kept=kept)
        return run.run(job, inputs)


def merged_source(manifest: IndexManifest) -> dict[str, Any]:
    """The source of the merged build, as its job and its manifest record it."""
    rows = manifest.all_source_rows
    live = manifest.live.file.path if manifest.live else ""
    record = {
        "rows": rows,
        "dimension": manifest.dimension,
        "dtype": str(manifest.first_segment.source.get("dtype", "float32")),
        "segments": [segment.build for segment in manifest.segments],
        "live": live,
    }
    if len(manifest.all_pieces) == 1:
        record = manifest.all_pieces[0].source | record
    return record | ({"ids": rows} if manifest.own_ids else {})


def _write_kept(job: JobRecord, manifest: IndexManifest) -> Path | None:
    """Write a bit for each row that is in a tree and not deleted. None if all are."""
    if manifest.live_rows == manifest.all_source_rows:
        return None
    path = job.work_directory / KEPT
    if not path.exists():
        write_bytes(path, kept_bits(job.index, manifest).tobytes())
    return path


def _join_own_ids(job: JobRecord, manifest: IndexManifest) -> None:
    """Write the own ids of all segments into one file, unless it is there."""
    from aggtree.jobs.stages.own_ids import has_own_ids, note_own_ids

    if not manifest.own_ids or has_own_ids(job):
        return
    path = job.build_directory / OWN_IDS
    make_directory(job.build_directory)
    ids = [map_own_ids(job.index, segment, []) for segment in manifest.segments]
    for segment, segment_ids in zip(manifest.segments, ids, strict=True):
        if block_checksums(segment_ids) != segment.file(OWN_IDS).blocks:
            damaged = job.index / segment.file(OWN_IDS).path
            raise IndexFormatError(f"{damaged}: damaged; copy it again before compacting")
    with replace_file(path, 8 * manifest.all_source_rows) as file:
        for _, block in OwnIds(ids).blocks():
            file.write(block)
    note_own_ids(job, FileRecord.of(f"{job.build_directory.name}/{OWN_IDS}", file.checksums))


@dataclass(frozen=True, kw_only=True)
class CopyTask:
    """Rows start..stop, which become shard `number` of the store at `codes`.

    stores : location, first row and rows of each store they come from.
    kept : file with a bit for each row that stays, None for all; the codes of others become zeros.
    """

    number: int
    start: int
    stop: int
    codes: str
    stores: tuple[tuple[str, int, int], ...]
    kept: Path | None = None

    @property
    def rows(self) -> int:
        return self.stop - self.start


def copy_tasks(index: Path, manifest: IndexManifest, store: CodeStore, kept: Path | None) -> list[CopyTask]:
    """One task for each shard of the merged store."""
    stores = tuple(
        (str(segment.codes_at(index)), segment.first_row, segment.source_rows)
        for segment in manifest.segments
    )
    tasks = []
    for number in range(store.shards):
        start, stop = store.shard_range(number)
        inside = tuple(place for place in stores if place[1] < stop and start < place[1] + place[2])
        tasks.append(
            CopyTask(number=number, start=start, stop=stop, codes=store.location, stores=inside, kept=kept)
        )
    return tasks


def copy_shard(task: CopyTask, tick: Tick) -> dict[str, Any]:
    """Copy the codes of one shard and write it; returns its record."""
    store = CodeStore.open(task.codes)
    codes = np.zeros((task.rows, store.width), np.uint8)
    for location, first, rows in task.stores:
        start, stop = max(task.start, first), min(task.stop, first + rows)
        copied = CodeStore.open(location).read(start - first, stop - first)
        codes[start - task.start : stop - task.start] = copied
        tick(stop - start)
    if task.kept is not None:
        codes[~read_bits(task.kept, task.start, task.stop)] = 0
    return store.write_shard(task.number, codes).to_json() | {"invalid": []}
