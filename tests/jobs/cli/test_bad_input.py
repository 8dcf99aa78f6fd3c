"""Every format of vectors, damaged in every way: the command reports it in one line and exits with 2."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.source_files import sample, write_hdf5, write_npy, write_parquet, write_source, write_zarr

from aggtree.jobs.cli.main import main
from aggtree.jobs.stages.pipeline import Stages
from aggtree.storage import byte_reader

FORMATS = (
    "fvecs",
    "bvecs",
    "ivecs",
    "fbin",
    "u8bin",
    "i8bin",
    "ibin",
    "npy",
    "npy parts",
    "zarr",
    "hdf5",
    "parquet",
)
FLOATS = ("fvecs", "fbin", "npy", "npy parts", "zarr", "hdf5", "parquet")
TYPED = ("npy", "npy parts", "zarr", "hdf5", "parquet")
OPTIONS = ("--words", "4x2", "--train-rows", "500", "--shard-rows", "300", "--workers", "0")


def file_of(kind: str, source: Path) -> Path:
    """The file that holds rows of a source that is a directory."""
    return {"npy parts": source / "part-3.npy", "zarr": source / "c" / "3" / "0"}.get(kind, source)


def header_of(kind: str, source: Path) -> Path:
    return {"npy parts": source / "part-0.npy", "zarr": source / "zarr.json"}.get(kind, source)


def write_array(kind: str, folder: Path, array: np.ndarray) -> Path:
    """Write an array in one of the formats that describe their content."""
    if kind == "npy parts":
        (folder / "parts").mkdir()
        write_npy(folder / "parts" / "part-0.npy", array)
        return folder / "parts"
    path = folder / f"x.{kind}"
    if kind == "npy":
        write_npy(path, array)
    elif kind == "zarr":
        write_zarr(path, array, chunks=(100, array.shape[1]))
    elif kind == "hdf5":
        write_hdf5(path, train=array)
    else:
        write_parquet(path, {"vector": list(array)})
    return path


def truncated(kind: str, folder: Path) -> Path:
    source = Path(write_source(kind, folder))
    file = file_of(kind, source)
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3 + 1])
    return source


def empty(kind: str, folder: Path) -> Path:
    source = Path(write_source(kind, folder))
    header_of(kind, source).write_bytes(b"")
    return source


def wrong_header(kind: str, folder: Path) -> Path:
    source = Path(write_source(kind, folder))
    header = header_of(kind, source)
    header.write_bytes(b"\x07wrong\xff" + header.read_bytes()[7:])
    if kind == "parquet":  # its header is at the end
        header.write_bytes(header.read_bytes()[:-8] + b"\xff\xff\xff\x7fPAR1")
    return source


def huge_dimension(kind: str, folder: Path) -> Path:
    """A header that claims rows no memory could hold."""
    source = Path(write_source(kind, folder))
    if kind.endswith("vecs"):
        source.write_bytes(b"\xff\xff\xff\x7f" + source.read_bytes()[4:])
    elif kind.endswith("bin"):
        source.write_bytes(b"\xff\xff\xff\x7f\xff\xff\xff\x7f" + source.read_bytes()[8:])
    elif kind in ("npy", "npy parts", "zarr"):
        header = header_of(kind, source)
        text = header.read_bytes()
        digits = b"12" if kind == "zarr" else b", 12)"
        huge = digits.replace(b"12", b"99999999999")
        changed = text.replace(digits, huge)
        header.write_bytes(changed if kind == "zarr" else changed.replace(b" " * 9 + b"\n", b"\n"))
    else:
        source.unlink()
        array = np.zeros((2, 100_000), np.uint8)
        return write_array(kind, folder, array)
    return source


def not_there(kind: str, folder: Path) -> Path:
    source = Path(write_source(kind, folder))
    if source.is_dir():
        shutil.rmtree(source)
    else:
        source.unlink()
    return source


def a_directory(kind: str, folder: Path) -> Path:
    source = not_there(kind, folder)
    source.mkdir()
    return source


def nan_inside(kind: str, folder: Path) -> Path:
    return _with_value(kind, folder, np.nan)


def infinite_inside(kind: str, folder: Path) -> Path:
    return _with_value(kind, folder, -np.inf)


def _with_value(kind: str, folder: Path, value: float) -> Path:
    array = sample("f4")
    array[700, 3] = value
    if kind == "fvecs":
        path = folder / "x.fvecs"
        rows = np.hstack([np.full((len(array), 1), array.shape[1], "<i4").view("<f4"), array])
        path.write_bytes(rows.tobytes())
        return path
    if kind == "fbin":
        path = folder / "x.fbin"
        path.write_bytes(np.array(array.shape, "<u4").tobytes() + array.tobytes())
        return path
    return write_array(kind, folder, array)


def wrong_dtype(kind: str, folder: Path) -> Path:
    if kind == "parquet":
        write_parquet(folder / "x.parquet", {"vector": [["a", "b"], ["c", "d"]]})
        return folder / "x.parquet"
    return write_array(kind, folder, np.ones((200, 4), np.complex128))


CASES = [
    *((kind, spoil) for spoil in (truncated, empty, wrong_header, huge_dimension) for kind in FORMATS),
    *((kind, spoil) for spoil in (not_there, a_directory) for kind in FORMATS),
    *((kind, spoil) for spoil in (nan_inside, infinite_inside) for kind in FLOATS),
    *((kind, wrong_dtype) for kind in TYPED),
]


def build(source: Path, index: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and message of a build that must fail."""
    with pytest.raises(SystemExit) as left:
        main(["build", str(source), str(index), *OPTIONS])
    return int(str(left.value.code)), capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(("kind", "spoil"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_spoiled_input_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, spoil
) -> None:
    source = spoil(kind, tmp_path)
    code, message = build(source, tmp_path / "index", capsys)
    assert code == 2, message
    assert message.startswith("error: ")
    assert str(source) in message
    if spoil in (nan_inside, infinite_inside):
        assert "row 700" in message and "skip_invalid" in message
    assert not (tmp_path / "index" / "manifest.json").exists()


@pytest.mark.parametrize("kind", FORMATS)
def test_unreadable_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    source = Path(write_source(kind, tmp_path))
    if os.geteuid() != 0:
        header_of(kind, source).chmod(0)
    elif kind == "zarr":
        pytest.skip("root reads every file")
    else:

        def refuse(*_: object) -> int:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(byte_reader.os, "open", refuse)
    code, message = build(source, tmp_path / "index", capsys)
    assert code == 2 and str(source) in message and "ermission denied" in message


# HDF5 keeps small files in memory: the change is not seen, and the index is that of the old rows.
@pytest.mark.parametrize("how", ["shorter", "longer", "other rows"])
@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "hdf5"])
def test_input_that_changes_while_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str, how: str
) -> None:
    if (kind, how) == ("parquet", "longer"):
        pytest.skip("what comes behind the footer that was read is no part of the rows")
    source = Path(write_source(kind, tmp_path))
    file = file_of(kind, source)
    plain = Stages.train

    def change(stages: Stages) -> None:
        plain(stages)
        middle = file.stat().st_size // 2
        if how == "shorter":
            os.truncate(file, middle)
        elif how == "longer":
            with file.open("ab") as opened:
                opened.write(file.read_bytes()[-middle // 4 * 4 :])
        else:
            with file.open("r+b") as opened:  # in place: whoever has the file open sees it
                opened.seek(middle - 20)
                opened.write(bytes(40))

    monkeypatch.setattr(Stages, "train", change)
    code, message = build(source, tmp_path / "index", capsys)
    assert code == 2, message
    assert str(source) in message
    assert not (tmp_path / "index" / "manifest.json").exists()
