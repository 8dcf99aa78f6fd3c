"""Estimate the time of a build by measuring its stages on a small sample."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.clustering.distances import as_rows
from aggtree.engine.coding.encoding import Encoder
from aggtree.engine.coding.wide_dictionary import word_chooser
from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.training.wide_dictionary_trainer import PASSES
from aggtree.engine.training.work import fit_work
from aggtree.engine.transform import find_transform
from aggtree.engine.tree.code_order import sort_codes
from aggtree.engine.tree.layout import build_tree_partition
from aggtree.jobs.planning.costs import Workload, index_bytes
from aggtree.jobs.planning.defaults import words_of_bytes
from aggtree.jobs.planning.plan import Plan, StageName
from aggtree.jobs.planning.recipe import Choices, Recipe, make_recipe
from aggtree.jobs.running.job_run import RunOptions, cluster_of, plan_of, workload_of
from aggtree.jobs.running.tasks import single_threaded_blas
from aggtree.storage.sources.base import VectorSource
from aggtree.storage.sources.unit_rows import metric_source

SAMPLE_ROWS = 2000
CODE_ROWS = 200_000
TRAIN_FACTOR = 1.7  # a training row against an encoded one: statistics, the solver, the guard's second look
FIRST_FACTOR = 0.9  # a row of the first dictionary's passes against choosing its word: most look at less
COMMIT_BYTES_PER_SECOND = 400e6


CODE_SIZES = (8, 16, 32, 64, 128)
"""Bytes per vector that a plan compares."""


@dataclass(frozen=True, kw_only=True)
class CodeChoice:
    """What an index with codes of so many bytes would take: disk, and about how many seconds."""

    bytes_per_vector: int
    index_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """A plan with the seconds each stage is expected to take on this machine.

    alternatives : the same build with shorter and longer codes, where the code is chosen by its bytes.
    """

    source: str
    rows: int
    dimension: int
    recipe: Recipe
    plan: Plan
    seconds: dict[StageName, float]
    alternatives: tuple[CodeChoice, ...] = ()


def plan_build(source: VectorSource, choices: Choices, options: RunOptions) -> BuildPlan:
    """Plan a build of `source`, and measure on a sample how long it would take."""
    recipe, _ = make_recipe(source, choices)
    source = metric_source(source, recipe.metric)
    work = workload_of(recipe, source.fingerprint(), source, options.codes or "")
    with cluster_of(options) as cluster:
        plan = plan_of(work, options, source, cluster)
    seconds = _estimate(source, recipe, plan)
    return BuildPlan(
        source=source.spec,
        rows=source.rows,
        dimension=source.dimension,
        recipe=recipe,
        plan=plan,
        seconds=seconds,
        alternatives=_alternatives(work, recipe, seconds),
    )


def _alternatives(work: Workload, recipe: Recipe, seconds: dict[StageName, float]) -> tuple[CodeChoice, ...]:
    """Builds with other bytes per vector; training and encoding take time in proportion to the labels."""
    if not (recipe.tree.planes and recipe.trains):
        return ()
    found = []
    for size in CODE_SIZES:
        words = words_of_bytes(work.rows, size, recipe.metric)
        longer = (len(words) - 1) / max(1, len(recipe.words) - 1)
        scaled = sum(
            time * (longer if stage in ("train", "encode") else 1) for stage, time in seconds.items()
        )
        other = replace(work, annealing=replace(work.annealing, words=words))
        found.append(CodeChoice(bytes_per_vector=size, index_bytes=index_bytes(other), seconds=scaled))
    return tuple(found)


def _estimate(source: VectorSource, recipe: Recipe, plan: Plan) -> dict[StageName, float]:
    rows = source.rows
    places = np.linspace(0, rows - 1, min(rows, SAMPLE_ROWS)).astype(np.int64)
    sample = as_rows(np.nan_to_num(source.take(np.unique(places))))
    sample = find_transform(sample).apply(sample)[0]
    with single_threaded_blas():
        first, encode, sort, build = _measure(sample, recipe)
    read = recipe.training_rows(rows)
    passes = FIRST_FACTOR * PASSES * sum(stop - start for start, stop in read.first)
    learns = not (read.first or recipe.reused)
    annealed = sum(fit_work(recipe.annealing, read.batch_rows, learns_first=learns))
    later = TRAIN_FACTOR * read.batch_rows * (read.count - 1)
    training = int(recipe.trains) * (passes * first + (annealed + later) * encode)
    return {
        "train": training / plan.stage("train").workers,
        "encode": rows * encode / plan.stage("encode").workers,
        "sort": rows * sort / plan.stage("sort").workers,
        "build": rows * (sort + build) / plan.stage("build").workers,
        "commit": plan.index_bytes / COMMIT_BYTES_PER_SECOND,
    }


def _measure(sample: NDArray[Any], recipe: Recipe) -> tuple[float, float, float, float]:
    """Seconds per row and core of choosing a word of a wide first dictionary, encoding, sorting and building.

    Stand-ins do: dictionaries of vectors of the sample, and random codes.
    """
    rng = np.random.default_rng(0)
    layout = CodeLayout(recipe.words)
    words = sample[rng.integers(0, len(sample), sum(recipe.words))] / layout.levels
    dictionaries = Dictionaries(words.astype(np.float32), layout)
    encoder = Encoder(dictionaries, recipe.annealing.beam, recipe.annealing.stage)
    labels = np.column_stack([rng.integers(0, size, CODE_ROWS) for size in recipe.words])
    codes, ids = layout.pack(labels), np.arange(CODE_ROWS, dtype=np.uint32)
    ordered = sort_codes(codes, ids)
    ranges = np.tile(np.array([0, 1], np.float32), (layout.levels + 1, 1))
    chooser = word_chooser(dictionaries.part(0)) if layout.wide else None
    return (
        _seconds(lambda: chooser.assign(sample)) / len(sample) if chooser is not None else 0.0,
        _seconds(lambda: encoder.encode(sample)) / len(sample),
        _seconds(lambda: sort_codes(codes, ids)) / CODE_ROWS,
        _seconds(lambda: build_tree_partition(*ordered, dictionaries, recipe.tree, ranges)) / CODE_ROWS,
    )


def _seconds(work: Callable[[], object]) -> float:
    """Seconds of the second call: the first may compile."""
    work()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
