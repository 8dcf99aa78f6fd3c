"""The plan's disk: an honest estimate, compared with what is free before anything is written."""

from collections import namedtuple
from pathlib import Path

import pytest
from helpers.small_builds import SMALL, vectors

import aggtree
from aggtree.jobs.planning import costs, disk_space
from aggtree.jobs.planning.recipe import Choices, choose_recipe
from aggtree.jobs.running.memory import MIB
from aggtree.storage.errors import DiskError

Usage = namedtuple("Usage", "total used free")


def test_a_disk_too_small_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _: Usage(MIB, MIB, 1000))
    with pytest.raises(DiskError, match=r"more are needed on this disk, 1000 B are free; make room"):
        aggtree.build(vectors(), tmp_path / "index", workers=0, **SMALL)
    assert not list(tmp_path.rglob("dictionaries"))


def test_what_is_written_needs_no_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aggtree.build(vectors(), tmp_path / "index", workers=0, **SMALL)
    assert disk_space.written_bytes(tmp_path / "index") > 0
    assert disk_space.written_bytes(tmp_path / "nowhere") == 0
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _: Usage(MIB, MIB, 0))
    assert aggtree.build(vectors(), tmp_path / "index", workers=0, **SMALL).already_built


@pytest.mark.parametrize("words", [(4096, *(256,) * 8), (256,) * 8])
def test_a_billion_rows_need_what_the_plan_says(words: tuple[int, ...]) -> None:
    work = choose_recipe(10**9, Choices(words=words)).workload(10**9, 128, "uint8")
    width = work.layout.width
    runs, tree = width + 4, costs.tree_disk_bytes(work) / 1e9
    assert width < tree < width + 8
    total = (costs.index_bytes(work) + costs.work_bytes(work)) / 1e9
    assert total == pytest.approx(width + tree + max(runs, tree), rel=0.01)
