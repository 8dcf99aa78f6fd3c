"""Random access to bytes: the local file or the remote object of every flat vector format.

Builds read local files with `pread` and never map them: pages of a mapping count as resident memory of
the process, and a build would then seem to use as much memory as its input has bytes. Queries that
re-rank map them, because the few rows they need lie far apart.
"""

import mmap
import os
import stat
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from aggtree.storage.errors import SourceError
from aggtree.storage.remote_files import connect, explained_remote, local_path


def reason(error: BaseException) -> str:
    """The reason of an error, on one line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())


class ByteReader(ABC):
    """A sequence of bytes of known size; safe to use from several threads."""

    name: str
    size: int

    @abstractmethod
    def _read_into(self, offset: int, out: memoryview) -> int:
        """Fill `out` from `offset` on as far as there are bytes; return their number."""

    @abstractmethod
    def close(self) -> None:
        """Close the file; reading afterwards is an error."""

    def map(self) -> mmap.mmap | None:
        """The bytes mapped read-only, or None where there is no local file."""
        return None

    def read_into(self, offset: int, out: NDArray[Any]) -> None:
        """Fill the C-contiguous array `out` with the bytes from `offset` on."""
        wanted = out.reshape(-1).view(np.uint8).data
        if offset < 0 or offset + len(wanted) > self.size:
            raise SourceError(
                f"{self.name}: ends at byte {self.size}, {len(wanted)} bytes are needed "
                f"from byte {offset} on: it is cut off, copy it again"
            )
        try:
            count = self._read_into(offset, wanted)
        except (OSError, ValueError) as error:
            raise SourceError(f"{self.name}: cannot be read at byte {offset}: {reason(error)}") from error
        if count != len(wanted):
            raise SourceError(
                f"{self.name}: ended at byte {offset + count} although it had {self.size} bytes "
                "when it was opened: it was changed meanwhile, start again"
            )

    def read_array(self, offset: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """A new array made of the bytes from `offset` on."""
        if (needed := int(np.dtype(dtype).itemsize * np.prod(shape, dtype=object))) > self.size - offset:
            raise SourceError(
                f"{self.name}: ends at byte {self.size}, {needed} bytes are needed from byte {offset} on: "
                "it is cut off, copy it again"
            )
        out = np.empty(shape, dtype)
        self.read_into(offset, out)
        return out


class LocalBytes(ByteReader):
    """A file of this machine."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._descriptor = -1
        try:
            if path.is_dir():
                raise SourceError(f"{path}: is a directory, expected a file: name one of the files in it")
            # Without O_NONBLOCK opening a named pipe would wait for its writer.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            status = os.fstat(self._descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise SourceError(
                    f"{path}: is a pipe or a device, which cannot be read by position: copy it to a file"
                )
            self.size = status.st_size
        except FileNotFoundError as error:
            raise SourceError(f"{path}: no such file: check the path") from error
        except OSError as error:
            raise SourceError(f"{path}: cannot be opened: {reason(error)}") from error

    def _read_into(self, offset: int, out: memoryview) -> int:
        done = 0
        while done < len(out):
            count = os.preadv(self._descriptor, [out[done:]], offset + done)
            if count == 0:
                break
            done += count
        return done

    def map(self) -> mmap.mmap | None:
        try:
            return mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise SourceError(f"{self.name}: cannot be mapped: {reason(error)}") from error

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


class RemoteBytes(ByteReader):
    """An object behind an fsspec URL such as s3://bucket/base.u8bin."""

    def __init__(self, url: str) -> None:
        self.name = url
        self._files, self._path = connect(url, SourceError)
        with explained_remote(url, SourceError):
            self.size = int(self._files.size(self._path))

    def _read_into(self, offset: int, out: memoryview) -> int:
        with explained_remote(f"{self.name}: byte {offset}", SourceError):
            data = self._files.cat_file(self._path, start=offset, end=offset + len(out))
        out[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Connections belong to fsspec, which shares them."""


def check_local_file(location: str, kind: str) -> None:
    """Check a file that a library will open itself, with the error messages of all other files."""
    if "://" in location:
        raise SourceError(f"{location}: {kind} is read from local files only: copy it to this machine")
    open_bytes(location).close()


def open_bytes(location: str) -> ByteReader:
    """Open a path or an fsspec URL; an empty one is an error, because no format allows it."""
    path = local_path(location)
    reader: ByteReader = RemoteBytes(location) if path is None else LocalBytes(path)
    if reader.size == 0:
        reader.close()
        raise SourceError(f"{reader.name}: is empty: copy or write it again")
    return reader
