"""Records of files and sources in a manifest: how they are read, and compared with the disk.

Nothing in a record is trusted: a field of another kind than expected is a TypeError or ValueError.
"""

import math
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggtree.engine.params import METRICS, Metric
from aggtree.storage.atomic import Json, explained
from aggtree.storage.checksums import BlockChecksums, block_count, from_hex, to_hex
from aggtree.storage.errors import DiskError, IndexFormatError
from aggtree.storage.index.format import ARRAYS, MAX_COUNT

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_DTYPES = frozenset(dtype for spec in ARRAYS for dtype in spec.dtypes)


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """One file of an index.

    path : below the index directory, with slashes.
    blocks : CRC-32C of each 4 MiB.
    dtype, length : of a raw array; "" and 0 otherwise.
    """

    path: str
    bytes: int
    blocks: tuple[int, ...]
    dtype: str = ""
    length: int = 0

    @classmethod
    def of(cls, path: str, checksums: BlockChecksums, dtype: str = "", length: int = 0) -> "FileRecord":
        """The record of a file from the checksums its writer kept."""
        return cls(path=path, bytes=checksums.bytes, blocks=checksums.blocks, dtype=dtype, length=length)

    def to_json(self) -> dict[str, Json]:
        record: dict[str, Json] = {"path": self.path, "bytes": self.bytes, "crc32c": to_hex(self.blocks)}
        return record | ({"dtype": self.dtype, "length": self.length} if self.dtype else {})

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "FileRecord":
        made = cls(
            path=as_text(record["path"]),
            bytes=as_count(record["bytes"]),
            blocks=from_hex(as_text(record["crc32c"])),
            dtype=as_text(record.get("dtype", "")),
            length=as_count(record.get("length", 0)),
        )
        if len(made.blocks) != block_count(made.bytes):
            raise ValueError(f"{made.path} of {made.bytes} bytes has {len(made.blocks)} checksums")
        itemsize = int(made.dtype[2:]) if made.dtype in _DTYPES else 0
        if made.dtype and itemsize * made.length != made.bytes:
            raise ValueError(f"{made.path} of {made.bytes} bytes cannot hold {made.length} {made.dtype}")
        return made


@dataclass(frozen=True, kw_only=True)
class RemoteCodes:
    """The code store of an index that is not inside its directory.

    location : its URL. Only verifying and repairing go there; queries never do.
    files : its files, their paths below that URL.
    seal : of the user who named the location; see `storage/places.py`.
    """

    location: str
    files: tuple[FileRecord, ...]
    seal: str = ""

    def to_json(self) -> dict[str, Json]:
        record: dict[str, Json] = {"seal": self.seal} if self.seal else {}
        return record | {"location": self.location, "files": [file.to_json() for file in self.files]}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "RemoteCodes":
        made = cls(
            location=as_text(record["location"]),
            files=tuple(FileRecord.from_json(item) for item in record["files"]),
            seal=as_text(record.get("seal", "")),
        )
        if "://" not in made.location:
            raise ValueError(f"codes at {made.location[:80]!r}, which is no URL")
        for file in made.files:
            if not all(NAME.fullmatch(part) for part in file.path.split("/")):
                raise ValueError(f"path {file.path[:80]!r} of remote codes")
        return made


@dataclass(frozen=True, kw_only=True)
class SourcePiece:
    """Rows of an index that came from one source.

    first_row, rows : where they are among the rows of the index.
    source : the fingerprint. vectors : what opens the source again, or "".
    vectors_seal : of the user who named `vectors`; see `storage/places.py`.
    """

    first_row: int
    rows: int
    source: dict[str, Any]
    vectors: str = ""
    vectors_seal: str = ""

    def to_json(self) -> dict[str, Json]:
        record: dict[str, Json] = {"first_row": self.first_row, "rows": self.rows, "source": self.source}
        record |= {"vectors_seal": self.vectors_seal} if self.vectors_seal else {}
        return record | ({"vectors": self.vectors} if self.vectors else {})

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "SourcePiece":
        return cls(
            first_row=as_count(record["first_row"]),
            rows=as_count(record["rows"]),
            source=dict(record["source"]),
            vectors=as_text(record.get("vectors", "")),
            vectors_seal=as_text(record.get("vectors_seal", "")),
        )


@dataclass(frozen=True, kw_only=True)
class LiveRows:
    """The rows of an index that were not deleted.

    file : a bit for each row. deleted : how many rows of the trees have none.
    """

    file: FileRecord
    deleted: int

    def to_json(self) -> dict[str, Json]:
        return self.file.to_json() | {"deleted": self.deleted}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "LiveRows":
        return cls(file=FileRecord.from_json(record), deleted=as_count(record["deleted"]))


def check_files(index: Path, files: Iterable[FileRecord]) -> None:
    """Compare names and sizes with the disk; IndexFormatError for the first that differs."""
    for record in files:
        problem = file_problem(index, record)
        if problem:
            raise IndexFormatError(f"{index / record.path}: {problem}")


def file_problem(index: Path, record: FileRecord) -> str:
    """Why a file is missing or has the wrong size; "" if it has not."""
    path = index
    try:
        # No component below the index may be a link: it could lead out of the directory.
        with explained(index / record.path):
            for part in record.path.split("/"):
                path /= part
                status = path.lstat()
                if stat.S_ISLNK(status.st_mode):
                    return f"{path.name} is a link, which an index does not contain"
    except DiskError as error:
        return str(error).removeprefix(f"{index / record.path}: ")
    if not stat.S_ISREG(status.st_mode):
        return "not a file"
    if status.st_size != record.bytes:
        return f"{status.st_size:,} bytes, the manifest states {record.bytes:,}: truncated or changed"
    return ""


def as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{repr(value)[:40]} is no text")
    return value


def as_metric(value: Any) -> Metric:
    for metric in METRICS:
        if value == metric:
            return metric
    raise ValueError(f"metric {str(value)[:40]!r}, expected {' or '.join(METRICS)}")


def as_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{repr(value)[:40]} is neither true nor false")
    return value


def as_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{repr(value)[:40]} is no number")
    return float(value)


def as_count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise ValueError(f"{repr(value)[:40]} is no count")
    return value


def as_counts(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{repr(values)[:40]} is no list of counts")
    return tuple(as_count(value) for value in values)
