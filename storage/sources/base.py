"""Where vectors come from: one interface for every format, read by row range.

A source never loads its file. It is named by a *spec*, a path, a URL or a name such as
`synthetic:sift?rows=1000000&seed=1`, and the spec of an open source opens the same rows in another process.

    fvecs bvecs ivecs            vecs_files      row by row: int32 dimension, then the values
    fbin u8bin i8bin ibin        bin_files       uint32 rows, uint32 dimension, then the values
    npy, a directory of npy      npy_files       parts are one source, in the order of their names
    zarr                         zarr_source     two-dimensional array; `x.zarr::name` inside a group
    hdf5 h5                      hdf5_source     data set `train`; `x.hdf5::name` for another
    parquet                      parquet_source  column of lists; `x.parquet::name` chooses it
    synthetic:sift?rows=...      synthetic_source
    demo:base, demo:query        demo_data       the embedded descriptors
    unit:SPEC                    unit_rows       the rows of another source, scaled to length 1
    joined:SPEC,SPEC,...         joined_source   the rows of several sources, one after the other
"""

import mmap
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import google_crc32c
import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.exact.neighbours_kernels import FlatVectors
from aggtree.storage.byte_reader import ByteReader, reason
from aggtree.storage.errors import SourceError
from aggtree.storage.keywords import explain_keywords

MAX_DIMENSION = 65_536
FINGERPRINT_SAMPLES = 64
FINGERPRINT_BYTES = 4096
TAKE_GAP_BYTES = 16 * 1024
TAKE_RUN_BYTES = 4 * 1024 * 1024

SUFFIX_MODULES = {
    "fvecs": "formats.vecs",
    "bvecs": "formats.vecs",
    "ivecs": "formats.vecs",
    "fbin": "formats.bin",
    "u8bin": "formats.bin",
    "i8bin": "formats.bin",
    "ibin": "formats.bin",
    "npy": "formats.npy",
    "zarr": "formats.zarr",
    "hdf5": "formats.hdf5",
    "h5": "formats.hdf5",
    "parquet": "formats.parquet",
}
SCHEME_MODULES = {
    "unit:": "unit_rows",
    "joined:": "joined",
    "synthetic:": "synthetic",
    "demo:": "demo_data",
}
PACKED_SUFFIXES = ("gz", "bz2", "xz", "zst", "zip", "tar", "tgz")

# big-ann's first million of a billion rows is called `base.1B.u8bin.crop_nb_1000000`.
_SUFFIX = re.compile(r"\.([^./\\]+?)(?:\.crop_nb_\d+)?$")


class MappedVectors(NamedTuple):
    """Vectors in memory, or in a mapped file, which must keep its size while they are read.

    pages : the mapping, or None for an array
    """

    vectors: FlatVectors
    pages: mmap.mmap | None


class VectorSource(ABC):
    """Rows of vectors, all of one dimension; safe to read from several threads.

    spec : location that opens the same source in another process.
    rows, dimension : the shape.
    dtype : uint8, int8 or float32, what `read` returns; other numbers in a file become float32.
    """

    spec: str
    rows: int
    dimension: int
    dtype: np.dtype[Any]

    @abstractmethod
    def _read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop, which are inside the source and at least one."""

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop (stop not included) as a new C-contiguous (stop - start, dimension) array."""
        if not 0 <= start <= stop <= self.rows:
            raise SourceError(
                f"{self.spec}: rows {start} to {stop} are requested, it has rows 0 to {self.rows}"
            )
        if start == stop:
            return np.empty((0, self.dimension), self.dtype)
        return self._read(start, stop)

    def mapped(self) -> MappedVectors | None:
        """The rows in place, if they are in memory, or in a local file in the form that `read` returns."""
        return None

    def take(self, rows: ArrayLike) -> NDArray[Any]:
        """The given rows, in the given order, repeats allowed, as (len(rows), dimension)."""
        numbers = np.asarray(rows)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise SourceError(
                f"{self.spec}: row numbers must be a list of integers, got {numbers.dtype} {numbers.shape}"
            )
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order].astype(np.int64)
        if ordered.size and not 0 <= ordered[0] <= ordered[-1] < self.rows:
            wrong = ordered[0] if ordered[0] < 0 else ordered[-1]
            raise SourceError(f"{self.spec}: row {wrong} is requested, it has rows 0 to {self.rows}")
        out = np.empty((len(numbers), self.dimension), self.dtype)
        for low, high in self._take_runs(ordered):
            first = int(ordered[low])
            block = self._read(first, int(ordered[high - 1]) + 1)
            out[order[low:high]] = block[ordered[low:high] - first]
        return out

    def _take_runs(self, ordered: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Split ascending row numbers into positions low..high that are read at once.

        A small gap is cheaper to read than to skip; a run is bounded, so memory is.
        """
        row_bytes = self.dimension * self.dtype.itemsize
        cuts = np.diff(ordered) > 1 + TAKE_GAP_BYTES // row_bytes
        longest = max(1, TAKE_RUN_BYTES // row_bytes)
        starts = np.concatenate(([0], np.flatnonzero(cuts) + 1, [len(ordered)]))
        for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            low = start
            while low < stop:
                high = int(np.searchsorted(ordered[:stop], ordered[low] + longest))
                yield low, high
                low = high

    def fingerprint(self) -> dict[str, int | str]:
        """What distinguishes this source from another, cheaply: shape, dtype and a checksum of sampled rows.

        The checksum covers 4 KiB of rows at the start, at the end and at 64 evenly spaced places. Path,
        time and file format do not matter: a copied or converted file is the same source.
        """
        count = min(self.rows, max(1, FINGERPRINT_BYTES // (self.dimension * self.dtype.itemsize)))
        last = self.rows - count
        starts = sorted({last * i // (FINGERPRINT_SAMPLES + 1) for i in range(FINGERPRINT_SAMPLES + 2)})
        checksum = 0
        for start in starts:
            checksum = google_crc32c.extend(checksum, self.read(start, start + count).tobytes())
        return {
            "rows": self.rows,
            "dimension": self.dimension,
            "dtype": self.dtype.name,
            "crc32c": f"{checksum:08x}",
        }

    def close(self) -> None:  # noqa: B027  (most sources that are no files have nothing to close)
        """Close the file. Reading afterwards is an error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec!r}: {self.rows:,} rows x {self.dimension} {self.dtype})"


def map_rows(
    reader: ByteReader, source: VectorSource, stored: np.dtype[Any], *, offset: int, row_bytes: int
) -> MappedVectors | None:
    """Rows of a local file, `row_bytes` apart from `offset` on, if they are comparable as stored."""
    size = stored.itemsize
    if not comparable(stored, source.dtype) or offset % size or row_bytes % size:
        return None
    pages = reader.map()
    if pages is None:
        return None
    values = np.frombuffer(pages, half_bits(stored), reader.size // size)
    vectors = FlatVectors(values, offset // size, row_bytes // size, source.rows, source.dimension)
    return MappedVectors(vectors, pages)


def is_bfloat16(stored: np.dtype[Any]) -> bool:
    """Whether numbers are stored as bfloat16, which numpy has no name for: two bytes of no type."""
    return stored.kind == "V" and stored.itemsize == 2


def half_bits(stored: np.dtype[Any]) -> np.dtype[Any]:
    """The type by which kernels know half floats by their bits; other types as they are."""
    if is_bfloat16(stored):
        return np.dtype(np.int16)
    return np.dtype(np.uint16) if stored == np.float16 else stored


def comparable(stored: np.dtype[Any], served: np.dtype[Any]) -> bool:
    """Whether distances can be computed from values as they are stored."""
    return stored in (served, np.float16) or is_bfloat16(stored)


def convert(values: NDArray[Any], out: NDArray[Any]) -> None:
    """Copy into `out`; a float64 too large for float32 becomes inf, which is refused when it is encoded."""
    if is_bfloat16(values.dtype):
        out[...] = (values.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        return
    with np.errstate(over="ignore"):
        out[...] = values


def served_dtype(name: str, stored: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which values stored as `stored` are read: themselves, or float32."""
    if is_bfloat16(stored):
        return np.dtype(np.float32)
    if stored.kind not in "iuf" or stored.itemsize > 8:
        raise SourceError(
            f"{name}: holds {stored}, expected uint8, int8, float32 or other real numbers: convert it"
        )
    return (
        stored.newbyteorder("=") if stored.newbyteorder("=") in (np.uint8, np.int8) else np.dtype(np.float32)
    )


def check_shape(name: str, rows: int, dimension: int) -> None:
    """SourceError for a shape that no vector file has."""
    if not 1 <= dimension <= MAX_DIMENSION:
        raise SourceError(
            f"{name}: dimension {dimension} in its header, expected 1 to {MAX_DIMENSION}: "
            "it is damaged or of another format than its name suggests"
        )
    if rows < 1:
        raise SourceError(f"{name}: holds no rows: write it again")


def split_name(spec: str) -> tuple[str, str]:
    """Split `file.hdf5::name` into the file and the name inside it, which may be empty."""
    location, separator, name = spec.rpartition("::")
    return (location, name) if separator else (spec, "")


def suffix_of(location: str) -> str:
    """The suffix that names the format, in lower case, without the dot."""
    found = _SUFFIX.search(location.rstrip("/"))
    return found.group(1).lower() if found else ""


def absolute(location: str) -> str:
    """A path that means the same in a process with another working directory; URLs stay."""
    if location.startswith("file://"):
        location = location.removeprefix("file://")
    return location if "://" in location else os.path.abspath(os.path.expanduser(location))  # noqa: PTH100, PTH111


@explain_keywords
def open_source(spec: str | os.PathLike[str]) -> VectorSource:
    """Open vectors by path, URL or name; see the table at the top of this module."""
    text = os.fspath(spec)
    if "\0" in text or not text:
        raise SourceError(f"{text!r}: not a path: name a vector file")
    for scheme, module in SCHEME_MODULES.items():
        if text.startswith(scheme):
            return _open_with(module, text, "")
    location, name = split_name(text)
    location = absolute(location)
    suffix = suffix_of(location)
    path = Path(location)
    if "://" not in location and suffix not in SUFFIX_MODULES and _is_directory(path):
        return _open_with("formats.zarr" if _is_zarr(path) else "formats.npy", location, name)
    if suffix not in SUFFIX_MODULES:
        raise SourceError(_unknown_suffix(location, suffix))
    if name and SUFFIX_MODULES[suffix] not in ("formats.zarr", "formats.hdf5", "formats.parquet"):
        raise SourceError(f"{text}: a .{suffix} file has no named parts: leave out ::{name}")
    return _open_with(SUFFIX_MODULES[suffix], location, name)


def _open_with(module: str, location: str, name: str) -> VectorSource:
    """Formats are imported when used: they import this module, and some need extras."""
    source: VectorSource = import_module(f"aggtree.storage.sources.{module}").open_vectors(location, name)
    return source


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        raise SourceError(f"{path}: cannot be opened: {reason(error)}") from error


def _is_zarr(path: Path) -> bool:
    return any((path / name).exists() for name in ("zarr.json", ".zarray", ".zgroup"))


def _unknown_suffix(location: str, suffix: str) -> str:
    known = " ".join(f".{known}" for known in SUFFIX_MODULES)
    if "://" not in location and not Path(location).exists():
        return f"{location}: no such file: check the path"
    if suffix in PACKED_SUFFIXES:
        return f"{location}: is packed, rows cannot be read by number: unpack it first"
    kind = f"unknown suffix .{suffix}" if suffix else "no suffix names its format"
    return f"{location}: {kind}: expected {known}, or a directory of .npy files"


def read_ground_truth(spec: str | os.PathLike[str]) -> NDArray[np.int64]:
    """Ids of the true neighbours, (q, k) int64, nearest first, from ivecs, ibin, npy or hdf5."""
    location, name = split_name(os.fspath(spec))
    location = absolute(location)
    suffix = suffix_of(location)
    if suffix not in ("ivecs", "ibin", "npy", "hdf5", "h5"):
        raise SourceError(f"{location}: ground truth is read from .ivecs, .ibin, .npy or .hdf5 files")
    ids: NDArray[np.int64] = import_module(f"aggtree.storage.sources.{SUFFIX_MODULES[suffix]}").read_ids(
        location, name
    )
    return ids
