"""Own ids are returned everywhere; invalid ids are refused before anything is built."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.small_builds import ROWS, SMALL, SMALL_ARGUMENTS, contents, make_ids, vectors

import aggtree
from aggtree.jobs.build import continue_build
from aggtree.jobs.cli.main import cli
from aggtree.jobs.running.job_run import RunOptions
from aggtree.storage.errors import BuildMismatchError, IndexFormatError, JobError, SourceError
from aggtree.storage.index import own_ids
from aggtree.storage.sources import ids as id_source
from aggtree.storage.sources.base import read_ground_truth
from aggtree.storage.sources.ids import open_ids
from aggtree.storage.verify.index import verify_index


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors, ids and queries as files, an index with own ids and one without."""
    place = tmp_path_factory.mktemp("own")
    np.save(place / "base.npy", vectors())
    np.save(place / "query.npy", vectors(20, seed=1))
    np.save(place / "ids.npy", make_ids())
    aggtree.build(place / "base.npy", place / "own", ids=place / "ids.npy", workers=0, **SMALL)
    aggtree.build(place / "base.npy", place / "rows", workers=0, **SMALL)
    return place


def run(*arguments: object) -> str:
    answer = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.output


def write(path: Path, ids: np.ndarray) -> str:
    """Write ids in the format of the name."""
    match path.suffix:
        case ".npy":
            np.save(path, ids[:, None] if "column" in path.name else ids)
        case ".i64":
            path.write_bytes(ids.astype("<i8").tobytes())
        case ".hdf5":
            import h5py

            with h5py.File(path, "w") as file:
                file["mine"] = ids
            return f"{path}::mine"
        case ".parquet":
            import pyarrow as pa
            import pyarrow.parquet

            pa.parquet.write_table(pa.table({"id": ids}), path, row_group_size=700)
    return str(path)


@pytest.mark.parametrize("name", ["a.npy", "column.npy", "a.i64", "a.hdf5", "a.parquet"])
def test_every_format_gives_the_same_ids(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_source, "BLOCK_ROWS", 1000)
    ids = make_ids()
    opened = open_ids(write(tmp_path / name, ids))
    assert opened.rows == ROWS
    np.testing.assert_array_equal(np.concatenate([block for _, block in opened.blocks()]), ids)
    assert opened.fingerprint() == open_ids(ids).fingerprint()
    rows = np.array([[0, ROWS - 1], [1700, -1]])
    np.testing.assert_array_equal(opened.take(rows), [[ids[0], ids[-1]], [ids[1700], -1]])
    opened.close()


def test_search_returns_own_ids(place: Path) -> None:
    queries, ids = vectors(20, seed=1), make_ids()
    with aggtree.open(place / "own") as own, aggtree.open(place / "rows") as rows:
        for options in ({}, {"rerank": 50}, {"threads": 2}):
            expected = rows.search(queries, 10, **options)
            answer = own.search(queries, 10, **options)
            np.testing.assert_array_equal(answer.ids, ids[expected.ids])
            np.testing.assert_array_equal(answer.distances, expected.distances)
        few = own.search(queries, ROWS + 5, aggtree.SearchParams.unlimited())
        assert (few.ids[:, -5:] == -1).all() and (few.ids[:, :-5] != -1).all()
        assert own.bytes_by_part()["own_ids"] == 8 * ROWS
        # Rows with a mean need format 5, with own ids and without.
        assert own.manifest.to_json()["version"] == 5
        assert rows.manifest.to_json()["version"] == 5
    tree = {name: digest for name, digest in contents(place / "own").items() if "/tree/" in name}
    other = {name: digest for name, digest in contents(place / "rows").items() if "/tree/" in name}
    assert list(tree.values()) == list(other.values())


def test_the_command_line_speaks_of_own_ids(place: Path, tmp_path: Path) -> None:
    truth, out = tmp_path / "truth.npy", tmp_path / "out.npy"
    run("exact", place / "base.npy", place / "query.npy", "-k", 5, "--ids", place / "ids.npy", "--out", truth)
    run(
        "build",
        place / "base.npy",
        tmp_path / "i",
        "--ids",
        place / "ids.npy",
        "--workers",
        0,
        *SMALL_ARGUMENTS,
    )
    text = run(
        *("search", tmp_path / "i", place / "query.npy", "-k", 5, "--limits", 0, "--rerank", ROWS),
        *("--ground-truth", truth, "--out", out),
    )
    assert "R@1 1.0000" in text
    np.testing.assert_array_equal(np.load(out), read_ground_truth(truth))
    assert "the user's own" in run("info", tmp_path / "i")
    assert "no damage found" in run("verify", tmp_path / "i")
    assert contents(tmp_path / "i") == contents(place / "own")


@pytest.mark.parametrize("rising", [True, False])
@pytest.mark.parametrize("most", [100, ROWS])
def test_equal_ids_are_found_out_of_core(
    rising: bool, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_ids, "LEAST_PASS", most)
    monkeypatch.setattr(id_source, "BLOCK_ROWS", 700)
    ids = np.sort(make_ids()) if rising else make_ids()

    def copy(ids: np.ndarray) -> None:
        source = open_ids(ids)
        checksum = str(source.fingerprint()["ids_crc32c"])
        own_ids.write_own_ids(tmp_path, source, ROWS, checksum=checksum, room=0)

    copy(ids)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "own_ids", "<i8"), ids)
    ids[2000] = ids[3]
    with pytest.raises(SourceError, match=f"rows 3 and 2000 have the same id {ids[3]}"):
        copy(ids)
    ids[2000] = -1
    with pytest.raises(SourceError, match="the id of row 2000 is -1"):
        copy(ids)
    with pytest.raises(SourceError, match="was changed while it was copied"):
        own_ids.write_own_ids(tmp_path, open_ids(make_ids()), ROWS, checksum="0", room=0)


def test_bad_ids_are_told_before_the_build(tmp_path: Path) -> None:
    cases = {
        "ids for 3,100 vectors": make_ids(50),
        "holds int32": make_ids().astype(np.int32),
        r"holds int64 \(1550, 2\)": make_ids().reshape(-1, 2),
    }
    for message, ids in cases.items():
        with pytest.raises(SourceError, match=message):
            aggtree.build(vectors(), tmp_path / "i", ids=ids, workers=0, **SMALL)
        np.save(tmp_path / "ids.npy", ids)
        with pytest.raises(SourceError, match=message):
            aggtree.build(vectors(), tmp_path / "i", ids=tmp_path / "ids.npy", workers=0, **SMALL)
    (tmp_path / "ids.i64").write_bytes(b"123456789")
    with pytest.raises(SourceError, match="copy it again"):
        open_ids(tmp_path / "ids.i64")
    for name in ("ids.bvecs", "ids.npy::x", "nothing.npy"):
        with pytest.raises(SourceError, match=r"ids are read from|no such file"):
            open_ids(tmp_path / name)
    with pytest.raises(SourceError, match=r"no column 'x' of int64, choose with ::NAME among \['id'\]"):
        open_ids(write(tmp_path / "a.parquet", make_ids()) + "::x")
    with pytest.raises(SourceError, match="mine holds float64"):
        open_ids(write(tmp_path / "a.hdf5", make_ids().astype(float)))


def test_other_ids_do_not_continue_a_build(place: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildMismatchError, match="ids_crc32c"):
        aggtree.build(place / "base.npy", place / "own", ids=make_ids(seed=1), workers=0, **SMALL)
    with pytest.raises(BuildMismatchError, match="ids"):
        aggtree.build(place / "base.npy", place / "own", workers=0, **SMALL)
    assert aggtree.build(
        place / "base.npy", place / "own", ids=place / "ids.npy", workers=0, **SMALL
    ).already_built


def test_stages_run_apart_keep_the_ids(place: Path, tmp_path: Path) -> None:
    index, base = tmp_path / "i", place / "base.npy"
    run("train", base, index, "--ids", place / "ids.npy", "--workers", 0, *SMALL_ARGUMENTS)
    run("encode", base, index, "--workers", 0)
    run("commit", index, "--workers", 0)
    assert contents(index) == contents(place / "own")


def test_damage_is_found_and_repaired(place: Path, tmp_path: Path) -> None:
    index = tmp_path / "i"
    build = {"ids": place / "ids.npy", "workers": 0, **SMALL}
    aggtree.build(place / "base.npy", index, **build)
    path = next(index.glob("build-*/own_ids"))
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    (damage,) = verify_index(index)
    assert damage.file.endswith("own_ids") and "checksum" in damage.what
    with pytest.raises(JobError, match="with `repair` and `ids`"):
        continue_build(index, "commit", RunOptions(workers=0))
    aggtree.build(place / "base.npy", index, repair=True, **build)
    assert contents(index) == contents(place / "own")
    (next(index.glob("build-*/tree/labels"))).write_bytes(b"")
    continue_build(index, "commit", RunOptions(workers=0))
    assert contents(index) == contents(place / "own")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(IndexFormatError, match="own_ids"):
        aggtree.open(index)
