"""Build an index from a source of vectors: plan, lock, and run the stages."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aggtree.engine.params import AnnealingParams, Cooling, Metric, TreeParams
from aggtree.jobs.planning.defaults import Quality
from aggtree.jobs.planning.recipe import Choices, NormBytes, Recipe, Words, make_recipe
from aggtree.jobs.planning.reused_dictionaries import ReusedDictionaries
from aggtree.jobs.running.job_run import DEFAULT_MEMORY, BuildResult, JobRun, RunOptions, plan_and_lock
from aggtree.jobs.running.memory import parse_size
from aggtree.jobs.running.progress import ProgressChoice
from aggtree.jobs.running.streams import Source, as_source
from aggtree.storage.errors import BuildMismatchError, IndexFormatError
from aggtree.storage.index.format import MANIFEST
from aggtree.storage.index.manifest import IndexManifest, read_manifest
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.keywords import explain_keywords
from aggtree.storage.sources.base import VectorSource
from aggtree.storage.sources.ids import Ids, IdSource, open_ids
from aggtree.storage.sources.unit_rows import metric_source
from aggtree.storage.work.directory import refuse_foreign
from aggtree.storage.work.job_record import JobRecord, build_id, finish_job, start_job, unfinished_jobs


@explain_keywords
def build(
    source: Source,
    index: str | os.PathLike[str],
    *,
    ids: Ids | None = None,
    metric: Metric = "l2",
    words: Words | None = None,
    bytes_per_vector: int | None = None,
    size: str | int | None = None,
    dictionaries: int | str | os.PathLike[str] | None = None,
    continue_training: bool = False,
    beam: int = AnnealingParams.beam,
    cooling: Cooling = AnnealingParams.cooling,
    seed: int = AnnealingParams.seed,
    quality: Quality = "default",
    train_rows: int | None = None,
    batch_rows: int | None = None,
    shard_rows: int | None = None,
    bucket: int | None = None,
    direct_leaves: int | None = None,
    norm_bytes: NormBytes = TreeParams.norm_bytes,
    skip_invalid: bool = False,
    replace: bool = False,
    repair: bool = False,
    only_train: bool = False,
    memory: str | int = DEFAULT_MEMORY,
    workers: int | None = None,
    scheduler: str | None = None,
    codes: str | None = None,
    progress: ProgressChoice = None,
) -> BuildResult:
    """Build an index of all vectors of `source` in the directory `index`.

    The same call resumes an interrupted build, and returns at once if the build is finished.

    source : a path, URL or name that `open_source` accepts, a VectorSource, a numpy array or a Dask array; or
        a list of these, which are concatenated.
    ids : your ids of the rows, an int64 array or a file of int64; None for row numbers.
    metric : `l2` (squared Euclidean distance), `ip` (inner product) or `cosine`.

    Chosen from the number of rows, their dimension and type by default:

    words : number of words (codewords, centroids) of each dictionary: `"4096,256x8"`, a sequence of sizes,
        or one size for all.
    bytes_per_vector : instead of `words`, the bytes of a code, such as 32: dictionaries of 16 words behind a
        wide first one. Such codes are scanned fastest and suit embeddings; the default for float vectors.
    size : instead of both, the size of the whole index, such as `"20GiB"`: the longest codes that fit.
    dictionaries : number of dictionaries, or an index whose trained dictionaries are reused.
    train_rows, batch_rows : rows to train on in all passes, and rows of one training batch.
    shard_rows : rows of one shard of codes.
    bucket, direct_leaves : a node of at most `bucket` vectors is not split; inside a split node, a group of
        at most `direct_leaves` vectors gets no node, its vectors hang directly from the split node.

    With a fixed default:

    continue_training : continue to train the reused dictionaries, on `source`.
    beam : beam width of encoding (10).
    cooling : how dictionaries are refined, `joint` or, as in the paper, `kmeans`.
    seed : random seed (0).
    quality : how much time training may take: `fast`, `default` or `best`.
    norm_bytes : bytes of a stored norm (1).
    skip_invalid : skip rows with NaN or infinite values instead of raising an error.

    How the job runs; none of these changes a byte of the index:

    replace : build beside an existing index in the directory, and replace it when done.
    repair : read every byte of a finished index, and rebuild what is damaged.
    only_train : stop when the dictionaries are trained; the same call without it continues.
    memory : limit for this process and all its child processes, such as `"4GiB"`.
    workers : number of parallel tasks; 0 to run them in this process, None for one per core.
    scheduler : address of an existing Dask scheduler, such as `"tcp://host:8786"`.
    codes : URL to store the codes at, such as `"s3://bucket/codes.zarr"`; None for the index directory.
    progress : False for none, a `Progress`, or the name of a kind. By default a live display in a terminal or
        notebook, and the logger `aggtree` elsewhere.
    """
    opened = as_source(source)
    choices = Choices(
        words=words,
        bytes_per_vector=bytes_per_vector,
        size=None if size is None else parse_size(size, "size"),
        dictionaries=dictionaries,
        continue_training=continue_training,
        annealing=AnnealingParams(beam=beam, cooling=cooling, seed=seed),
        quality=quality,
        train_rows=train_rows,
        batch_rows=batch_rows,
        shard_rows=shard_rows,
        bucket=bucket,
        direct_leaves=direct_leaves,
        norm_bytes=norm_bytes,
        skip_invalid=skip_invalid,
        metric=metric,
    )
    recipe, reused = make_recipe(opened, choices)
    task = BuildTask(
        source=opened,
        index=Path(index).absolute(),
        recipe=recipe,
        ids=None if ids is None else open_ids(ids),
        dictionaries=reused,
        replace=replace,
        repair=repair,
        only_train=only_train,
    )
    run = RunOptions(memory=memory, workers=workers, scheduler=scheduler, codes=codes, progress=progress)
    return run_build(task, run)


@dataclass(frozen=True, kw_only=True)
class BuildTask:
    """The arguments of `build`, with all defaults resolved.

    index : absolute.
    dictionaries : trained before, to reuse or to continue, as the recipe states.
    """

    source: VectorSource
    index: Path
    recipe: Recipe
    ids: IdSource | None = None
    dictionaries: ReusedDictionaries | None = None
    replace: bool = False
    repair: bool = False
    only_train: bool = False


def run_build(task: BuildTask, options: RunOptions) -> BuildResult:
    """Start or continue a build and run it to completion, or to the end of training."""
    from aggtree.jobs.running.warm_up import compile_source_kernels
    from aggtree.jobs.stages.code_location import check_built_place, checked_place, move_codes
    from aggtree.jobs.stages.own_ids import copy_ids, input_fingerprint
    from aggtree.jobs.stages.pipeline import StageInputs

    began = time.monotonic()
    index, recipe = task.index, task.recipe
    refuse_foreign(index)
    codes = checked_place(options.codes)
    compile_source_kernels(task.source)
    source = metric_source(task.source, recipe.metric)
    fingerprint = input_fingerprint(source, task.ids)
    with plan_and_lock(index, recipe, fingerprint, options, source, began=began) as run:
        manifest = _committed(index, build_id(recipe.to_json(), fingerprint))
        if manifest is None:
            job = start_job(index, recipe.to_json(), fingerprint, replace=task.replace, codes=codes or "")
            job = move_codes(job, codes)
        else:
            check_built_place(manifest.first_segment, index, codes)
            damaged = reopened(index, [manifest.first_segment], repair=task.repair)
            if damaged is None:
                return _already_built(run, manifest)
            job = damaged
        copy_ids(job, task.ids, run.plan.allowed)
        inputs = StageInputs(source=source, dictionaries=task.dictionaries)
        return run.run(job, inputs, last="train" if task.only_train else "commit")


def continue_build(
    index: Path,
    stage: Literal["encode", "commit"],
    options: RunOptions,
    source: VectorSource | None = None,
) -> BuildResult:
    """Continue the build that was started in `index` to the end of a stage; `commit` needs no source.

    For a finished index, `commit` rebuilds the tree from the codes if any byte of it is damaged.
    """
    from aggtree.jobs.stages.code_location import checked_place, move_codes
    from aggtree.jobs.stages.own_ids import same_vectors
    from aggtree.jobs.stages.pipeline import StageInputs

    began = time.monotonic()
    codes = checked_place(options.codes)
    started = unfinished_jobs(index)
    built = None
    if started and started[0].task != "build":
        remedy = f"repeat the {started[0].task} that began it"
        raise BuildMismatchError(f"{index}: no build was started here, but {started[0].task}; {remedy}")
    if started:
        parameters, fingerprint = started[0].parameters, started[0].source
    elif stage == "commit" and (index / MANIFEST).exists():
        built = read_manifest(index).first_segment
        parameters, fingerprint = built.parameters, built.source
    else:
        remedy = f"call aggtree.build, or run `aggtree train SOURCE {index}`, first"
        raise BuildMismatchError(f"{index}: no build was started here; {remedy}")
    recipe = Recipe.from_json(parameters)
    source = None if source is None else metric_source(source, recipe.metric)
    if source is not None and not same_vectors(source, fingerprint):
        raise BuildMismatchError(f"{source.spec}: not the source that {index} was trained on; name that one")
    with plan_and_lock(index, recipe, fingerprint, options, source, began=began) as run:
        job = started[0] if built is None else reopened(index, [built], repair=True)
        if job is None:
            return _already_built(run, read_manifest(index))
        job = move_codes(job, codes)
        return run.run(job, StageInputs(source=source), first="encode", last=stage)


def reopened(index: Path, segments: Sequence[SegmentManifest], *, repair: bool) -> JobRecord | None:
    """The job that repairs the first damaged one of `segments`; None if all are intact."""
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
    """The manifest, if its first segment is this build."""
    try:
        manifest = read_manifest(index)
    except IndexFormatError:
        return None
    return manifest if manifest.first_segment.build == build else None


def _already_built(run: JobRun, manifest: IndexManifest) -> BuildResult:
    rows = manifest.live_rows
    return run.done_before(rows=rows, left_out=manifest.all_source_rows - rows)
