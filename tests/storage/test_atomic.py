"""A file is there completely or not at all, whatever operation fails."""

import ast
import errno
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from helpers.failing_disk import FailingDisk
from helpers.places import ROOT
from helpers.small_index import make_index, make_sample
from hypothesis import given
from hypothesis import strategies as st

from aggtree.storage import atomic, checksums
from aggtree.storage.atomic import (
    make_directory,
    remove_temporaries,
    remove_tree,
    replace_file,
    write_bytes,
    write_json,
)
from aggtree.storage.checksums import BlockChecksums, block_checksums, crc32c, from_hex, to_hex
from aggtree.storage.errors import AggtreeError, DiskError, IndexFormatError
from aggtree.storage.index.reader import open_index
from aggtree.storage.sealed_json import read_sealed, seal, unseal, write_sealed
from aggtree.storage.verify.index import verify_index


@pytest.fixture
def failing(monkeypatch):
    """Put a failing disk in place and return it."""

    def install(*args, **kwargs):
        disk = FailingDisk(*args, **kwargs)
        monkeypatch.setattr(atomic, "disk", disk)
        return disk

    return install


def test_the_order_is_write_sync_rename_sync(tmp_path, failing):
    disk = failing()
    write_bytes(tmp_path / "f", b"x")
    assert disk.operations == ["create", "write", "sync", "rename", "sync"]


@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failing_operation_leaves_the_old_content(tmp_path, failing, old, at, code):
    path = tmp_path / "f"
    if old:
        path.write_bytes(old)
    disk = failing(at, code, forever=False)
    try:
        write_bytes(path, b"new data")
    except DiskError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)
        # Only the sync of the directory comes after the rename.
        renamed = "rename" in disk.operations[:at]
        assert (path.read_bytes() if path.exists() else None) == (b"new data" if renamed else old)
    else:
        assert path.read_bytes() == b"new data"
    assert [name.name for name in tmp_path.iterdir()] in ([], ["f"])


@given(sizes=st.lists(st.integers(0, 40), max_size=9))
def test_pieces_begin_and_end_where_huge_pages_do(tmp_path_factory, sizes):
    path = tmp_path_factory.mktemp("pieces") / "f"
    data = np.arange(sum(sizes), dtype=np.uint8)
    written: list[int] = []

    class Disk(atomic.Disk):
        def write(self, descriptor, data):
            written.append(len(data))
            return super().write(descriptor, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atomic, "HUGE_PAGE", 16)
        patch.setattr(atomic, "disk", Disk())
        with replace_file(path) as file:
            for part in np.split(data, np.cumsum(sizes)[:-1] if sizes else []):
                file.write(part)
                assert file.bytes - sum(written) < 16
    assert path.read_bytes() == data.tobytes() and file.bytes == len(data)
    assert all(size % 16 == 0 for size in written[:-1])
    assert len(written) <= len(data) // 16 + 1


def test_an_error_of_the_caller_leaves_the_old_content(tmp_path):
    write_bytes(tmp_path / "f", b"old")
    with pytest.raises(KeyboardInterrupt), replace_file(tmp_path / "f") as file:
        file.write(b"new")
        raise KeyboardInterrupt
    assert (tmp_path / "f").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENOSPC, "no space left on the disk: 1,234,567 bytes needed, [0-9,]+ free; make room"),
        (errno.EDQUOT, "no space left"),
        (errno.EIO, "input/output error"),
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "read-only"),
        (errno.EMFILE, "too many open files"),
        (errno.ENAMETOOLONG, "File name too long"),
    ],
)
def test_errors_of_the_system_become_one_clear_line(tmp_path, failing, code, expected):
    failing(1, code)
    with pytest.raises(DiskError, match=expected) as error, replace_file(tmp_path / "big", 1_234_567) as file:
        file.write(b"x")
    assert str(error.value).startswith(f"{tmp_path / 'big'}: ")


def test_a_real_read_only_directory_is_reported(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(DiskError, match="permission denied"):
        write_bytes(tmp_path / "f", b"x")


def test_a_really_full_disk_is_reported():
    path = Path("/dev/full")
    with pytest.raises(DiskError, match="no space left"), path.open("wb", buffering=0) as full:
        file = atomic.NewFile(path, full.fileno(), 0)
        file.write(b"x")
        file.flush()


def test_a_directory_that_cannot_be_synced_is_no_error(tmp_path, failing):
    failing(4, errno.EINVAL, forever=False)
    write_bytes(tmp_path / "f", b"x")
    assert (tmp_path / "f").read_bytes() == b"x"


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    make_directory(tmp_path / "a" / "b")
    kept = write_json(tmp_path / "a" / "b" / "f.json", {"x": 1})
    assert kept.bytes == len((tmp_path / "a" / "b" / "f.json").read_bytes())
    (tmp_path / "a" / f".f.1-2{atomic.TEMPORARY}").write_bytes(b"half")
    (tmp_path / f".b.1-2{atomic.TEMPORARY}" / "deep").mkdir(parents=True)
    remove_temporaries(tmp_path)
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert found == ["a", "a/b", "a/b/f.json"]
    remove_tree(tmp_path / "a")
    remove_tree(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------------
# A whole index


def files_of(index):
    return {
        str(path.relative_to(index)): path.read_bytes() for path in sorted(index.rglob("*")) if path.is_file()
    }


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_a_build_that_fails_anywhere_loses_nothing(tmp_path, failing, code, step):
    """At each operation of a rebuild: the index is the old one or the new one, and the next try succeeds."""
    index, clean = tmp_path / "i", tmp_path / "clean"
    old, new = make_sample(40, (3, 4), seed=1), make_sample(60, (3, 4), seed=2)
    counting = failing()
    make_index(clean, old, partitions=2, name="old")
    before = files_of(clean)
    counting.operations.clear()
    make_index(clean, new, partitions=2, name="new")
    after = files_of(clean)
    total = len(counting.operations)
    make_index(index, old, partitions=2, name="old")
    seen = set()
    for at in [*range(0, total, step), total - 1]:
        failing(at, code)
        with suppress(AggtreeError):  # what an earlier try has made needs no operations again
            make_index(index, new, partitions=2, name="new")
        failing()
        assert verify_index(index) == []
        with open_index(index) as opened:
            seen.add(len(opened))
        if len(opened) == 60:
            make_index(index, old, partitions=2, name="old")
            assert files_of(index) == before
    assert seen == {40, 60}
    make_index(index, new, partitions=2, name="new")
    assert files_of(index) == after


# ---------------------------------------------------------------------------------------------------
# Checksums and sealed records


def test_the_checksum_is_crc_32c():
    assert crc32c(b"123456789") == 0xE3069283


@given(st.lists(st.binary(max_size=50), max_size=12))
def test_checksums_do_not_depend_on_how_bytes_arrive(pieces):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksums, "BLOCK", 16)
        stream = BlockChecksums()
        for piece in pieces:
            stream.add(piece)
        whole = b"".join(pieces)
        assert stream.bytes == len(whole)
        assert stream.crc == crc32c(whole)
        expected = [crc32c(whole[start:stop]) for start, stop in checksums.block_ranges(len(whole))]
        assert list(stream.blocks) == expected == list(block_checksums(np.frombuffer(whole, np.uint8)))
        assert len(expected) == checksums.block_count(len(whole))
        assert from_hex(to_hex(stream.blocks)) == stream.blocks


@pytest.mark.parametrize("text", ["zz", "abc", "ABCDEF01", "1234567", "12 34 56 78"])
def test_what_is_no_list_of_checksums_is_refused(text):
    with pytest.raises(ValueError):
        from_hex(text)


def test_a_sealed_record_comes_back(tmp_path):
    record = {"b": [1, 2.5, None], "a": {"ä": True}}
    write_sealed(tmp_path / "r", record)
    assert read_sealed(tmp_path / "r") == record


def test_any_changed_byte_of_a_sealed_record_is_found():
    data = seal({"name": "x", "numbers": [1, 2, 3]})
    for place in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            with pytest.raises(IndexFormatError, match="record:"):
                unseal(bytes(changed), "record")
    for length in range(len(data)):
        with pytest.raises(IndexFormatError):
            unseal(data[:length], "record")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_sealed_record(data):
    with pytest.raises(IndexFormatError):
        unseal(data, "record")


def test_a_deeply_nested_or_huge_record_is_refused(tmp_path, monkeypatch):
    with pytest.raises(IndexFormatError):
        unseal(b"[" * 100_000, "record")
    with pytest.raises(IndexFormatError):
        unseal(b'{"crc32c":' + b"9" * 5000 + b"}", "record")
    monkeypatch.setattr("aggtree.storage.sealed_json.MAX_BYTES", 10)
    (tmp_path / "r").write_bytes(bytes(11))
    with pytest.raises(IndexFormatError, match="larger than"):
        read_sealed(tmp_path / "r")
    with pytest.raises(DiskError, match="no such file"):
        read_sealed(tmp_path / "nowhere")


# ---------------------------------------------------------------------------------------------------
# One module that writes

CHANGING = {
    *("write_text", "write_bytes", "unlink", "rename", "mkdir", "makedirs", "rmdir", "touch", "rmtree"),
    *("tofile", "symlink_to", "hardlink_to", "truncate", "ftruncate", "fsync", "removedirs", "copytree"),
}
# The lock writes its owner in place, because the lock belongs to the file and not to its name; an object
# store has no names to exchange, and writes an object completely or not at all.
# The kernel cache, in a layer below, keeps machine code that is made again when it is lost.
WRITERS = {"atomic.py", "lock.py", "remote_files.py", "kernel_cache.py"}


def changing_calls(path: Path) -> list[str]:
    """Calls of a module that change files without `atomic`."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        modes = [
            value.value for value in (*node.args, *(word.value for word in node.keywords)) if _text(value)
        ]
        opens = name == "open" and any(
            set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes
        )
        if opens or (isinstance(node.func, ast.Attribute) and name in CHANGING):
            found.append(f"{path.name}:{node.lineno} {name}")
    return found


def _text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_nothing_else_writes_files():
    modules = [
        path for layer in ("storage", "jobs", "engine") for path in sorted((ROOT / layer).rglob("*.py"))
    ]
    assert [call for path in modules if path.name not in WRITERS for call in changing_calls(path)] == []
