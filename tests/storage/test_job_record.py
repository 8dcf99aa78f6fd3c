"""What a build was started with, what it has done, and what is refused."""

import numpy as np
import pytest
from helpers.small_index import make_index

from aggtree.storage.errors import BuildMismatchError, IndexFormatError
from aggtree.storage.index.format import MANIFEST, build_name
from aggtree.storage.index.manifest import read_manifest
from aggtree.storage.work.job_record import JOB, build_id, finish_job, start_job, unfinished_jobs

PARAMETERS = {"words": (256, 256), "seed": 0, "tolerance": 1e-3}
SOURCE = {"rows": 10, "sample": "abc"}


def test_the_id_depends_on_everything_and_on_nothing_else():
    assert build_id(PARAMETERS, SOURCE) == build_id(dict(reversed(PARAMETERS.items())), SOURCE)
    assert len(build_id(PARAMETERS, SOURCE)) == 12
    assert build_id(PARAMETERS | {"seed": 1}, SOURCE) != build_id(PARAMETERS, SOURCE)
    assert build_id(PARAMETERS, SOURCE | {"rows": 11}) != build_id(PARAMETERS, SOURCE)


def test_the_same_command_finds_its_work(tmp_path):
    job = start_job(tmp_path, PARAMETERS, SOURCE)
    job.record_done("encode", 3, {"rows": 5, "crc32c": "00"})
    job.record_done("encode", 12, {"rows": 6})
    job.record_done("encode", 3, {"rows": 7})
    again = start_job(tmp_path, PARAMETERS, SOURCE)
    assert again == job
    assert again.done("encode") == {3: {"rows": 7}, 12: {"rows": 6}}
    assert again.done("sort") == {}
    assert unfinished_jobs(tmp_path) == [job]
    assert job.parameters["words"] == [256, 256]


def test_a_record_may_be_taken_back(tmp_path):
    job = start_job(tmp_path, PARAMETERS, SOURCE)
    for partition in range(3):
        job.record_done("encode", partition, {})
    job.forget("encode", 1)
    job.forget("encode", 1)
    assert list(job.done("encode")) == [0, 2]
    job.forget("encode")
    assert job.done("encode") == {}


@pytest.mark.parametrize("content", [b"", b"{}", b'{"partition": 1, "record": {}}'])
def test_a_damaged_record_is_not_done(tmp_path, content):
    job = start_job(tmp_path, PARAMETERS, SOURCE)
    job.record_done("encode", 1, {})
    job.record_done("encode", 2, {})
    (job.work_directory / "done" / "encode" / "1.json").write_bytes(content)
    assert list(job.done("encode")) == [2]


@pytest.mark.parametrize(
    ("parameters", "source", "expected"),
    [
        (
            {"seed": 1},
            {},
            "other parameters: seed 0 → 1; repeat the old command, or start over with `replace`",
        ),
        ({"seed": 1, "words": [3]}, {}, r"seed 0 → 1, words \[256, 256\] → \[3\]"),
        ({"extra": 5}, {}, "extra None → 5"),
        ({}, {"rows": 11}, "other input: rows 10 → 11"),
    ],
)
def test_other_parameters_are_refused_in_one_line(tmp_path, parameters, source, expected):
    start_job(tmp_path, PARAMETERS, SOURCE).record_done("encode", 0, {})
    with pytest.raises(BuildMismatchError, match=expected) as error:
        start_job(tmp_path, PARAMETERS | parameters, SOURCE | source)
    assert "\n" not in str(error.value)
    assert start_job(tmp_path, PARAMETERS, SOURCE).done("encode")


def test_starting_over_removes_the_old_work(tmp_path):
    old = start_job(tmp_path, PARAMETERS, SOURCE)
    old.build_directory.mkdir()
    new = start_job(tmp_path, PARAMETERS | {"seed": 1}, SOURCE, replace=True)
    assert sorted(tmp_path.iterdir()) == [new.work_directory]
    assert unfinished_jobs(tmp_path) == [new]


def test_work_without_a_record_is_not_a_build(tmp_path):
    (tmp_path / "work-000000000000").mkdir()
    job = start_job(tmp_path, PARAMETERS, SOURCE)
    assert sorted(tmp_path.iterdir()) == [job.work_directory]


def test_a_damaged_job_is_reported(tmp_path):
    job = start_job(tmp_path, PARAMETERS, SOURCE)
    (job.work_directory / JOB).write_bytes(b"x")
    with pytest.raises(IndexFormatError, match=JOB):
        start_job(tmp_path, PARAMETERS | {"seed": 1}, SOURCE)
    assert start_job(tmp_path, PARAMETERS, SOURCE) == job


def test_a_committed_index_is_not_replaced_unasked(tmp_path):
    manifest = make_index(tmp_path, name="old")
    with pytest.raises(BuildMismatchError, match="holds an index with other parameters: name old → new"):
        start_job(tmp_path, {"name": "new"}, {"rows": 500})
    start_job(tmp_path, {"name": "new"}, {"rows": 500}, replace=True)
    assert read_manifest(tmp_path) == manifest
    assert (tmp_path / build_name(manifest.first_segment.build)).is_dir()


def test_a_damaged_index_names_the_remedy(tmp_path):
    make_index(tmp_path, name="old")
    (tmp_path / MANIFEST).write_bytes(b"x")
    with pytest.raises(IndexFormatError, match="start over with `replace`"):
        start_job(tmp_path, {"name": "old"}, {"rows": 500})
    start_job(tmp_path, {"name": "old"}, {"rows": 500}, replace=True)


def test_finishing_leaves_the_committed_build_alone(tmp_path):
    manifest = make_index(tmp_path)
    for name in ("work-000000000000", "build-000000000000", "other"):
        (tmp_path / name).mkdir()
    finish_job(tmp_path)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == [build_name(manifest.first_segment.build), MANIFEST, "other"]


def test_numbers_of_numpy_are_refused_early(tmp_path):
    with pytest.raises(TypeError):
        start_job(tmp_path, {"seed": np.int64(3)}, SOURCE)
