"""The only module that changes the disk: a file exists completely, or not at all.

A file is written under a temporary name in the same directory, synced and renamed, and the directory is
synced. After `replace_file` returns, the new content survives a power failure; before, a reader or a
process started after a crash sees the old content or none. Every call that changes
a file or a directory goes through `disk`, so tests put a failing one there.
"""

import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.checksums import BlockChecksums, Buffer, as_bytes
from aggtree.storage.errors import DiskError

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

HUGE_PAGE = 2 << 20
"""Files are written in pieces that begin and end at multiples of this many bytes.

Linux keeps such a piece as one huge page where it can (ext4 since 6.16, xfs since 5.18), and maps it as one:
readers that jump about in a large file wait less for addresses to be found.
"""

TEMPORARY = ".temporary"
"""End of the name of every file that is not finished; left behind only by a killed process."""


class Disk:
    """The system calls that change files and directories."""

    def create(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, descriptor: int, data: memoryview) -> int:
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def make_directory(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def remove_file(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path)


disk = Disk()


class NewFile:
    """A file under its temporary name, written in order."""

    def __init__(self, path: Path, descriptor: int, expected: int) -> None:
        self.path = path
        self.checksums = BlockChecksums()
        self._descriptor = descriptor
        self._expected = expected
        self._begun = bytearray()  # the bytes behind the last whole piece

    @property
    def bytes(self) -> int:
        """Bytes appended so far."""
        return self.checksums.bytes

    def write(self, data: Buffer) -> None:
        """Append all of `data`."""
        rest = as_bytes(data)
        self.checksums.add(rest)
        if self._begun:
            missing = HUGE_PAGE - len(self._begun)
            self._begun += rest[:missing].data
            rest = rest[missing:]
            if len(self._begun) == HUGE_PAGE:
                self.flush()
        whole = len(rest) // HUGE_PAGE * HUGE_PAGE
        self._put(rest[:whole])
        self._begun += rest[whole:].data

    def flush(self) -> None:
        """Write the buffered rest."""
        self._put(as_bytes(self._begun))
        self._begun = bytearray()

    def _put(self, data: NDArray[np.uint8]) -> None:
        with explained(self.path, max(self._expected, self.bytes)):
            write_all(self._descriptor, data)


def write_all(descriptor: int, data: Buffer) -> None:
    """Write all of `data`, which the system may take in pieces."""
    rest = as_bytes(data)
    while len(rest):
        rest = rest[disk.write(descriptor, rest.data) :]


@contextmanager
def replace_file(path: Path, expected: int = 0) -> Iterator[NewFile]:
    """Write a file that replaces `path` when the block ends without an error.

    `expected` bytes, where known, are named in the message when the disk is full.
    """
    temporary = _temporary_name(path)
    with explained(path, expected):
        descriptor = disk.create(temporary)
    try:
        file = NewFile(path, descriptor, expected)
        try:
            yield file
            file.flush()
            with explained(path, max(expected, file.bytes)):
                disk.sync(descriptor)
        finally:
            with explained(path):
                os.close(descriptor)
        with explained(path):
            disk.rename(temporary, path)
            sync_directory(path.parent)
    except BaseException:
        with suppress(OSError):
            disk.remove_file(temporary)
        raise


def write_bytes(path: Path, data: Buffer) -> BlockChecksums:
    """Write `data` to `path`; returns its checksums."""
    with replace_file(path, len(as_bytes(data))) as file:
        file.write(data)
    return file.checksums


def put_private(path: Path, data: bytes) -> None:
    """Put `data` at `path`, readable by this user alone, unless another process was first."""
    make_directory(path.parent)
    temporary = _temporary_name(path)
    with explained(path):
        descriptor = disk.create(temporary)
        try:
            os.fchmod(descriptor, 0o600)
            write_all(descriptor, data)
            disk.sync(descriptor)
            with suppress(FileExistsError):
                disk.link(temporary, path)
        finally:
            os.close(descriptor)
            disk.remove_file(temporary)


def canonical(value: Json) -> bytes:
    """The canonical form of `value` as JSON: sorted keys, fixed indentation, ASCII."""
    return (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False) + "\n").encode(
        "ascii"
    )


def write_json(path: Path, value: Json) -> BlockChecksums:
    """Write `value` to `path` as canonical JSON; returns its checksums."""
    return write_bytes(path, canonical(value))


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents, so that they survive a power failure."""
    if path.is_dir():
        return
    make_directory(path.parent)
    with explained(path):
        disk.make_directory(path)
        sync_directory(path.parent)


def remove_file(path: Path) -> None:
    """Remove a file if it exists."""
    with explained(path):
        disk.remove_file(path)


def remove_tree(path: Path) -> None:
    """Remove a directory: its name disappears at once, then its files are deleted.

    Processes that have files of it open or mapped keep them.
    """
    if not path.is_dir():
        return
    temporary = _temporary_name(path)
    with explained(path):
        disk.rename(path, temporary)
        sync_directory(path.parent)
        disk.remove_tree(temporary)


def remove_temporaries(directory: Path) -> None:
    """Remove what killed processes left unfinished below `directory`; nobody may be writing there."""
    with explained(directory):
        for parent, directories, files in os.walk(directory):
            for name in [name for name in directories if name.endswith(TEMPORARY)]:
                directories.remove(name)
                disk.remove_tree(Path(parent, name))
            for name in files:
                if name.endswith(TEMPORARY):
                    disk.remove_file(Path(parent, name))


def read_file(path: Path, most: int = -1) -> bytes:
    """The bytes of a file, at most `most`; DiskError if it cannot be read, or is a pipe or a device."""
    with explained(path):
        # Without O_NONBLOCK opening a named pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DiskError(f"{path}: not a file")
        with explained(path), os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        disk.sync(descriptor)
    except OSError as error:
        # Some network file systems have no sync of directories: a rename is durable there at once.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def explained(path: Path, needed: int = 0) -> Iterator[None]:
    """Turn an OSError inside the block into a DiskError of one line about `path`."""
    try:
        yield
    except OSError as error:
        raise DiskError(_explanation(error, path, needed)) from error


def _explanation(error: OSError, path: Path, needed: int) -> str:
    again = "run the same command again"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            reason = f"no space left on the disk{_room(path, needed)}; make room and {again}"
        case errno.EIO:
            reason = f"input/output error of the device; check the disk, then {again}"
        case errno.EACCES | errno.EPERM:
            reason = "permission denied; give this user the right to it or choose another directory"
        case errno.EROFS:
            reason = "the file system is read-only; choose another directory"
        case errno.EMFILE | errno.ENFILE:
            reason = "too many open files; raise the limit (ulimit -n)"
        case errno.ENOENT:
            reason = "no such file or directory"
        case _:
            reason = error.strerror or str(error)
    return f"{path}: {reason}"


def _room(path: Path, needed: int) -> str:
    with suppress(OSError):
        free = shutil.disk_usage(path.parent).free
        return f": {needed:,} bytes needed, {free:,} free" if needed else f": {free:,} bytes free"
    return ""


def _temporary_name(path: Path) -> Path:
    # Unique, because a partition that is retried may still be written by its first worker.
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")
