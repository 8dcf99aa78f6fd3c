"""Builds: the same bytes however they run, and clear words when they cannot."""

import shutil
import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from helpers.sizes import sized
from helpers.small_builds import DIMENSION, ROWS, SMALL, contents, recipe_of, vectors
from hypothesis import given, settings
from hypothesis import strategies as st

from aggtree.engine.params import SearchParams
from aggtree.engine.search.searcher import Searcher
from aggtree.engine.tree.code_order import sort_codes
from aggtree.engine.tree.layout import build_tree
from aggtree.jobs.build import build, continue_build
from aggtree.jobs.plan import plan as plan_build
from aggtree.jobs.planning import plan
from aggtree.jobs.planning.training_rows import batch_ranges
from aggtree.jobs.running import executors
from aggtree.jobs.running.executors import InProcess
from aggtree.jobs.running.job_run import RunOptions
from aggtree.jobs.running.progress import Progress
from aggtree.jobs.running.streams import as_dask_array, as_source, read_in_order
from aggtree.jobs.running.tasks import ATTEMPTS, Tick
from aggtree.jobs.stages.build import choose_splits
from aggtree.storage.errors import (
    BuildLockedError,
    BuildMismatchError,
    IndexFormatError,
    JobError,
    MemoryBudgetError,
    SourceError,
)
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.index.dictionary_file import load_dictionaries
from aggtree.storage.index.format import REPORT
from aggtree.storage.index.manifest import read_manifest
from aggtree.storage.index.reader import open_index
from aggtree.storage.verify.index import verify_index
from aggtree.storage.work.lock import BuildLock
from aggtree.storage.work.runs import write_run


def test_a_build_reports_its_result(source: Path, tmp_path: Path) -> None:
    result = build(source, tmp_path / "index", workers=0, **SMALL)
    assert result.rows == ROWS and not result.already_built
    assert result.peak > 0
    assert [stage.name for stage in result.stages] == ["train", "encode", "sort", "build", "commit"]


def test_a_finished_index_holds_nothing_of_the_work(reference: Path) -> None:
    names = {path.name.partition("-")[0] for path in reference.iterdir()}
    assert names == {"manifest.json", "report.json", "build"}
    assert verify_index(reference) == []


def test_the_index_is_the_tree_of_the_codes(reference: Path) -> None:
    with open_index(reference) as index:
        directory = reference / index.manifest.first_segment.directory
        codes = CodeStore.open(directory / "codes.zarr").read(0, ROWS)
        dictionaries, ranges = load_dictionaries(directory / "dictionaries")
        params = recipe_of(**SMALL).tree
        tree = build_tree(codes, np.arange(ROWS, dtype=np.uint32), dictionaries, params, ranges)
        for name in tree._fields:
            np.testing.assert_array_equal(getattr(index.tree, name), getattr(tree, name), err_msg=name)
        queries = vectors(20, seed=1)
        found = index.search(queries, 10, SearchParams.unlimited(), rerank=0)
        expected = Searcher(tree, dictionaries).search(queries, 10, SearchParams.unlimited())
        np.testing.assert_array_equal(found.ids, expected.ids)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_do_not_change_a_byte(source: Path, reference: Path, tmp_path: Path, workers: int) -> None:
    build(source, tmp_path / "index", workers=workers, memory="3GiB", **SMALL)
    assert contents(tmp_path / "index") == contents(reference)


def test_partitions_do_not_change_a_byte(
    source: Path, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MIN_PARTITION_ROWS", 100)
    monkeypatch.setattr(plan, "MAX_PARTITION_ROWS", 137)
    result = build(source, tmp_path / "index", workers=0, **SMALL)
    assert result.rows == ROWS
    assert contents(tmp_path / "index") == contents(reference)


def test_a_local_cluster_does_not_change_a_byte(
    source: Path, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "CLUSTER_ROWS", 1)
    started: list[str] = []
    monkeypatch.setattr(
        executors,
        "local_cluster",
        lambda count, make=executors.local_cluster: started.append("") or make(count),
    )
    main = dict(vars(sys.modules["__main__"]))
    build(source, tmp_path / "index", workers=2, **SMALL)
    assert started
    assert contents(tmp_path / "index") == contents(reference)
    assert vars(sys.modules["__main__"]).get("__file__") == main.get("__file__")


@pytest.mark.parametrize(
    "make",
    [
        np.load,
        lambda path: np.load(path, mmap_mode="r"),
        lambda path: da.from_array(np.load(path), chunks=(450, 5)),
        as_source,
    ],
    ids=["array", "memmap", "dask", "source"],
)
def test_any_kind_of_source_gives_the_same_bytes(
    source: Path, reference: Path, tmp_path: Path, make: Any
) -> None:
    index = tmp_path / "index"
    build(make(source), index, workers=2, **SMALL)
    ours, theirs = contents(index), contents(reference)
    # The manifest records the location of the vectors, if they have one.
    del ours["manifest.json"], theirs["manifest.json"]
    assert ours == theirs
    made, expected = (read_manifest(path).first_segment for path in (index, reference))
    nowhere = {"vectors": "", "vectors_seal": ""}
    assert replace(made, **nowhere) == replace(expected, **nowhere)


def test_the_stages_one_by_one_give_the_same_bytes(source: Path, reference: Path, tmp_path: Path) -> None:
    index, options, opened = tmp_path / "index", RunOptions(workers=0), as_source(source)
    with pytest.raises(BuildMismatchError, match="no build was started here"):
        continue_build(index, "encode", options, opened)
    build(opened, index, workers=0, only_train=True, **SMALL)
    with pytest.raises(JobError, match="run `aggtree encode` first"):
        continue_build(index, "commit", options)
    with pytest.raises(BuildMismatchError, match="not the source"):
        continue_build(index, "encode", options, as_source(vectors(seed=5)))
    continue_build(index, "encode", options, opened)
    assert continue_build(index, "commit", options).rows == ROWS
    assert contents(index) == contents(reference)


def test_a_built_index_is_not_built_again(source: Path, reference: Path) -> None:
    before = contents(reference)
    assert build(source, reference, workers=0, **SMALL).already_built
    assert contents(reference) == before


def test_other_parameters_are_refused_until_replaced(source: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    build(source, index, workers=0, **SMALL)
    old = contents(index)
    with pytest.raises(BuildMismatchError, match=r"bucket 8 → 9.*`replace`"):
        build(source, index, workers=0, **SMALL | {"bucket": 9})
    with pytest.raises(BuildMismatchError, match="`replace`"):
        build(vectors(seed=7), index, workers=0, **SMALL)
    assert contents(index) == old
    build(source, index, workers=0, replace=True, **SMALL | {"bucket": 9})
    assert verify_index(index) == []
    assert contents(index) != old


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
@pytest.mark.parametrize("name", ["tree/records", "codes.zarr/c/2/0", "codes.zarr/zarr.json", "dictionaries"])
def test_damage_is_repaired_from_what_is_whole(
    source: Path, reference: Path, tmp_path: Path, name: str, damage: str
) -> None:
    index = tmp_path / "index"
    shutil.copytree(reference, index)
    path = next(index.glob("build-*")) / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data if damage == "flip" else data[:-3])
    if damage == "remove":
        path.unlink()
    if damage != "flip":
        with pytest.raises(IndexFormatError, match="`repair`"):
            build(source, index, workers=0, **SMALL)
    if name in ("tree/records", "codes.zarr/zarr.json"):
        continue_build(index, "commit", RunOptions(workers=0))
    else:
        with pytest.raises(JobError, match="run `aggtree"):
            continue_build(index, "commit", RunOptions(workers=0))
        result = build(source, index, workers=0, repair=True, **SMALL)
        assert not result.already_built
    assert contents(index) == contents(reference)
    assert build(source, index, workers=0, repair=True, **SMALL).already_built


def test_a_damaged_report_is_found_and_removed_by_a_repair(
    source: Path, reference: Path, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    shutil.copytree(reference, index)
    data = bytearray((index / REPORT).read_bytes())
    data[len(data) // 2] ^= 1
    (index / REPORT).write_bytes(data)
    assert [damage.file for damage in verify_index(index)] == [REPORT]
    assert build(source, index, workers=0, repair=True, **SMALL).already_built
    assert verify_index(index) == []
    assert contents(index) == contents(reference)


def test_a_folder_of_others_is_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear reader")
    for over in (False, True):
        with pytest.raises(BuildMismatchError, match=r"mine: holds letter.txt, which belongs to no index"):
            build(source, tmp_path / "mine", workers=0, replace=over, **SMALL)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]


def test_too_few_training_rows_are_refused_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2,000 rows to train on cannot teach 2,500 words"):
        build(source, tmp_path / "index", workers=0, **SMALL | {"words": (2500, 8, 8)})
    with pytest.raises(ValueError, match="cannot teach 2,500 words"):
        plan_build(source, words=(2500, 8, 8), train_rows=2000, workers=0)
    assert not (tmp_path / "index").exists()


def test_two_builders_do_not_meet(source: Path, tmp_path: Path) -> None:
    with BuildLock(tmp_path / "index"), pytest.raises(BuildLockedError, match="process"):
        build(source, tmp_path / "index", workers=0, **SMALL)


def test_too_little_memory_is_refused_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    with pytest.raises(MemoryBudgetError, match=r"allow \d+MiB"):
        build(source, tmp_path / "index", memory="20MiB", **SMALL)
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("rows", [1, 2, 5, sized(300, 40)])
def test_few_rows(tmp_path: Path, rows: int) -> None:
    base = vectors(rows)
    build(base, tmp_path / "index", workers=0)
    with open_index(tmp_path / "index") as index:
        ids, _ = index.search(base, 1, SearchParams.unlimited())
        assert len(index) == rows
        assert (base[ids[:, 0]] == base).all()


def test_equal_rows_are_cut_into_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MIN_PARTITION_ROWS", 50)
    monkeypatch.setattr(plan, "MAX_PARTITION_ROWS", 64)
    base = np.full((1000, DIMENSION), 7, np.uint8)
    build(base, tmp_path / "index", workers=0, **SMALL)
    with open_index(tmp_path / "index") as index:
        ids, distances = index.search(base[0], 1000, SearchParams.unlimited())
        assert ids[0].tolist() == list(range(1000))
        assert np.ptp(distances) == 0


class TestInvalidRows:
    @staticmethod
    def base() -> np.ndarray:
        """Vectors of which two are invalid, between the batches of training."""
        base = vectors().astype(np.float32)
        base[1500, 3] = np.nan
        base[1900, 0] = -np.inf
        return base

    def test_are_refused_by_number(self, tmp_path: Path) -> None:
        with pytest.raises(JobError, match=r"row 1500 .*skip_invalid"):
            build(self.base(), tmp_path / "index", workers=0, **SMALL)

    def test_in_training_are_refused_by_number(self, tmp_path: Path) -> None:
        base = self.base()
        base[634, 1] = np.inf
        with pytest.raises(SourceError, match=r"row 634 .*skip_invalid"):
            build(base, tmp_path / "index", workers=0, **SMALL)

    def test_are_left_out_on_demand(self, tmp_path: Path) -> None:
        base = self.base()
        base[634, 1] = np.inf
        result = build(base, tmp_path / "index", workers=0, skip_invalid=True, **SMALL)
        assert (result.rows, result.left_out) == (ROWS - 3, 3)
        with open_index(tmp_path / "index") as index:
            ids, _ = index.search(base[0], ROWS, SearchParams.unlimited())
            assert sorted(ids[0]) == [-1] * 3 + [row for row in range(ROWS) if row not in (634, 1500, 1900)]
        assert verify_index(tmp_path / "index") == []


@dataclass(frozen=True)
class Count:
    number: int
    rows: int = 10
    place: str = ""


def flaky(task: Count, tick: Tick) -> int:
    """Fails as often as the task's number."""
    mark = Path(task.place) / str(task.number)
    failures = len(mark.read_text()) if mark.exists() else 0
    tick(4)
    if failures < task.number:
        mark.write_text("x" * (failures + 1))
        raise RuntimeError("a cosmic ray")
    return task.number


@pytest.mark.parametrize("threads", [1, 2])
def test_a_failing_partition_is_tried_again_and_then_named(tmp_path: Path, threads: int) -> None:
    progress = Progress()
    tasks = [Count(number, place=str(tmp_path)) for number in range(ATTEMPTS)]
    found = {
        task.number: outcome.value for task, outcome in InProcess(threads).run("try", flaky, tasks, progress)
    }
    assert found == {number: number for number in range(ATTEMPTS)}
    assert progress.done == 10 * ATTEMPTS
    worse = [replace(tasks[0], number=ATTEMPTS)]
    with pytest.raises(JobError, match=f"try: partition {ATTEMPTS} failed {ATTEMPTS} times: .*a cosmic ray"):
        list(InProcess(threads).run("try", flaky, worse, progress))


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_reading_ahead_keeps_the_order(source: Path, ahead: int) -> None:
    base = np.load(source)
    array = as_dask_array(as_source(source), 1000)
    assert array.chunks[0] == (1000, 1000, 1000, 100)
    ranges = batch_ranges(ROWS, 900, 2 * ROWS)
    for (start, stop), rows in zip(ranges, read_in_order(array, ranges, ahead), strict=True):
        np.testing.assert_array_equal(rows, base[start:stop])


@settings(deadline=None, max_examples=30)
@given(
    counts=st.lists(st.integers(0, 300), min_size=1, max_size=6).filter(lambda counts: sum(counts) > 0),
    labels=st.integers(1, 4),
    partition_rows=st.integers(1, 400),
    seed=st.integers(0, 100),
)
def test_partitions_hold_all_rows_and_fit(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], labels: int, partition_rows: int, seed: int
) -> None:
    directory = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(seed)
    first, paths, keys = 0, [], []
    for number, count in enumerate(counts):
        codes, ids = sort_codes(
            rng.integers(0, labels, (count, 2)).astype(np.uint8),
            np.arange(first, first + count, dtype=np.uint32),
        )
        write_run(directory / str(number), codes, ids)
        paths.append(directory / str(number))
        keys.append(list(zip(codes.tolist(), ids.tolist(), strict=True)))
        first += count
    splits = choose_splits(paths, partition_rows)
    sizes = np.diff(splits.sum(axis=1))
    assert sizes.min() > 0 and sizes.max() <= partition_rows and sizes.sum() == sum(counts)
    parts = [
        [key for run, low, high in zip(keys, start, stop, strict=True) for key in run[low:high]]
        for start, stop in pairwise(splits)
    ]
    assert all(max(left) < min(right) for left, right in pairwise(parts))
