"""Append rows to an index: encode them with its dictionaries into a new segment with its own tree.

The stages are those of a build without training. The index answers queries meanwhile; the new rows become
visible when the manifest is committed. Row numbers continue from the last one.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.jobs.planning.recipe import Recipe
from aggtree.jobs.planning.reused_dictionaries import ReusedDictionaries
from aggtree.jobs.repair import check_presence
from aggtree.jobs.running.job_run import DEFAULT_MEMORY, BuildResult, JobRun, RunOptions, plan_and_lock
from aggtree.jobs.running.progress import ProgressChoice
from aggtree.jobs.running.streams import Source, as_source
from aggtree.storage.errors import BuildMismatchError
from aggtree.storage.index.live_rows import kept_bits
from aggtree.storage.index.manifest import IndexManifest, read_manifest
from aggtree.storage.index.opened.segments import map_own_ids
from aggtree.storage.index.own_ids import KnownIds, OwnIds
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.keywords import explain_keywords
from aggtree.storage.row_bits import read_bits
from aggtree.storage.sources.base import VectorSource
from aggtree.storage.sources.ids import Ids, IdSource, open_ids
from aggtree.storage.sources.unit_rows import metric_source
from aggtree.storage.work.job_record import JobRecord, start_job

DRIFTED = 1.5
"""Ratio of the error of new rows to that of the training rows above which new dictionaries are advised."""


@dataclass(frozen=True, kw_only=True)
class AppendResult(BuildResult):
    """The result of `append`; `rows` counts the rows added.

    first_row : row number of the first of them.
    before : the same of the training rows; None if unknown.
    """

    first_row: int
    before: float | None = None

    @property
    def drifted(self) -> bool:
        """Whether the new rows differ so much that the dictionaries should be trained further."""
        return bool(self.distortion and self.before and self.distortion > DRIFTED * self.before)


@explain_keywords
def append(
    index: str | os.PathLike[str],
    source: Source,
    *,
    ids: Ids | None = None,
    replace: bool = False,
    repair: bool = False,
    memory: str | int = DEFAULT_MEMORY,
    workers: int | None = None,
    scheduler: str | None = None,
    codes: str | None = None,
    progress: ProgressChoice = None,
) -> AppendResult:
    """Append all vectors of `source` to an index, which keeps answering queries meanwhile.

    The same call resumes an interrupted one, and returns at once if the rows are in the index already.

    source, ids : as in `build`; `ids` is required if the index was built with ids, and refused otherwise.
    replace : discard what another unfinished command left in the directory, and start over.
    repair : read every byte of the segment that holds these rows, and rebuild what is damaged.
    memory, workers, scheduler, codes, progress : as in `build`.
    """
    run = RunOptions(memory=memory, workers=workers, scheduler=scheduler, codes=codes, progress=progress)
    own_ids = None if ids is None else open_ids(ids)
    path, opened = Path(index).absolute(), as_source(source)
    return run_append(path, opened, run, ids=own_ids, replace=replace, repair=repair)


def growing_recipe(index: Path, manifest: IndexManifest, rows: int) -> Recipe:
    """The recipe for appending `rows` rows: that of the index, with its dictionaries."""
    first = manifest.first_segment
    recipe = Recipe.from_json(first.parameters).for_rows(rows, first.source_rows)
    return changed(recipe, reused=ReusedDictionaries.of(index, manifest).checksum, continued=False)


def run_append(
    index: Path,
    source: VectorSource,
    options: RunOptions,
    *,
    ids: IdSource | None = None,
    replace: bool = False,
    repair: bool = False,
) -> AppendResult:
    """Start or resume an append and run it to completion."""
    from aggtree.jobs.build import reopened
    from aggtree.jobs.running.warm_up import compile_source_kernels
    from aggtree.jobs.stages.code_location import checked_place, move_codes
    from aggtree.jobs.stages.own_ids import copy_ids, input_fingerprint
    from aggtree.jobs.stages.pipeline import StageInputs

    began = time.monotonic()
    codes = checked_place(options.codes)
    manifest = read_manifest(index)
    _check_input(index, manifest, source, ids)
    compile_source_kernels(source)
    recipe = growing_recipe(index, manifest, source.rows)
    source = metric_source(source, recipe.metric)
    fingerprint = input_fingerprint(source, ids)
    with plan_and_lock(index, recipe, fingerprint, options, source, began=began) as run:
        manifest = read_manifest(index)  # which nobody changes now
        _check_input(index, manifest, source, ids)
        check_unchanged(index, manifest, recipe, source.rows)
        there = _segments_of(index, manifest, fingerprint, all_of_them=repair)
        if repair and not there:
            raise BuildMismatchError(f"{index}: holds no segment of these rows; nothing to repair")
        if not there:
            check_presence(index, manifest)
            rows, place = fingerprint | {"first_row": manifest.all_source_rows}, codes or ""
            job = start_job(index, recipe.to_json(), rows, replace=replace, codes=place, task="append")
            job = move_codes(job, codes)
        else:
            damaged = reopened(index, there, repair=repair)
            if damaged is None:
                return _already_there(run, manifest, there[0])
            job = damaged
        known = None if ids is None or there else _known_ids(job, manifest)
        copy_ids(job, ids, run.plan.allowed, known)
        inputs = StageInputs(source=source, dictionaries=ReusedDictionaries.of(index, manifest))
        result = run.run(job, inputs)
        now = read_manifest(index)
        added = next(segment for segment in now.segments if segment.build == job.build)
        return _result(result, added, now)


def _check_input(index: Path, manifest: IndexManifest, source: VectorSource, ids: IdSource | None) -> None:
    """Refuse rows that cannot be part of this index, before anything is written."""
    if source.dimension != manifest.dimension:
        raise BuildMismatchError(
            f"{source.spec}: vectors of dimension {source.dimension}, {index} is of {manifest.dimension}"
        )
    if manifest.own_ids and ids is None:
        raise BuildMismatchError(f"{index}: has ids of its own; name those of the new rows by `ids`")
    if ids is not None and not manifest.own_ids:
        raise BuildMismatchError(f"{index}: its ids are row numbers; leave out `ids`")


def check_unchanged(index: Path, manifest: IndexManifest, recipe: Recipe, rows: int) -> None:
    """Refuse a plan that was made for another state of the index."""
    if growing_recipe(index, manifest, rows) != recipe:
        raise BuildMismatchError(f"{index}: was changed by another command meanwhile; run this one again")


def _segments_of(
    index: Path, manifest: IndexManifest, fingerprint: dict[str, Any], *, all_of_them: bool
) -> list[SegmentManifest]:
    """The last appended segment, if it holds exactly these rows and none of them was deleted since.

    all_of_them : all segments that hold them, deleted or not, the newest first.
    """
    candidates = manifest.appended_segments if all_of_them else manifest.appended_segments[-1:]
    same = [
        segment
        for segment in reversed(candidates)
        if all(segment.source.get(name) == value for name, value in fingerprint.items())
    ]
    if not same or all_of_them or manifest.live is None:
        return same
    rows = same[0].first_row, same[0].first_row + same[0].source_rows
    return same if read_bits(index / manifest.live.file.path, *rows).all() else []


def _already_there(run: JobRun, manifest: IndexManifest, last: SegmentManifest) -> AppendResult:
    """The result of a call whose rows had been appended before."""
    result = run.done_before(rows=last.rows, left_out=last.source_rows - last.rows)
    return _result(result, last, manifest)


def _result(result: BuildResult, added: SegmentManifest, now: IndexManifest) -> AppendResult:
    """The result of a job and of the segment it added."""
    return AppendResult(
        **(vars(result) | {"distortion": added.distortion}),
        first_row=added.first_row,
        before=now.first_segment.distortion,
    )


def _known_ids(job: JobRecord, manifest: IndexManifest) -> KnownIds:
    """Ids of the rows that are in the index and were not deleted."""
    bits = kept_bits(job.index, manifest)

    def blocks() -> Iterator[NDArray[np.int64]]:
        for segment in manifest.segments:
            own = OwnIds([map_own_ids(job.index, segment, [])])
            yield from own.live_blocks(bits, segment.first_row)

    return blocks
