"""The plan keeps its promise for any input: within the budget, or refused with one that would do."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggtree.engine.params import AnnealingParams
from aggtree.jobs.planning import costs
from aggtree.jobs.planning.costs import Workload
from aggtree.jobs.planning.defaults import (
    default_batch_rows,
    default_shard_rows,
    default_train_rows,
    default_tree,
    default_words,
)
from aggtree.jobs.planning.plan import make_plan, smallest_budget
from aggtree.jobs.planning.training_rows import FIRST_ROWS_PER_WORD, training_rows
from aggtree.jobs.running.memory import GIB, MIB, parse_size
from aggtree.storage.errors import MemoryBudgetError


def workload(
    rows: int, dimension: int = 128, item_bytes: int = 1, words: tuple[int, ...] | None = None
) -> Workload:
    words = words or default_words(rows)
    return Workload(
        rows=rows,
        dimension=dimension,
        item_bytes=item_bytes,
        annealing=AnnealingParams(words=words),
        tree=default_tree(words, rows),
        batch_rows=default_batch_rows(rows),
        shard_rows=default_shard_rows(rows),
        train_rows=default_train_rows(rows, words),
    )


workloads = st.builds(
    workload,
    rows=st.integers(1, 5 * 10**9),
    dimension=st.integers(1, 4096),
    item_bytes=st.sampled_from([1, 4]),
    words=st.one_of(
        st.none(), st.tuples(st.integers(1, 65_536), *[st.integers(1, 256)] * 3), st.just((256,) * 64)
    ),
)


@given(work=workloads, allowed=st.integers(MIB, 64 * GIB), workers=st.integers(0, 64), travels=st.booleans())
def test_projected_is_within_allowed_or_refused(
    work: Workload, allowed: int, workers: int, travels: bool
) -> None:
    try:
        plan = make_plan(work, allowed=allowed, workers=workers, travels=travels)
    except MemoryBudgetError as error:
        named = re.search(r"allow (\d+MiB)", str(error))
        assert named is not None
        needed = parse_size(named[1])
        assert needed > allowed
        assert make_plan(work, allowed=needed, workers=workers, travels=travels).projected <= needed
        return
    assert plan.projected <= allowed
    assert all(stage.projected >= costs.DRIVER_BYTES and stage.tasks >= 1 for stage in plan.stages)
    assert 1 <= plan.workers <= max(1, workers)
    assert travels or plan.mode == "process"
    assert plan.stage("build").tasks * plan.partition_rows >= work.rows


@given(work=workloads, allowed=st.integers(MIB, 64 * GIB), threads=st.integers(1, 500))
def test_an_existing_cluster_is_taken_as_it_is(work: Workload, allowed: int, threads: int) -> None:
    try:
        plan = make_plan(work, allowed=allowed, workers=2, scheduler_workers=threads)
    except MemoryBudgetError:
        return
    assert (plan.mode, plan.workers) == ("scheduler", threads)
    assert plan.projected <= allowed


def test_a_tight_budget_lowers_workers_then_leaves_the_cluster() -> None:
    work = workload(50_000_000, dimension=8, words=(16,) * 4)
    plans = [
        make_plan(work, allowed=allowed, workers=4)
        for allowed in range(16 * GIB, smallest_budget(work), -16 * MIB)
    ]
    kinds = list(dict.fromkeys((plan.mode, plan.workers) for plan in plans))
    assert (
        kinds
        == [
            (mode, count)
            for mode in ("cluster", "process")
            for count in (4, 3, 2, 1)
            if (mode, count) != ("cluster", 1)
        ][: len(kinds)]
    )
    assert ("process", 4) in kinds
    with pytest.raises(MemoryBudgetError, match=r"allow \d+MiB"):
        make_plan(work, allowed=parse_size("100MiB"), workers=4)


def test_small_inputs_need_no_cluster() -> None:
    assert make_plan(workload(100_000), allowed=4 * GIB, workers=8).mode == "process"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (1, (1,) * 8),
        (10_000, (256,) * 8),
        (300_000, (1024, *(256,) * 8)),
        (3_000_000, (4096, *(256,) * 8)),
        (10**7, (16_384, *(256,) * 8)),
        (10**8, (65_536, *(256,) * 8)),
        (10**9, (65_536, *(256,) * 8)),
        (10**11, (65_536, *(256,) * 8)),
    ],
)
def test_words_follow_from_the_rows(rows: int, words: tuple[int, ...]) -> None:
    assert default_words(rows) == words


def test_nodes_behind_the_widest_dictionary_are_split_last() -> None:
    buckets = [default_tree((words, *(256,) * 8), 10**9).bucket for words in (256, 257, 16_384, 65_536)]
    assert buckets == [64, 1024, 1024, 4096]
    assert default_tree((65_536, *(256,) * 8), 10**8).bucket == 16_384


def test_a_wide_first_dictionary_gets_rows_enough() -> None:
    behind = (256,) * 8
    assert default_train_rows(150_000, behind) == 150_000
    assert default_train_rows(10**7, behind) == default_train_rows(10**8, (65_536, *behind)) == 200_000
    assert default_train_rows(10**7, (1024, *(16,) * 50), planes=True) == 131_072
    for rows, words in ((10**7, 16_384), (10**8, 65_536)):
        read = training_rows(rows, 200_000, 200_000, words, spread=True)
        first = sum(stop - start for start, stop in read.first)
        assert FIRST_ROWS_PER_WORD * words <= first <= FIRST_ROWS_PER_WORD * words + read.batch_rows
