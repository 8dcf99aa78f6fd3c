"""fbin, u8bin, i8bin and ibin: the formats of the big-ann benchmarks.

    | rows uint32 | dimension uint32 | row 0 | row 1 | ... |   little endian

A ground-truth .ibin may be followed by as many float32 distances.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.byte_reader import ByteReader, open_bytes
from aggtree.storage.errors import SourceError
from aggtree.storage.sources.base import check_shape, suffix_of
from aggtree.storage.sources.formats.flat_rows import FlatRows

HEADER_BYTES = 8
STORED: dict[str, np.dtype[Any]] = {
    "fbin": np.dtype("<f4"),
    "u8bin": np.dtype("u1"),
    "i8bin": np.dtype("i1"),
    "ibin": np.dtype("<i4"),
}


def _read_header(reader: ByteReader, stored: np.dtype[Any], *, distances: bool) -> tuple[int, int]:
    """Rows and dimension, checked against the size of the file."""
    rows, dimension = reader.read_array(0, (2,), "<u4").tolist()
    check_shape(reader.name, rows, dimension)
    values = rows * dimension * stored.itemsize
    allowed = (HEADER_BYTES + values, HEADER_BYTES + 2 * values) if distances else (HEADER_BYTES + values,)
    if reader.size not in allowed:
        remedy = "copy it again" if reader.size < allowed[0] else "it is damaged or of another format"
        raise SourceError(
            f"{reader.name}: its header states {rows} rows of {dimension} {stored.name}, "
            f"which take {allowed[0]} bytes, but it has {reader.size}: {remedy}"
        )
    return rows, dimension


def open_vectors(location: str, _name: str) -> FlatRows:
    """Open a .fbin, .u8bin, .i8bin or .ibin file as vectors."""
    stored = STORED[suffix_of(location)]
    reader = open_bytes(location)
    try:
        rows, dimension = _read_header(reader, stored, distances=False)
        return FlatRows(reader, offset=HEADER_BYTES, rows=rows, dimension=dimension, stored=stored)
    except SourceError:
        reader.close()
        raise


def read_ids(location: str, _name: str) -> NDArray[np.int64]:
    """All ids of an .ibin file."""
    reader = open_bytes(location)
    try:
        rows, dimension = _read_header(reader, STORED["ibin"], distances=True)
        ids = reader.read_array(HEADER_BYTES, (rows, dimension), STORED["ibin"])
        return ids.astype(np.int64)
    finally:
        reader.close()
