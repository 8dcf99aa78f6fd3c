"""A tree built in partitions from runs on disk is the tree built in memory, however the runs are cut."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from helpers.trees import random_codes, random_dictionaries, whole_ranges
from hypothesis import given, settings
from hypothesis import strategies as st

from aggtree.engine.params import TreeParams
from aggtree.engine.tree.code_order import sort_codes
from aggtree.engine.tree.layout import Tree, TreePartition, build_tree, join_partitions
from aggtree.jobs.stages.build import BuildTask, build_partition, choose_splits, load_splits, save_splits
from aggtree.storage.index.dictionary_file import save_dictionaries
from aggtree.storage.work.partitions import open_partition
from aggtree.storage.work.runs import write_run

PARAMS = TreeParams(bucket=4, direct_leaves=2)


def write_runs(directory: Path, codes: np.ndarray, ids: np.ndarray, counts: list[int]) -> tuple[Path, ...]:
    """Sorted runs of so many rows each."""
    paths, start = [], 0
    for number, count in enumerate(counts):
        rows = slice(start, start + count)
        path = directory / str(number)
        write_run(path, *sort_codes(codes[rows], ids[rows]))
        paths.append(path)
        start += count
    return tuple(paths)


def built(directory: Path, runs: tuple[Path, ...], words: tuple[int, ...], partition_rows: int) -> Tree:
    """The tree of all runs, by the tasks of the stage."""
    dictionaries, ranges = random_dictionaries(words), whole_ranges(len(words))
    save_dictionaries(directory / "dictionaries", dictionaries, ranges)
    save_splits(directory / "splits", choose_splits(runs, partition_rows), runs, dictionaries.layout)
    partitions = []
    for number in range(len(load_splits(directory / "splits")) - 1):
        task = BuildTask(
            number=number,
            rows=partition_rows,
            runs=runs,
            splits=directory / "splits",
            dictionaries=directory / "dictionaries",
            tree=PARAMS,
            partition=directory / f"partition-{number}",
        )
        assert 0 < build_partition(task, lambda _: None)["rows"] <= partition_rows
        with open_partition(task.partition) as partition:
            partitions.append(TreePartition(*(np.array(array) for array in partition.arrays())))
    return join_partitions(partitions, dictionaries.layout, PARAMS, ranges)


@settings(deadline=None, max_examples=25)
@given(
    words=st.sampled_from([(3,) * 4, (5,), (300, 4, 3)]),
    counts=st.lists(st.integers(0, 90), min_size=1, max_size=6).filter(lambda counts: sum(counts) > 0),
    alphabet=st.sampled_from([1, 2, 5]),
    partition_rows=st.integers(1, 200),
    wide_ids=st.booleans(),
)
def test_parts_of_runs_join_to_the_tree(
    tmp_path_factory: pytest.TempPathFactory,
    words: tuple[int, ...],
    counts: list[int],
    alphabet: int,
    partition_rows: int,
    wide_ids: bool,
) -> None:
    directory = tmp_path_factory.mktemp("runs")
    codes = random_codes(words, sum(counts), alphabet)
    ids = np.arange(len(codes), dtype=np.uint64 if wide_ids else np.uint32)
    tree = built(directory, write_runs(directory, codes, ids, counts), words, partition_rows)
    whole = build_tree(codes, ids, random_dictionaries(words), PARAMS, whole_ranges(len(words)))
    assert all(np.array_equal(a, b) for a, b in zip(tree, whole, strict=True))


@contextmanager
def few_open_files(more: int) -> Iterator[None]:
    """A limit of open files a little above what is open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files by /proc")
def test_more_runs_than_files_may_be_open(tmp_path: Path) -> None:
    words = (3,) * 4
    codes, ids = random_codes(words, 3000, 3), np.arange(3000, dtype=np.uint32)
    runs = write_runs(tmp_path, codes, ids, [10] * 300)
    with few_open_files(16):
        tree = built(tmp_path, runs, words, 1000)
    assert np.array_equal(np.sort(tree.ids), ids)
