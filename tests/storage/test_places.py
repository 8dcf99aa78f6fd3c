"""A place that an index names is opened unasked only if this user named it to a build, or listed it."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.failing_disk import FailingDisk
from helpers.small_index import make_index, make_sample

from aggtree.storage import atomic, places
from aggtree.storage.errors import SourceError
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.index.file_record import RemoteCodes
from aggtree.storage.index.manifest import IndexManifest, commit_manifest, read_manifest
from aggtree.storage.index.opened import vectors as index_vectors
from aggtree.storage.index.reader import open_index
from aggtree.storage.places import may_open, seal_of
from aggtree.storage.sources.base import open_source
from aggtree.storage.sources.joined import joined_spec
from aggtree.storage.verify.index import verify_index


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(places.VARIABLE, raising=False)
    return tmp_path / "home"


def test_a_seal_is_of_one_place_and_one_user(home, monkeypatch):
    seal = seal_of("/data/x.npy")
    assert may_open("/data/x.npy", seal)
    for place, other in (("/data/y.npy", seal), ("/data/x.npy", ""), ("/data/x.npy", seal[:-1] + "g")):
        assert not may_open(place, other)
    assert (home / "aggtree" / "key").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "another"))
    assert not may_open("/data/x.npy", seal)
    assert not (home / "another").exists()  # asking makes no key
    assert seal_of("/data/x.npy") != seal


def test_processes_that_start_at_once_agree_on_the_key():
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(seal_of, ["/x"] * 64))) == 1


@pytest.mark.parametrize("spoil", [b"", b"short", bytes(33)])
def test_a_key_that_is_none_seals_nothing(home, spoil):
    seal = seal_of("/x")
    (home / "aggtree" / "key").write_bytes(spoil)
    assert seal_of("/x") == "" and not may_open("/x", seal)


def test_a_key_that_others_can_read_seals_nothing(home):
    seal = seal_of("/x")
    (home / "aggtree" / "key").chmod(0o644)
    assert seal_of("/x") == "" and not may_open("/x", seal)


def test_without_a_home_nothing_is_sealed(monkeypatch):
    monkeypatch.setattr(atomic, "disk", FailingDisk(0))
    assert seal_of("/x") == ""
    monkeypatch.delenv("XDG_DATA_HOME")

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert seal_of("/x") == "" and not may_open("/x", "0" * 64)


def test_listed_places(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "out").symlink_to("/etc")
    monkeypatch.setenv(places.VARIABLE, f"s3://bucket/vectors,{tmp_path / 'link'}")
    allowed = [
        "s3://bucket/vectors/x.npy",
        str(tmp_path / "real" / "x.h5") + "::train",
        f"file://{tmp_path}/link/x.npy",
        joined_spec([f"{tmp_path}/real/a,b.npy", "unit:s3://bucket/vectors/y.npy"]),
        "synthetic:sift?rows=5",
        "demo:base",
    ]
    refused = [
        "s3://bucket/vectors2/x.npy",
        "s3://bucket/vectors/../other/x.npy",
        "s3://other/x.npy",
        "https://bucket/vectors/x.npy",
        f"{tmp_path}/real/../x.npy",
        f"{tmp_path}/real/out/passwd.npy",
        joined_spec([f"{tmp_path}/real/a.npy", "/etc/x.npy"]),
        "unit:/etc/x.npy",
    ]
    assert [place for place in allowed if not may_open(place, "")] == []
    assert [place for place in refused if may_open(place, "")] == []


def forged(index, **changes):
    """An index whose only segment names other places."""
    manifest = read_manifest(index)
    commit_manifest(index, IndexManifest(segments=(replace(manifest.first_segment, **changes),)))


def test_vectors_of_an_index_from_elsewhere_are_not_opened(tmp_path, monkeypatch):
    make_index(tmp_path / "i")
    np.save(tmp_path / "base.npy", np.zeros((500, 5), np.float32))
    place, opened = str(tmp_path / "base.npy"), []

    def watch(spec, *arguments):
        opened.append(spec)
        return open_source(spec, *arguments)

    monkeypatch.setattr(index_vectors, "open_source", watch)
    forged(tmp_path / "i", vectors=place)
    with open_index(tmp_path / "i") as index:
        for _ in range(2):
            with pytest.raises(SourceError, match="pass their location as `vectors`, or list") as error:
                index.search(np.zeros((1, 5)), 1, rerank=5)
            assert "\n" not in str(error.value) and place in str(error.value)
        # Small sets are compared by reconstructions then.
        assert index.search(np.zeros((1, 5)), 1, within=range(9)).ids.shape == (1, 1)
    assert opened == []
    monkeypatch.setenv(places.VARIABLE, str(tmp_path))
    with open_index(tmp_path / "i") as index, pytest.raises(SourceError, match="not the vectors"):
        index.search(np.zeros((1, 5)), 1, rerank=5)
    monkeypatch.delenv(places.VARIABLE)
    forged(tmp_path / "i", vectors=place, vectors_seal=seal_of(place))
    with open_index(tmp_path / "i") as index, pytest.raises(SourceError, match="not the vectors"):
        index.search(np.zeros((1, 5)), 1, rerank=5)
    assert opened == [place, place]


def test_codes_of_an_index_from_elsewhere_are_not_opened(tmp_path, monkeypatch):
    sample = make_sample(500)
    make_index(tmp_path / "i", sample)
    segment = read_manifest(tmp_path / "i").first_segment
    inside = [file for file in segment.files if "codes.zarr" in file.path]
    files = tuple(file for file in segment.files if file not in inside)
    (tmp_path / "i" / segment.directory / "codes.zarr").rename(tmp_path / "codes")
    url = f"file://{tmp_path}/codes"
    inside = tuple(replace(file, path=file.path.partition("codes.zarr/")[2]) for file in inside)
    monkeypatch.setattr(CodeStore, "open", lambda _: pytest.fail("opened"))
    forged(tmp_path / "i", codes=RemoteCodes(location=url, files=inside), files=files)
    (damage,) = verify_index(tmp_path / "i")
    assert places.VARIABLE in str(damage)
    with open_index(tmp_path / "i") as index, pytest.raises(SourceError, match="did not name to a build"):
        index.reconstruct([1, 2])
    assert os.environ.get(places.VARIABLE) is None
