"""A .npy file, or a directory of .npy parts, as one source.

The header is matched, not evaluated: nothing in a file is ever run or unpickled.
"""

import re
from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.byte_reader import ByteReader, open_bytes, reason
from aggtree.storage.errors import SourceError
from aggtree.storage.sources.base import VectorSource, check_shape
from aggtree.storage.sources.formats.flat_rows import FlatRows

MAGIC = b"\x93NUMPY"
MAX_HEADER = 64 * 1024

_DESCR = re.compile(r"""['"]descr['"]\s*:\s*['"]([<>|=]?[a-zA-Z]\d{1,3})['"]""")
_ORDER = re.compile(r"""['"]fortran_order['"]\s*:\s*(True|False)""")
_SHAPE = re.compile(r"""['"]shape['"]\s*:\s*\(([0-9,\s]{0,200})\)""")


def _header_text(reader: ByteReader) -> tuple[str, int]:
    """The text of the header and the byte where the values start."""
    start = reader.read_array(0, (min(12, reader.size),), np.uint8).tobytes()
    if not start.startswith(MAGIC) or len(start) < 12 or start[6] not in (1, 2, 3):
        raise SourceError(
            f"{reader.name}: does not start as a .npy file does: write it again with numpy.save"
        )
    width, first = (2, 10) if start[6] == 1 else (4, 12)
    length = int.from_bytes(start[8 : 8 + width], "little")
    if length > MAX_HEADER or first + length > reader.size:
        raise SourceError(
            f"{reader.name}: header of {length} bytes in a file of {reader.size}: it is damaged"
        )
    text = reader.read_array(first, (length,), np.uint8).tobytes().decode("latin-1")
    return text, first + length


def npy_layout(reader: ByteReader) -> tuple[np.dtype[Any], tuple[int, ...], int, bool]:
    """dtype, shape, offset of the values, and whether they are in column-major order."""
    text, offset = _header_text(reader)
    descr, order, shape = _DESCR.search(text), _ORDER.search(text), _SHAPE.search(text)
    if not (descr and order and shape):
        raise SourceError(
            f"{reader.name}: its header does not describe an array of plain numbers: convert it"
        )
    try:
        stored = np.dtype(descr.group(1))
    except TypeError as error:
        raise SourceError(f"{reader.name}: unknown number type {descr.group(1)!r} in its header") from error
    lengths = tuple(int(length) for length in shape.group(1).replace(",", " ").split())
    return stored, lengths, offset, order.group(1) == "True"


def open_npy(reader: ByteReader) -> FlatRows:
    """The matrix in a .npy file."""
    stored, lengths, offset, columns = npy_layout(reader)
    if len(lengths) != 2:
        raise SourceError(
            f"{reader.name}: holds an array of {len(lengths)} dimensions {lengths}, "
            "expected rows of vectors (n, d): reshape it"
        )
    rows, dimension = lengths
    check_shape(reader.name, rows, dimension)
    source = FlatRows(reader, offset=offset, rows=rows, dimension=dimension, stored=stored, columns=columns)
    if (needed := offset + rows * dimension * stored.itemsize) != reader.size:
        raise SourceError(
            f"{reader.name}: its header states {rows} rows of {dimension} {stored.name}, "
            f"which take {needed} bytes, but it has {reader.size}: copy it again"
        )
    return source


class NpyDirectory(VectorSource):
    """The .npy files of a directory, one after the other.

    A part is opened for each read, so that thousands of parts do not need thousands of open files.
    """

    def __init__(self, directory: Path) -> None:
        self.spec = str(directory)
        try:
            self._paths = sorted(directory.glob("*.npy"), key=_natural_order)
        except OSError as error:
            raise SourceError(f"{directory}: cannot be listed: {reason(error)}") from error
        if not self._paths:
            raise SourceError(
                f"{directory}: a directory without .npy files: name a vector file or a directory of parts"
            )
        self._starts = [0]
        for path in self._paths:
            with _open_file(str(path)) as part:
                if len(self._starts) == 1:
                    self.dimension, self.dtype = part.dimension, part.dtype
                if (part.dimension, part.dtype) != (self.dimension, self.dtype):
                    raise SourceError(
                        f"{path}: rows of {part.dimension} {part.dtype}, but {self._paths[0].name} has rows "
                        f"of {self.dimension} {self.dtype}: all parts must agree"
                    )
                self._starts.append(self._starts[-1] + part.rows)
        self.rows = self._starts[-1]

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        out = np.empty((stop - start, self.dimension), self.dtype)
        number = bisect_right(self._starts, start) - 1
        row = start
        while row < stop:
            first, last = self._starts[number], self._starts[number + 1]
            with _open_file(str(self._paths[number])) as part:
                if (part.rows, part.dimension) != (last - first, self.dimension):
                    raise SourceError(f"{part.spec}: was changed since its directory was opened: start again")
                end = min(stop, last)
                out[row - start : end - start] = part.read(row - first, end - first)
            row = end
            number += 1
        return out


def _natural_order(path: Path) -> list[tuple[int, int, str]]:
    """Sort key by which part-2 comes before part-10."""
    pieces = re.findall(r"[0-9]+|[^0-9]+", path.name)
    return [(0, int(piece), piece) if piece.isdecimal() else (1, 0, piece) for piece in pieces]


def _open_file(location: str) -> FlatRows:
    reader = open_bytes(location)
    try:
        return open_npy(reader)
    except SourceError:
        reader.close()
        raise


def open_vectors(location: str, _name: str) -> VectorSource:
    """Open a .npy file, or all .npy files of a directory."""
    if "://" not in location and Path(location).is_dir():
        return NpyDirectory(Path(location))
    return _open_file(location)


def read_numbers(location: str) -> NDArray[Any]:
    """A one-dimensional array of booleans or integers."""
    reader = open_bytes(location)
    try:
        stored, shape, offset, _ = npy_layout(reader)
        if len(shape) != 1 or stored.kind not in "biu":
            raise SourceError(
                f"{location}: holds {stored} {shape}, expected booleans or ids in one dimension: convert it"
            )
        return reader.read_array(offset, shape, stored)
    finally:
        reader.close()


def read_ids(location: str, _name: str) -> NDArray[np.int64]:
    """All ids of a .npy file of integers."""
    with _open_file(location) as source:
        return source.read_integers()
