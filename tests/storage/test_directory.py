"""A directory that belongs to others is not taken for an index, and stays as it is."""

import shutil

import pytest
from helpers.small_index import make_index

from aggtree.storage.errors import BuildMismatchError, DiskError, IndexFormatError
from aggtree.storage.index.manifest import read_manifest
from aggtree.storage.work.directory import refuse_foreign
from aggtree.storage.work.job_record import start_job
from aggtree.storage.work.lock import BuildLock


def fill(directory, *names):
    directory.mkdir()
    for name in names:
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")


@pytest.mark.parametrize(
    "names",
    [
        ["notes.txt"],
        ["build-output/main.o"],
        ["work-2024/plan.md"],
        ["manifest.json"],
        [".hidden", "lock", "photo.png"],
    ],
)
def test_a_folder_of_others_is_refused(tmp_path, names):
    fill(tmp_path / "i", *names)
    with pytest.raises(BuildMismatchError, match="belongs to no index; name a new or empty") as error:
        refuse_foreign(tmp_path / "i")
    assert str(error.value).startswith(f"{tmp_path / 'i'}: holds {names[-1].partition('/')[0]}, which")


@pytest.mark.parametrize(
    "names", [[], [".DS_Store", ".nfs0001"], ["lost+found/x"], ["lock"], ["report.json", "tuning.json"]]
)
def test_what_a_system_or_a_killed_build_leaves_is_no_obstacle(tmp_path, names):
    fill(tmp_path / "i", *names)
    refuse_foreign(tmp_path / "i")


def test_an_index_stays_one_with_files_of_others_beside_it(tmp_path):
    make_index(tmp_path / "i")
    (tmp_path / "i" / "README").write_text("mine")
    refuse_foreign(tmp_path / "i")
    for path in (tmp_path / "i").glob("build-*"):
        shutil.rmtree(path)
    refuse_foreign(tmp_path / "i")  # what is left is a manifest of ours
    refuse_foreign(tmp_path / "missing")


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "i").write_text("x")
    with pytest.raises(DiskError, match="Not a directory"):
        refuse_foreign(tmp_path / "i")


def test_directories_with_similar_names_survive_a_build(tmp_path):
    """Whatever a user keeps in an index, commits and new builds remove only what has the id of a build."""
    make_index(tmp_path / "i")
    kept = [tmp_path / "i" / name / "mine" for name in ("build-output", "work-2024", "build-0123")]
    for path in kept:
        path.parent.mkdir()
        path.write_text("x")
    make_index(tmp_path / "i", name="another")
    assert all(path.read_text() == "x" for path in kept)


def test_a_missing_index_is_told_from_an_unfinished_one(tmp_path):
    reasons = {
        "missing": "no such directory",
        "folder": "a directory without manifest.json; name that of an index, or build one",
        "file": "a file, not a directory",
        "started": "the build is not finished, run it again",
    }
    fill(tmp_path / "folder", "notes.txt")
    (tmp_path / "file").write_text("x")
    with BuildLock(tmp_path / "started"):
        start_job(tmp_path / "started", {"name": "x"}, {"rows": 1})
    for name, reason in reasons.items():
        with pytest.raises(IndexFormatError) as error:
            read_manifest(tmp_path / name)
        assert str(error.value) == f"{tmp_path / name}: no index here ({reason})"
