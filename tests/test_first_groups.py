"""Groups of a very wide first level: written once, mapped, checked, and worth the same answers."""

from pathlib import Path

import numpy as np
import pytest
from small_builds import WIDE, contents, vectors

import aggtree
from aggtree.engine.first_level import check_groups
from aggtree.storage import first_groups
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.first_groups import load_first_groups
from aggtree.storage.manifest import Manifest, read_manifest

UNLIMITED = aggtree.SearchParams.unlimited()


@pytest.fixture
def grouped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Manifest]:
    """An index whose first level is grouped although it is small."""
    monkeypatch.setattr(first_groups, "ONE_STAGE", 50)
    aggtree.build(vectors(), tmp_path / "index", workers=0, **WIDE)
    return tmp_path / "index", read_manifest(tmp_path / "index")


def test_groups_are_part_of_the_index_and_answer_as_none_do(
    grouped: tuple[Path, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, manifest = grouped
    monkeypatch.setattr(first_groups, "ONE_STAGE", 4096)
    aggtree.build(vectors(), tmp_path / "plain", workers=0, **WIDE)
    with aggtree.open(path) as index, aggtree.open(tmp_path / "plain") as plain:
        assert index.bytes_by_part()["first_level"] == first_groups.groups_record(manifest).bytes
        assert "first_level" not in plain.bytes_by_part()
        answers = [opened.search(vectors()[:20], 9, UNLIMITED) for opened in (index, plain)]
        assert np.array_equal(answers[0].ids, answers[1].ids)
        assert np.array_equal(answers[0].distances, answers[1].distances)
    with_groups, without = contents(path), contents(tmp_path / "plain")
    added = {name for name in with_groups if name.endswith("first_level")}
    assert len(added) == 1
    assert {name for name in without if without[name] != with_groups[name]} == {"manifest.json"}


def test_damaged_groups_are_refused(grouped: tuple[Path, Manifest]) -> None:
    path, manifest = grouped
    groups = load_first_groups(path, manifest)
    assert groups is not None
    nodes, dimension = manifest.level_nodes[1], manifest.dimension
    check_groups(groups, nodes, dimension)
    swapped = groups.numbers.copy()
    swapped[swapped >= 0] = 0
    late = groups.numbers.copy()
    gap = int(np.flatnonzero(late < 0)[0])
    late[[gap - 1, gap]] = late[[gap, gap - 1]]
    for wrong, message in (
        (groups._replace(centres=groups.centres[1:]), "group_start"),
        (groups._replace(steps=groups.steps[1:]), "steps"),
        (groups._replace(differences=groups.differences[1:]), "differences"),
        (groups._replace(numbers=swapped), "each of"),
        (groups._replace(numbers=late), "begin with"),
        (groups._replace(group_start=groups.group_start[::-1].copy()), "expected"),
    ):
        with pytest.raises(ValueError, match=message):
            check_groups(wrong, nodes, dimension)
    file = path / manifest.directory / "first_level"
    file.write_bytes(file.read_bytes()[:-64])
    with pytest.raises(IndexFormatError, match="first_level"):
        aggtree.open(path)
    assert aggtree.build(vectors(), path, workers=0, repair=True, **WIDE).rows == manifest.rows
    with aggtree.open(path) as index:
        assert index.rows == manifest.rows
