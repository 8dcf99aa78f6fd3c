"""Plan a build: estimate its memory, disk and time before anything is written."""

import os

from aggtree.engine.params import AnnealingParams, Cooling, Metric, TreeParams
from aggtree.jobs.planning.defaults import Quality
from aggtree.jobs.planning.estimate import BuildPlan, plan_build
from aggtree.jobs.planning.recipe import Choices, NormBytes, Words
from aggtree.jobs.running.job_run import DEFAULT_MEMORY, RunOptions
from aggtree.jobs.running.memory import parse_size
from aggtree.jobs.running.streams import Source, as_source
from aggtree.storage.keywords import explain_keywords


@explain_keywords
def plan(
    source: Source,
    *,
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
    memory: str | int = DEFAULT_MEMORY,
    workers: int | None = None,
    scheduler: str | None = None,
    codes: str | None = None,
) -> BuildPlan:
    """Plan a build of `source`: its parameters, and the memory, disk and time of each stage.

    The keywords are those of `build`. Nothing is written; times are estimated from a sample of the rows.
    """
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
    options = RunOptions(memory=memory, workers=workers, scheduler=scheduler, codes=codes)
    return plan_build(as_source(source), choices, options)
