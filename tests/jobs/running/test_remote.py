"""Vectors and codes in an object store: an S3 server of moto's, started here."""

import io
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.places import program
from helpers.small_builds import ROWS, SMALL, SMALL_ARGUMENTS, contents, vectors

import aggtree
from aggtree.jobs.build import build, continue_build
from aggtree.jobs.cli.main import main
from aggtree.jobs.running.job_run import RunOptions
from aggtree.jobs.running.streams import as_source
from aggtree.jobs.running.tasks import is_final
from aggtree.jobs.stages.code_location import checked_place
from aggtree.storage.errors import BuildMismatchError, DiskError, SourceError, UnreachableError
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.index.manifest import read_manifest
from aggtree.storage.remote_files import explained_remote
from aggtree.storage.verify.index import verify_index

pytest.importorskip("s3fs")
pytest.importorskip("moto.server")

BUCKET = "vectors"
SOURCE = f"s3://{BUCKET}/base.npy"
REFUSED = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """The environment of a process that uses the server, and this process in it."""
    command = program("helpers.services.s3_server")
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    environment = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{process.stdout.readline().strip()}",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        files = s3()
        files.mkdir(BUCKET)
        data = io.BytesIO()
        np.save(data, vectors())
        files.pipe_file(f"{BUCKET}/base.npy", data.getvalue())
        yield environment
    process.stdin.close()
    process.stdout.close()
    process.wait()


def s3() -> Any:
    import s3fs

    return s3fs.S3FileSystem()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index as it is built from memory, with local codes."""
    index = tmp_path_factory.mktemp("reference") / "index"
    build(vectors(), index, workers=0, **SMALL)
    return index


def same_tree(index: Path, reference: Path) -> None:
    """All files are those of the reference, but for the manifest, and for the codes, which are elsewhere."""
    expected = {
        name: digest
        for name, digest in contents(reference).items()
        if "codes.zarr" not in name and name != "manifest.json"
    }
    found = contents(index)
    del found["manifest.json"]
    assert found == expected


def run_command(
    stage: str, number: signal.Signals, *arguments: object, environment: dict[str, str]
) -> tuple[str, int]:
    """Output and exit code of the command line, with a cluster of its own, stopped in a stage by a signal."""
    answer = subprocess.run(
        program("helpers.services.own_cluster", stage, int(number), *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | environment,
        check=False,
    )
    return answer.stdout, answer.returncode


def test_codes_by_url_in_this_process(server: dict[str, str], reference: Path, tmp_path: Path) -> None:
    index, codes = tmp_path / "index", f"s3://{BUCKET}/here.zarr"
    build(SOURCE, index, workers=2, codes=codes, **SMALL)
    same_tree(index, reference)
    told: list[tuple[int, int]] = []
    assert verify_index(index, lambda *counts: told.append(counts), deep=True) == []
    assert told[-1][0] == told[-1][1]
    assert build(SOURCE, index, workers=2, **SMALL).already_built
    with pytest.raises(BuildMismatchError, match=r"with its codes at s3://vectors/here\.zarr"):
        build(SOURCE, index, codes=f"s3://{BUCKET}/there.zarr", **SMALL)
    with pytest.raises(BuildMismatchError, match="holds the codes of build"):
        build(SOURCE, tmp_path / "other", workers=0, codes=codes, **SMALL | {"bucket": 9})

    # Anyone reads them with plain zarr.
    import zarr

    local = next(reference.glob("build-*")) / "codes.zarr"
    array = zarr.open(codes, mode="r")
    assert array.shape == (ROWS, 3) and array.shards == (700, 3)
    np.testing.assert_array_equal(array[:], CodeStore.open(local).read(0, ROWS))

    # What is damaged is found and made again; the rest stays.
    files, damaged = s3(), f"{BUCKET}/here.zarr/c/2/0"
    good = files.cat_file(damaged)
    files.pipe_file(damaged, good[:-1] + bytes([good[-1] ^ 1]))
    files.rm_file(f"{BUCKET}/here.zarr/c/3/0")
    found = [str(damage) for damage in verify_index(index)]
    assert found == [
        f"{codes}/c/2/0: block 0: checksum does not match",
        f"{codes}/c/3/0: no such object: check the URL",
    ]
    build(SOURCE, index, workers=0, repair=True, **SMALL)
    assert verify_index(index) == []
    assert files.cat_file(damaged) == good
    files.pipe_file(f"{BUCKET}/here.zarr/zarr.json", b"{}")
    build(SOURCE, index, workers=0, repair=True, **SMALL)
    assert verify_index(index) == []

    # Queries never go there.
    files.rm(f"{BUCKET}/here.zarr", recursive=True)
    with aggtree.open(index) as opened:
        assert len(opened) == ROWS
        assert opened.search(vectors()[:1], 1)[0].shape == (1, 1)
        assert opened.bytes_by_part()["codes.zarr"] == 0


def test_codes_by_url_on_a_cluster_killed_and_resumed(
    server: dict[str, str], reference: Path, tmp_path: Path
) -> None:
    index, codes = tmp_path / "index", f"s3://{BUCKET}/cluster.zarr"
    command = ("build", SOURCE, index, "--codes", codes, "--workers", "2", *SMALL_ARGUMENTS)
    output, code = run_command("encode", signal.SIGKILL, *command, environment=server)
    assert code == -signal.SIGKILL, output
    assert not (index / "manifest.json").exists()
    # A shard the record speaks of vanished: it is written again.
    done = sorted(int(path.stem) for path in index.glob("work-*/done/encode/*.json"))
    s3().rm_file(f"{BUCKET}/cluster.zarr/c/{done[0]}/0")
    result = build(SOURCE, index, workers=0, **SMALL)  # the location of the codes is recorded
    assert result.rows == ROWS
    same_tree(index, reference)
    segment = read_manifest(index).first_segment
    assert segment.codes is not None and segment.codes.location == codes
    assert verify_index(index) == []


def test_stages_one_by_one_and_codes_that_were_moved(
    server: dict[str, str], reference: Path, tmp_path: Path
) -> None:
    index, first, second = tmp_path / "index", f"s3://{BUCKET}/first.zarr", f"s3://{BUCKET}/second.zarr"
    source = as_source(SOURCE)
    build(source, index, workers=0, only_train=True, **SMALL)
    continue_build(index, "encode", RunOptions(workers=0, codes=first), source)
    with pytest.raises(DiskError, match=r"second\.zarr/zarr\.json: no such object"):
        continue_build(index, "commit", RunOptions(workers=0, codes=second))
    files = s3()
    files.copy(f"{BUCKET}/first.zarr", f"{BUCKET}/second.zarr", recursive=True)
    files.rm_file(f"{BUCKET}/second.zarr/c/4/0")
    with pytest.raises(BuildMismatchError, match=r"shard 4 was written to .*first\.zarr and is not at"):
        continue_build(index, "commit", RunOptions(workers=0, codes=second))
    files.copy(f"{BUCKET}/first.zarr/c/4/0", f"{BUCKET}/second.zarr/c/4/0")
    files.rm(f"{BUCKET}/first.zarr", recursive=True)
    continue_build(index, "commit", RunOptions(workers=0, codes=second))
    same_tree(index, reference)
    segment = read_manifest(index).first_segment
    assert segment.codes is not None and segment.codes.location == second


@pytest.mark.parametrize(
    ("source", "codes", "changes", "words"),
    [
        (SOURCE, "s3://nobody/x.zarr", {}, "s3://nobody/x.zarr/zarr.json: no such bucket"),
        ("s3://nobody/base.npy", "", {}, "s3://nobody/base.npy: no such bucket"),
        (SOURCE, "", {"AWS_ENDPOINT_URL": REFUSED}, f"{SOURCE}: cannot be reached"),
        ("base.npy", "s3://vectors/x.zarr", {"AWS_ENDPOINT_URL": REFUSED}, "zarr.json: cannot be reached"),
        (SOURCE, "", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, f"{SOURCE}: no credentials"),
        ("base.npy", "/a/path", {}, "expected a URL that can be written"),
    ],
    ids=["codes bucket", "source bucket", "source refused", "codes refused", "no credentials", "a path"],
)
def test_what_cannot_work_is_one_line(
    server: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    source: str,
    codes: str,
    changes: dict[str, str],
    words: str,
) -> None:
    np.save(tmp_path / "base.npy", vectors())
    monkeypatch.chdir(tmp_path)
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    type(s3()).clear_instance_cache()  # or fsspec would go on with a connection that works
    place = ["--codes", codes] if codes else []
    with pytest.raises(SystemExit) as left:
        main(["build", source, "index", *place, "--workers", "0", *SMALL_ARGUMENTS])
    type(s3()).clear_instance_cache()
    output = capsys.readouterr().err
    assert left.value.code == 2, output
    assert words in output and len(output.splitlines()) == 1, output


def test_what_may_pass_by_itself_is_tried_again() -> None:
    with pytest.raises(UnreachableError, match="x: cannot be reached") as passing, explained_remote("x"):
        raise RuntimeError("the server is restarting")
    assert not is_final(passing.value)
    expired, refused = PermissionError("The provided token has expired."), OSError(22, "Bad Request")
    with pytest.raises(DiskError, match=r"credentials have expired .*: renew them"), explained_remote("x"):
        raise expired
    denied, missing = PermissionError("denied"), FileNotFoundError("x")
    for error in (expired, refused, denied, missing, ValueError("Protocol not known: x")):
        with pytest.raises(SourceError) as final, explained_remote("x", SourceError):
            raise error
        assert is_final(final.value)


def test_the_place_of_codes_is_a_url_that_can_be_written() -> None:
    assert checked_place(None) is None
    assert checked_place("s3://bucket/x.zarr/") == "s3://bucket/x.zarr"
    for wrong in ("", "/a/path", "https://host/x.zarr"):
        with pytest.raises(ValueError, match="such as s3://"):
            checked_place(wrong)


def test_codes_on_another_disk(reference: Path, tmp_path: Path) -> None:
    index, place = tmp_path / "index", tmp_path / "elsewhere" / "codes.zarr"
    build(vectors(), index, workers=0, codes=f"file://{place}", **SMALL)
    same_tree(index, reference)
    assert verify_index(index) == []
    shutil.rmtree(place)
    assert [damage.file for damage in verify_index(index)] == [f"file://{place}/zarr.json"]
