"""Every source passes the same tests; every kind of bad file is one clear line."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers.source_files import (
    DIMENSION,
    FLAT,
    ROWS,
    bin_bytes,
    sample,
    small_file,
    write_hdf5,
    write_npy,
    write_parquet,
    write_source,
    write_zarr,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from aggtree.storage import byte_reader
from aggtree.storage.errors import SourceError
from aggtree.storage.sources.base import SUFFIX_MODULES, VectorSource, open_source, read_ground_truth
from aggtree.storage.sources.demo_data import demo_paths
from aggtree.storage.sources.formats.vecs import write_vecs

KINDS = (
    *FLAT,
    "npy >f4",
    "npy f8",
    "npy i2 fortran",
    "npy u1 fortran",
    "npy parts",
    "zarr",
    "zarr sharded",
    "zarr v2",
    "hdf5",
    "parquet",
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_format(kind, tmp_path):
    expected = sample()
    with open_source(write_source(kind, tmp_path)) as source:
        assert (source.rows, source.dimension, len(source)) == (ROWS, DIMENSION, ROWS)
        assert source.dtype in (np.uint8, np.int8, np.float32)
        for start, stop in ((0, ROWS), (0, 1), (94, 96), (95, 190), (99, 301), (ROWS - 1, ROWS), (7, 7)):
            block = source.read(start, stop)
            assert block.dtype == source.dtype
            assert block.flags.c_contiguous
            assert block.flags.owndata or block.base.flags.owndata
            np.testing.assert_array_equal(block, expected[start:stop])
        scattered = np.array([5, 999, 3, 1002, 5, 0, 500, 501])
        np.testing.assert_array_equal(source.take(scattered), expected[scattered])
        assert source.take([]).shape == (0, DIMENSION)
        with open_source(source.spec) as again:
            assert again.fingerprint() == source.fingerprint()
        for start, stop in ((-1, 5), (5, 4), (0, ROWS + 1)):
            with pytest.raises(SourceError, match="rows"):
                source.read(start, stop)
        for rows in ([ROWS], [-1], [0.5], [[1]]):
            with pytest.raises(SourceError, match="row"):
                source.take(rows)


def test_fingerprint_sees_content_and_not_names_or_formats(tmp_path):
    first, second, third = tmp_path / "a.bvecs", tmp_path / "b.u8bin", tmp_path / "c.bvecs"
    first.write_bytes(write_vecs(sample(), "bvecs"))
    second.write_bytes(bin_bytes(sample(), "u1"))
    changed = sample()
    changed[-1, -1] += 1
    third.write_bytes(write_vecs(changed, "bvecs"))
    prints = [open_source(path).fingerprint() for path in (first, second, third)]
    assert prints[0] == prints[1] != prints[2]


def test_take_splits_long_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("aggtree.storage.sources.base.TAKE_RUN_BYTES", 7 * DIMENSION)
    monkeypatch.setattr("aggtree.storage.sources.base.TAKE_GAP_BYTES", 3 * DIMENSION)
    source = open_source(write_source("bvecs", tmp_path))
    rows = np.random.default_rng(1).integers(0, ROWS, 300)
    np.testing.assert_array_equal(source.take(rows), sample()[rows])


def test_a_crop_of_a_billion_is_known_by_its_suffix(tmp_path):
    path = tmp_path / "base.1B.u8bin.crop_nb_1003"
    path.write_bytes(bin_bytes(sample(), "u1"))
    assert open_source(path).rows == ROWS


def test_parts_are_in_natural_order(tmp_path):
    for number in range(12):
        write_npy(tmp_path / f"part{number}.npy", np.full((2, 3), number, np.uint8))
    np.testing.assert_array_equal(open_source(tmp_path).read(0, 24)[:, 0], np.repeat(np.arange(12), 2))


def test_urls(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    data = write_vecs(sample(), "bvecs")
    fsspec.filesystem("memory").pipe("/bucket/x.bvecs", data)
    with open_source("memory://bucket/x.bvecs") as source:
        np.testing.assert_array_equal(source.read(10, 20), sample()[10:20])
        assert source.spec == "memory://bucket/x.bvecs"
    with pytest.raises(SourceError, match="no such object"):
        open_source("memory://bucket/y.bvecs")
    for suffix in ("hdf5", "parquet"):
        with pytest.raises(SourceError, match="read from local files only"):
            open_source(f"memory://bucket/x.{suffix}")
    (tmp_path / "x.bvecs").write_bytes(data)
    assert open_source(f"file://{tmp_path}/x.bvecs").rows == ROWS


def test_relative_specs_are_made_absolute(tmp_path, monkeypatch):
    write_source("bvecs", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert open_source("x.bvecs").spec == str(tmp_path / "x.bvecs")


def test_named_parts_of_files(tmp_path):
    write_hdf5(
        tmp_path / "x.hdf5", train=sample(), test=sample("f4")[:5], neighbors=np.arange(6).reshape(2, 3)
    )
    assert open_source(f"{tmp_path}/x.hdf5::test").rows == 5
    np.testing.assert_array_equal(read_ground_truth(tmp_path / "x.hdf5"), np.arange(6).reshape(2, 3))
    with pytest.raises(SourceError, match=r"no data set .nix..*test"):
        open_source(f"{tmp_path}/x.hdf5::nix")
    write_parquet(
        tmp_path / "x.parquet", {"a": list(sample()), "b": list(sample("f4")), "c": list(range(ROWS))}
    )
    assert open_source(f"{tmp_path}/x.parquet::a").dtype == np.uint8
    for spec in ("x.parquet", "x.parquet::c", "x.parquet::nix"):
        with pytest.raises(SourceError, match=r"choose with ::NAME among \['a', 'b'\]"):
            open_source(f"{tmp_path}/{spec}")
    write_zarr(tmp_path / "x.zarr/inside", sample())
    assert open_source(f"{tmp_path}/x.zarr/inside").rows == ROWS
    (tmp_path / "x.bvecs").write_bytes(write_vecs(sample(), "bvecs"))
    with pytest.raises(SourceError, match="no named parts"):
        open_source(f"{tmp_path}/x.bvecs::train")


@pytest.mark.parametrize("kind", ["ivecs", "ibin", "ibin with distances", "npy"])
def test_ground_truth_is_exact_beyond_float32(kind, tmp_path):
    ids = np.array([[2**31 - 1, 2**24 + 1, -1], [0, 1, 2]])
    path = tmp_path / f"x.{kind.split(maxsplit=1)[0]}"
    if kind == "ivecs":
        path.write_bytes(write_vecs(ids, "ivecs"))
    elif kind == "npy":
        write_npy(path, ids)
    else:
        path.write_bytes(bin_bytes(ids, "<i4") + (b"\0" * 24 if "distances" in kind else b""))
    np.testing.assert_array_equal(read_ground_truth(path), ids)
    assert read_ground_truth(path).dtype == np.int64


def test_ground_truth_must_be_integers(tmp_path):
    write_npy(tmp_path / "x.npy", sample("f4"))
    with pytest.raises(SourceError, match="must be integers"):
        read_ground_truth(tmp_path / "x.npy")
    with pytest.raises(SourceError, match="ground truth is read from"):
        read_ground_truth(tmp_path / "x.fvecs")


@pytest.mark.parametrize("suffix", sorted(SUFFIX_MODULES))
def test_missing_empty_directory_unreadable(suffix, tmp_path, monkeypatch):
    path = tmp_path / f"x.{suffix}"
    with pytest.raises(SourceError, match=r"x\.\w+: no "):
        open_source(path)
    path.write_bytes(b"")
    with pytest.raises(SourceError, match=r"x\.\w+: "):
        open_source(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(SourceError, match=r"x\.\w+: "):
        open_source(path)

    def refuse(*_args):
        raise PermissionError(13, "Permission denied")

    if suffix != "zarr":
        path.rmdir()
        path.write_bytes(b"something")
        monkeypatch.setattr(byte_reader.os, "open", refuse)
        with pytest.raises(SourceError, match=r"x\.\w+: cannot be opened: Permission denied"):
            open_source(path)


def test_a_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "x.bvecs")
    with pytest.raises(SourceError, match="is a pipe or a device"):
        open_source(tmp_path / "x.bvecs")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nix", "no such file"),
        ("x.txt", r"unknown suffix \.txt: expected \.fvecs .*\.parquet"),
        ("plain", "no suffix names its format"),
        ("x.bvecs.gz", "unpack it first"),
        ("folder", "a directory without .npy files"),
        ("a\0b", "not a path"),
        ("", "not a path"),
        ("demo:nix", "demo:base and demo:query"),
        ("synthetic:gist?rows=5", "unknown generated source 'gist'"),
        ("synthetic:sift", "rows=0, expected 1 or more"),
        ("synthetic:sift?rows=-5", "rows='-5' is no integer"),
        ("synthetic:sift?rows=99999999999999999999999", "no integer"),
        ("synthetic:sift?rows=9223372036854775807&first=1", "expected 1 or more"),
        ("synthetic:sift?rows=5&sed=1", "unknown setting 'sed'"),
    ],
)
def test_names_that_open_nothing(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in ("x.txt", "plain", "x.bvecs.gz"):
        Path(file).write_text("something")
    Path("folder").mkdir()
    with pytest.raises(SourceError, match=message) as caught:
        open_source(name)
    assert "\n" not in str(caught.value)


def with_bytes(data: bytes, offset: int, patch: bytes) -> bytes:
    return data[:offset] + patch + data[offset + len(patch) :]


RECORD = 4 + DIMENSION
VECS = write_vecs(sample(), "bvecs")
BIN = bin_bytes(sample(), "u1")


@pytest.mark.parametrize(
    ("suffix", "data", "message"),
    [
        (
            "bvecs",
            VECS[:-1],
            f"no integer multiple of {RECORD}-byte rows .* cut off behind byte {RECORD * (ROWS - 1)}",
        ),
        ("bvecs", VECS[:3], "ends at byte 3"),
        ("bvecs", with_bytes(VECS, 0, b"\0\0\0\0"), "dimension 0 in its header"),
        ("bvecs", with_bytes(VECS, 0, b"\xff\xff\xff\xff"), "dimension -1 in its header"),
        ("bvecs", with_bytes(VECS, 0, b"\xff\xff\xff\x7f"), "dimension 2147483647 in its header"),
        (
            "bvecs",
            with_bytes(VECS, 500 * RECORD, b"\7\0\0\0"),
            f"row 500 at byte {500 * RECORD} has dimension 7",
        ),
        ("bvecs", with_bytes(VECS, (ROWS - 1) * RECORD, b"\7"), f"row {ROWS - 1} at byte"),
        ("fvecs", VECS, "fvecs: "),
        (
            "u8bin",
            BIN[:-1],
            f"its header states {ROWS} rows of {DIMENSION} uint8, which take {len(BIN)} bytes, but it has",
        ),
        ("u8bin", BIN + b"x", "damaged or of another format"),
        ("u8bin", BIN[:7], "ends at byte 7"),
        ("u8bin", with_bytes(BIN, 4, b"\0\0\0\0"), "dimension 0"),
        ("u8bin", with_bytes(BIN, 0, b"\0\0\0\0"), "holds no rows"),
        (
            "u8bin",
            with_bytes(BIN, 0, b"\xff\xff\xff\xff\xff\xff\0\0"),
            "its header states 4294967295 rows of 65535",
        ),
        ("fbin", BIN, "its header states"),
        ("npy", b"\x93NUMPY\1\0\xff\xff{'", "header of 65535 bytes in a file of 12"),
        ("npy", b"PK\3\4 and so on, long enough", "does not start as a .npy file"),
        ("hdf5", b"something", "cannot be opened as HDF5"),
        ("parquet", b"something", "cannot be opened as parquet"),
    ],
)
def test_damaged_files(suffix, data, message, tmp_path):
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(data)
    with pytest.raises(SourceError, match=message) as caught:
        source = open_source(path)
        source.read(0, source.rows)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.arange(5.0), "1 dimensions"),
        (np.zeros((2, 3, 4)), "3 dimensions"),
        (np.zeros((0, 3)), "no rows"),
        (np.zeros((3, 0)), "dimension 0"),
        (np.zeros((3, 4), complex), "complex128"),
        (np.zeros((3, 4), bool), "bool"),
        (np.zeros((3, 4), [("a", "f4")]), "plain numbers"),
        (np.array([["a", "b"]]), "holds <U1"),
    ],
)
def test_arrays_that_are_no_vectors(array, message, tmp_path):
    write_npy(tmp_path / "x.npy", array)
    with pytest.raises(SourceError, match=message):
        open_source(tmp_path / "x.npy")


def test_no_pickle_is_loaded(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[{}, {}]], object), allow_pickle=True)
    with pytest.raises(SourceError):
        open_source(tmp_path / "x.npy")


def test_parts_must_agree(tmp_path):
    write_npy(tmp_path / "a.npy", sample())
    write_npy(tmp_path / "b.npy", sample()[:, :5])
    with pytest.raises(SourceError, match=r"b\.npy: rows of 5 uint8, but a\.npy has rows of 12 uint8"):
        open_source(tmp_path)


def test_missing_chunks_of_zarr(tmp_path):
    write_zarr(tmp_path / "x.zarr", sample(), chunks=(50, DIMENSION), shards=(200, DIMENSION))
    (tmp_path / "x.zarr" / "c" / "3" / "0").unlink()
    with pytest.raises(SourceError, match="1 of its 6 chunk files are missing"):
        open_source(tmp_path / "x.zarr")
    write_zarr(tmp_path / "y.zarr", sample(), chunks=(50, DIMENSION))
    chunk = tmp_path / "y.zarr" / "c" / "3" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-5])
    source = open_source(tmp_path / "y.zarr")
    with pytest.raises(SourceError, match="rows 150 to 200 cannot be read"):
        source.read(0, ROWS)


def test_rows_of_parquet_must_agree(tmp_path):
    lists = sample().tolist()
    lists[501] = lists[501][:3]
    write_parquet(tmp_path / "x.parquet", {"v": lists})
    source = open_source(tmp_path / "x.parquet")
    with pytest.raises(SourceError, match="row 501 has dimension 3"):
        source.read(400, 600)
    lists[501] = None
    write_parquet(tmp_path / "y.parquet", {"v": lists})
    with pytest.raises(SourceError, match="missing values in rows 500 to 600"):
        open_source(tmp_path / "y.parquet").read(400, 600)


@pytest.mark.parametrize(("suffix", "module"), [("hdf5", "h5py"), ("parquet", "pyarrow.parquet")])
def test_missing_extras_are_named(suffix, module, tmp_path, monkeypatch):
    (tmp_path / f"x.{suffix}").write_bytes(b"something")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SourceError, match=rf"pip install 'aggtree\[{suffix}\]'"):
        open_source(tmp_path / f"x.{suffix}")


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    path = Path(write_source("bvecs", tmp_path))
    source = open_source(path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(SourceError, match="ended at byte 1000 although"):
        source.read(0, ROWS)


def read_everything(path: Path) -> None:
    try:
        source: VectorSource = open_source(path)
        assert source.rows * source.dimension <= 8 * path.stat().st_size
        source.read(0, source.rows)
        source.take([0, source.rows - 1])
        source.fingerprint()
        source.close()
    except SourceError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("suffix", FLAT)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_random_bytes_raise_only_source_errors(suffix, data):
    valid = small_file(suffix)
    if data.draw(st.booleans()):
        content = data.draw(st.binary(max_size=300))
    else:
        offset = data.draw(st.integers(0, len(valid)))
        content = (
            valid[:offset] + data.draw(st.binary(max_size=8)) + valid[data.draw(st.integers(0, len(valid))) :]
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"x.{suffix}"
        path.write_bytes(content)
        read_everything(path)
        if suffix in ("ivecs", "ibin", "npy"):
            try:
                read_ground_truth(path)
            except SourceError as error:
                assert "\n" not in str(error)


def test_embedded_descriptors():
    base, query = demo_paths()
    assert base.stat().st_size + query.stat().st_size < 5_000_000
    for name, rows in (("demo:base", 33_000), ("demo:query", 500)):
        with open_source(name) as source:
            assert (source.spec, source.rows, source.dimension, source.dtype) == (name, rows, 128, np.uint8)
            norms = np.linalg.norm(source.read(0, rows).astype(np.float32), axis=1)
            assert abs(norms.mean() - 512) < 1


def test_reading_does_not_keep_the_file_in_memory(tmp_path):
    """A mapping would grow the process by the size of the file."""
    path = tmp_path / "x.u8bin"
    with path.open("wb") as file:
        file.write(np.array([1_000_000, 128], "<u4").tobytes())
        file.truncate(8 + 128_000_000)
    program = (
        "import sys, psutil\n"
        "from aggtree.storage.sources.base import open_source\n"
        "source = open_source(sys.argv[1])\n"
        "source.read(0, 1000)\n"
        "before = psutil.Process().memory_info().rss\n"
        "for start in range(0, source.rows, 10_000): source.read(start, start + 10_000)\n"
        "print(psutil.Process().memory_info().rss - before)\n"
    )
    grown = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, check=True, text=True
    )
    assert int(grown.stdout) < 20_000_000
