"""Groups of a very wide first level: written once, mapped, checked, and worth the same answers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.small_builds import WIDE, contents, vectors

import aggtree
from aggtree.engine.scan.first_level import check_groups
from aggtree.storage.array_file import write_arrays
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index import first_groups
from aggtree.storage.index.file_record import FileRecord
from aggtree.storage.index.first_groups import load_first_groups
from aggtree.storage.index.manifest import IndexManifest, commit_manifest, read_manifest
from aggtree.storage.index.segment_manifest import SegmentManifest

UNLIMITED = aggtree.SearchParams.unlimited()


@pytest.fixture
def grouped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, SegmentManifest]:
    """An index whose first level is grouped although it is small."""
    monkeypatch.setattr(first_groups, "ONE_STAGE", 50)
    aggtree.build(vectors(), tmp_path / "index", workers=0, **WIDE)
    return tmp_path / "index", read_manifest(tmp_path / "index").first_segment


def test_groups_are_part_of_the_index_and_answer_as_none_do(
    grouped: tuple[Path, SegmentManifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, segment = grouped
    monkeypatch.setattr(first_groups, "ONE_STAGE", 4096)
    aggtree.build(vectors(), tmp_path / "plain", workers=0, **WIDE)
    with aggtree.open(path) as index, aggtree.open(tmp_path / "plain") as plain:
        assert index.bytes_by_part()["first_level"] == first_groups.groups_record(segment).bytes
        assert "first_level" not in plain.bytes_by_part()
        answers = [opened.search(vectors()[:20], 9, UNLIMITED) for opened in (index, plain)]
        assert np.array_equal(answers[0].ids, answers[1].ids)
        assert np.array_equal(answers[0].distances, answers[1].distances)
    with_groups, without = contents(path), contents(tmp_path / "plain")
    added = {name for name in with_groups if name.endswith("first_level")}
    assert len(added) == 1
    assert {name for name in without if without[name] != with_groups[name]} == {"manifest.json"}


def test_groups_of_older_files_are_read(grouped: tuple[Path, SegmentManifest], tmp_path: Path) -> None:
    path, segment = grouped
    groups = load_first_groups(path, segment)
    assert groups is not None
    rows = len(groups.quads) // int(groups.group_start[-1])
    before = groups._asdict()
    blocks = np.split(before.pop("quads"), rows * groups.group_start[1:-1])
    plain = [block.reshape(rows // 4, -1, 4).transpose(0, 2, 1).ravel() for block in blocks]
    differences = (np.concatenate(plain) ^ np.uint8(128)).view(np.int8)
    with aggtree.open(path) as index:
        answers = index.search(vectors()[:20], 9)
    file = f"{segment.directory}/first_level"

    def rewrite(arrays: dict[str, np.ndarray]) -> SegmentManifest:
        checksums = write_arrays(path / file, first_groups.KIND, arrays)
        others = [record for record in segment.files if record.path != file]
        written = replace(segment, files=(*others, FileRecord.of(file, checksums)))
        commit_manifest(path, IndexManifest(segments=(written,)))
        return written

    read = load_first_groups(path, rewrite(before | {"differences": differences}))
    assert read is not None and np.array_equal(read.quads, groups.quads)
    with aggtree.open(path) as index:
        assert np.array_equal(index.search(vectors()[:20], 9).ids, answers.ids)
    for wrong in (groups.group_start[::-1].copy(), 3 * groups.group_start, groups.group_start[:0]):
        rewrite(before | {"differences": differences, "group_start": wrong})
        with pytest.raises(IndexFormatError, match=r"first_level|group"):
            aggtree.open(path)


def test_damaged_groups_are_refused(grouped: tuple[Path, SegmentManifest]) -> None:
    path, segment = grouped
    groups = load_first_groups(path, segment)
    assert groups is not None
    nodes, dimension = segment.level_nodes[1], segment.dimension
    check_groups(groups, nodes, dimension)
    swapped = groups.numbers.copy()
    swapped[swapped >= 0] = 0
    late = groups.numbers.copy()
    gap = int(np.flatnonzero(late < 0)[0])
    late[[gap - 1, gap]] = late[[gap, gap - 1]]
    for wrong, message in (
        (groups._replace(centres=groups.centres[1:]), "group_start"),
        (groups._replace(steps=groups.steps[1:]), "steps"),
        (groups._replace(quads=groups.quads[1:]), "quads"),
        (groups._replace(numbers=swapped), "each of"),
        (groups._replace(numbers=late), "begin with"),
        (groups._replace(group_start=groups.group_start[::-1].copy()), "expected"),
    ):
        with pytest.raises(ValueError, match=message):
            check_groups(wrong, nodes, dimension)
    file = path / segment.directory / "first_level"
    file.write_bytes(file.read_bytes()[:-64])
    with pytest.raises(IndexFormatError, match="first_level"):
        aggtree.open(path)
    assert aggtree.build(vectors(), path, workers=0, repair=True, **WIDE).rows == segment.rows
    with aggtree.open(path) as index:
        assert index.rows == segment.rows
