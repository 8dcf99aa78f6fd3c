"""The manifest: what a committed index is, and the size and checksums of each of its files.

Renaming a new manifest into place is the commit. Nothing in a manifest is trusted when it is read:
counts must agree with each other and with the sizes of the files, and paths stay in the build's
directory, so nothing behind `read_manifest` and `check_files` has to ask again.
"""

import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.params import METRICS, AnnealingParams, Metric
from aggtree.storage.atomic import Json, explained
from aggtree.storage.checksums import BLOCK, BlockChecksums, block_count, from_hex, to_hex
from aggtree.storage.errors import DiskError, IndexFormatError
from aggtree.storage.format import (
    ARRAYS,
    DICTIONARIES,
    EXTENDED_VERSION,
    FORMAT,
    FORMAT_VERSION,
    MANIFEST,
    MAX_COUNT,
    OWN_IDS,
    TREE,
    TreeCounts,
    build_name,
)
from aggtree.storage.sealed_json import read_sealed, write_sealed
from aggtree.storage.vector_source import MAX_DIMENSION
from aggtree.storage.version import __version__

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_DTYPES = frozenset(dtype for spec in ARRAYS for dtype in spec.dtypes)
_BUILD = re.compile(r"[0-9a-f]{12}")


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
            path=_text(record["path"]),
            bytes=_count(record["bytes"]),
            blocks=from_hex(_text(record["crc32c"])),
            dtype=_text(record.get("dtype", "")),
            length=_count(record.get("length", 0)),
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
    """

    location: str
    files: tuple[FileRecord, ...]

    def to_json(self) -> dict[str, Json]:
        return {"location": self.location, "files": [record.to_json() for record in self.files]}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "RemoteCodes":
        made = cls(
            location=_text(record["location"]),
            files=tuple(FileRecord.from_json(item) for item in record["files"]),
        )
        if "://" not in made.location:
            raise ValueError(f"codes at {made.location[:80]!r}, which is no URL")
        for file in made.files:
            if not all(_NAME.fullmatch(part) for part in file.path.split("/")):
                raise ValueError(f"path {file.path[:80]!r} of remote codes")
        return made


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a committed index is.

    build : id of the build, 12 hexadecimal digits.
    rows : vectors in the tree.
    source_rows : rows of the source and of the code store; more than `rows` when some were left out.
    own_ids : whether the file `own_ids` gives the user's id of each row; the tree's ids are row numbers.
    words : sizes of the dictionaries.
    level_nodes, level_leaves : M + 1 counts each, of level 0 (the root) to level M.
    parameters, source : how the index was made, and the fingerprint of what from; for people and for resume.
    codes : where the codes are, if not among the files.
    metric : what queries are answered by: l2, ip or cosine.
    vectors : what opens the source again, for re-ranking; "" for an array, which nothing opens again.
    """

    build: str
    rows: int
    source_rows: int
    dimension: int
    words: tuple[int, ...]
    norm_bytes: int
    level_nodes: tuple[int, ...]
    level_leaves: tuple[int, ...]
    files: tuple[FileRecord, ...]
    own_ids: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    made_by: str = __version__
    codes: RemoteCodes | None = None
    vectors: str = ""
    metric: Metric = "l2"

    @property
    def version(self) -> int:
        """The lowest version of the format whose readers understand this index."""
        return EXTENDED_VERSION if self.own_ids or self.metric != "l2" else FORMAT_VERSION

    @property
    def layout(self) -> CodeLayout:
        return CodeLayout(self.words)

    @property
    def counts(self) -> TreeCounts:
        return TreeCounts(
            layout=self.layout,
            norm_bytes=self.norm_bytes,
            level_nodes=self.level_nodes,
            level_leaves=self.level_leaves,
        )

    @property
    def directory(self) -> str:
        """The build's directory below the index."""
        return build_name(self.build)

    def file(self, *parts: str) -> FileRecord:
        """The record of a file below the build's directory, such as `file("tree", "ids")`."""
        path = "/".join((self.directory, *parts))
        for record in self.files:
            if record.path == path:
                return record
        raise IndexFormatError(f"{MANIFEST}: names no file {path}")

    def tree_file(self, name: str) -> FileRecord:
        """The record of one of the tree's arrays."""
        return self.file(TREE, name)

    def to_json(self) -> dict[str, Json]:
        optional: dict[str, Json] = {"codes": self.codes.to_json()} if self.codes else {}
        optional |= {"vectors": self.vectors} if self.vectors else {}
        optional |= {"metric": self.metric} if self.metric != "l2" else {}
        return optional | {
            "format": FORMAT,
            "version": self.version,
            "made_by": self.made_by,
            "build": self.build,
            "rows": self.rows,
            "source_rows": self.source_rows,
            "own_ids": self.own_ids,
            "dimension": self.dimension,
            "words": list(self.words),
            "norm_bytes": self.norm_bytes,
            "level_nodes": list(self.level_nodes),
            "level_leaves": list(self.level_leaves),
            "parameters": self.parameters,
            "source": self.source,
            "block_bytes": BLOCK,
            "files": [record.to_json() for record in self.files],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Manifest":
        """The manifest a record describes; ValueError, KeyError or TypeError when it contradicts itself."""
        made = cls(
            build=_text(record["build"]),
            rows=_count(record["rows"]),
            source_rows=_count(record["source_rows"]),
            own_ids=_flag(record["own_ids"]),
            dimension=_count(record["dimension"]),
            words=_counts(record["words"]),
            norm_bytes=_count(record["norm_bytes"]),
            level_nodes=_counts(record["level_nodes"]),
            level_leaves=_counts(record["level_leaves"]),
            parameters=dict(record["parameters"]),
            source=dict(record["source"]),
            made_by=_text(record["made_by"]),
            files=tuple(FileRecord.from_json(item) for item in record["files"]),
            codes=RemoteCodes.from_json(record["codes"]) if "codes" in record else None,
            vectors=_text(record.get("vectors", "")),
            metric=_metric(record.get("metric", "l2")),
        )
        if record["block_bytes"] != BLOCK:
            raise ValueError(f"checksums of blocks of {record['block_bytes']} bytes")
        _check_counts(made)
        _check_paths(made)
        return made


def read_manifest(index: Path) -> Manifest:
    """The manifest of a committed index; IndexFormatError when there is none or it is damaged."""
    path = index / MANIFEST
    with explained(path):
        if not path.is_file():
            remedy = "the build is not finished, run it again" if index.is_dir() else "no such directory"
            raise IndexFormatError(f"{index}: no index here ({remedy})")
    record = read_sealed(path)
    if record.get("format") != FORMAT:
        raise IndexFormatError(f"{path}: not the manifest of an index")
    if record.get("version") not in (FORMAT_VERSION, EXTENDED_VERSION):
        remedy = f"this aggtree ({__version__}) reads versions 1 and 2; use the one that made it"
        raise IndexFormatError(f"{path}: format version {record.get('version')!r}; {remedy}")
    try:
        manifest = Manifest.from_json(record)
        if manifest.version != record["version"]:
            raise ValueError(f"version {record['version']} of an index of version {manifest.version}")
        return manifest
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IndexFormatError(f"{path}: contradicts itself: {error}") from error


def commit_manifest(index: Path, manifest: Manifest) -> None:
    """Make `manifest` the index: after checking that every file it names is there with its size."""
    _check_counts(manifest)
    _check_paths(manifest)
    check_files(index, manifest.files)
    write_sealed(index / MANIFEST, manifest.to_json())


def check_files(index: Path, files: Iterable[FileRecord]) -> None:
    """Compare names and sizes with the disk; IndexFormatError for the first that differs."""
    for record in files:
        problem = file_problem(index, record)
        if problem:
            raise IndexFormatError(f"{index / record.path}: {problem}")


def file_problem(index: Path, record: FileRecord) -> str:
    """What is wrong with a file's presence and size; "" for nothing."""
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
        return f"{status.st_size:,} bytes, the manifest says {record.bytes:,}: truncated or changed"
    return ""


def _check_counts(manifest: Manifest) -> None:
    AnnealingParams(words=manifest.words)  # its own checks of the sizes
    levels = len(manifest.words) + 1
    if len(manifest.level_nodes) != levels or len(manifest.level_leaves) != levels:
        raise ValueError(
            f"{levels} levels but {len(manifest.level_nodes)} and {len(manifest.level_leaves)} counts"
        )
    if manifest.level_nodes[0] != 1 or manifest.level_leaves[0] != 0:
        raise ValueError("level 0 is not one root without leaves")
    if manifest.norm_bytes not in (1, 2, 4):
        raise ValueError(f"norms of {manifest.norm_bytes} bytes")
    if sum(manifest.level_leaves) != manifest.rows or not 1 <= manifest.rows <= manifest.source_rows:
        raise ValueError(
            f"{manifest.rows} rows of {manifest.source_rows} in {sum(manifest.level_leaves)} leaves"
        )
    if not 1 <= manifest.dimension <= MAX_DIMENSION:
        raise ValueError(f"dimension {manifest.dimension}")
    counts, lengths = manifest.counts, manifest.counts.lengths()
    for spec in ARRAYS:
        record = manifest.tree_file(spec.name)
        allowed = (counts.offset_dtype,) if spec.name.endswith("_start") else spec.dtypes
        if record.dtype not in allowed or record.length != lengths[spec.name]:
            expected = f"{lengths[spec.name]} of {' or '.join(allowed)}"
            raise ValueError(f"{record.path} holds {record.length} {record.dtype}, expected {expected}")
    manifest.file(DICTIONARIES)
    if manifest.own_ids and manifest.file(OWN_IDS).bytes != 8 * manifest.source_rows:
        raise ValueError(f"{manifest.file(OWN_IDS).bytes} bytes of ids for {manifest.source_rows} rows")


def _check_paths(manifest: Manifest) -> None:
    if not _BUILD.fullmatch(manifest.build):
        raise ValueError(f"build {manifest.build[:40]!r}")
    seen: set[str] = set()
    for record in manifest.files:
        first, *rest = record.path.split("/")
        if first != manifest.directory or not rest or not all(_NAME.fullmatch(part) for part in rest):
            raise ValueError(f"path {record.path[:80]!r} is not in {manifest.directory}")
        if record.path in seen:
            raise ValueError(f"{record.path} is named twice")
        seen.add(record.path)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]} is no text")
    return value


def _metric(value: Any) -> Metric:
    for metric in METRICS:
        if value == metric:
            return metric
    raise ValueError(f"metric {str(value)[:40]!r}, expected {' or '.join(METRICS)}")


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{str(value)[:40]} is neither true nor false")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise ValueError(f"{str(value)[:40]} is no count")
    return value


def _counts(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{str(values)[:40]} is no list of counts")
    return tuple(_count(value) for value in values)
