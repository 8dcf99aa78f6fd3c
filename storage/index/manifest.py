"""The manifest: what a committed index is, and the size and checksums of each of its files.

Renaming a new manifest into place is the commit. Nothing in a manifest is trusted when it is read:
counts must agree with each other and with the sizes of the files, and paths stay in the build's
directory, so nothing behind `read_manifest` and `check_files` has to ask again.

An index that has grown is a first build and the segments that were appended to it, each of which is
described as the first one is.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.params import AnnealingParams, Metric
from aggtree.storage.atomic import Json, explained
from aggtree.storage.checksums import BLOCK
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.file_record import (
    NAME,
    FileRecord,
    LiveRows,
    RemoteCodes,
    SourcePiece,
    as_count,
    as_counts,
    as_flag,
    as_metric,
    as_number,
    as_text,
    check_files,
)
from aggtree.storage.index.format import (
    ARRAYS,
    CODES,
    DICTIONARIES,
    EXTENDED_VERSION,
    FORMAT,
    FORMAT_VERSION,
    GROWN_VERSION,
    LIVE_PREFIX,
    MANIFEST,
    MAX_COUNT,
    OWN_IDS,
    TREE,
    VERSIONS,
    TreeCounts,
    build_name,
)
from aggtree.storage.sealed_json import read_sealed, write_sealed
from aggtree.storage.sources.base import MAX_DIMENSION
from aggtree.storage.version import __version__

_BUILD = re.compile(r"[0-9a-f]{12}")
_LIVE = re.compile(LIVE_PREFIX + r"[0-9a-f]{8}")
_OF_ALL_SEGMENTS = ("made_by", "own_ids", "dimension", "words", "norm_bytes", "metric", "block_bytes")
"""Fields that a segment has from the index it belongs to."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a committed index is; or one segment of an index that has grown.

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
    first_row : row of the index that is the first of this build; 0 but for appended segments.
    pieces : the sources of a build that was made from several, in the order of their rows.
    segments : builds that were appended to this one, in the order of their rows.
    live : rows of all segments that were not deleted; None when none was.
    distortion : mean squared error of the rows of an appended segment, from a sample.
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
    first_row: int = 0
    pieces: tuple[SourcePiece, ...] = ()
    segments: "tuple[Manifest, ...]" = ()
    live: LiveRows | None = None
    distortion: float | None = None

    @property
    def version(self) -> int:
        """The lowest version of the format whose readers understand this index."""
        if self.segments or self.pieces or self.live:
            return GROWN_VERSION
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

    @property
    def parts(self) -> "tuple[Manifest, ...]":
        """All segments, the first build being one."""
        return (self, *self.segments)

    @property
    def all_files(self) -> tuple[FileRecord, ...]:
        """The files of all segments."""
        live = (self.live.file,) if self.live else ()
        return (*(record for part in self.parts for record in part.files), *live)

    @property
    def live_rows(self) -> int:
        """Vectors of all segments that were not deleted."""
        return sum(part.rows for part in self.parts) - (self.live.deleted if self.live else 0)

    @property
    def all_source_rows(self) -> int:
        """Rows of all sources: row numbers of the index are below."""
        return sum(part.source_rows for part in self.parts)

    @property
    def all_pieces(self) -> tuple[SourcePiece, ...]:
        """Every source of the index, in the order of the rows."""
        return tuple(piece for part in self.parts for piece in part.own_pieces)

    @property
    def own_pieces(self) -> tuple[SourcePiece, ...]:
        """The sources of this build alone."""
        whole = SourcePiece(
            first_row=self.first_row, rows=self.source_rows, source=self.source, vectors=self.vectors
        )
        return self.pieces or (whole,)

    @property
    def code_bytes(self) -> int:
        """Bytes of the store of this build's codes, wherever it is."""
        inside = f"{self.directory}/{CODES}/"
        here = [record for record in self.files if record.path.startswith(inside)]
        return sum(record.bytes for record in (self.codes.files if self.codes else here))

    @property
    def identity(self) -> str:
        """12 hexadecimal digits that stand for the trees: those of the build, or of all builds."""
        if not self.segments:
            return self.build
        return hashlib.sha256("".join(part.build for part in self.parts).encode()).hexdigest()[:12]

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
        optional: dict[str, Json] = {"metric": self.metric} if self.metric != "l2" else {}
        optional |= {"segments": [segment._own_json() for segment in self.segments]} if self.segments else {}
        optional |= {"live": self.live.to_json()} if self.live else {}
        return (
            optional
            | self._own_json()
            | {
                "format": FORMAT,
                "version": self.version,
                "made_by": self.made_by,
                "own_ids": self.own_ids,
                "dimension": self.dimension,
                "words": list(self.words),
                "norm_bytes": self.norm_bytes,
                "block_bytes": BLOCK,
            }
        )

    def _own_json(self) -> dict[str, Json]:
        """What a segment does not share with the index."""
        optional: dict[str, Json] = {"codes": self.codes.to_json()} if self.codes else {}
        optional |= {"vectors": self.vectors} if self.vectors else {}
        optional |= {"pieces": [piece.to_json() for piece in self.pieces]} if self.pieces else {}
        optional |= {"first_row": self.first_row} if self.first_row else {}
        optional |= {"distortion": self.distortion} if self.distortion is not None else {}
        return optional | {
            "build": self.build,
            "rows": self.rows,
            "source_rows": self.source_rows,
            "level_nodes": list(self.level_nodes),
            "level_leaves": list(self.level_leaves),
            "parameters": self.parameters,
            "source": self.source,
            "files": [record.to_json() for record in self.files],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Manifest":
        """The manifest a record describes; ValueError, KeyError or TypeError when it contradicts itself."""
        if record["block_bytes"] != BLOCK:
            raise ValueError(f"checksums of blocks of {record['block_bytes']} bytes")
        shared = {name: record[name] for name in _OF_ALL_SEGMENTS if name in record}
        made = cls(
            build=as_text(record["build"]),
            rows=as_count(record["rows"]),
            source_rows=as_count(record["source_rows"]),
            own_ids=as_flag(record["own_ids"]),
            dimension=as_count(record["dimension"]),
            words=as_counts(record["words"]),
            norm_bytes=as_count(record["norm_bytes"]),
            level_nodes=as_counts(record["level_nodes"]),
            level_leaves=as_counts(record["level_leaves"]),
            parameters=dict(record["parameters"]),
            source=dict(record["source"]),
            made_by=as_text(record["made_by"]),
            files=tuple(FileRecord.from_json(item) for item in record["files"]),
            codes=RemoteCodes.from_json(record["codes"]) if "codes" in record else None,
            vectors=as_text(record.get("vectors", "")),
            metric=as_metric(record.get("metric", "l2")),
            first_row=as_count(record.get("first_row", 0)),
            pieces=tuple(SourcePiece.from_json(item) for item in record.get("pieces", ())),
            segments=tuple(
                cls.from_json({**_without_segments(item), **shared}) for item in record.get("segments", ())
            ),
            live=LiveRows.from_json(record["live"]) if "live" in record else None,
            distortion=as_number(record["distortion"]) if "distortion" in record else None,
        )
        _check(made)
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
    if record.get("version") not in VERSIONS:
        remedy = f"this aggtree ({__version__}) reads versions 1 to {VERSIONS[-1]}; use the one that made it"
        raise IndexFormatError(f"{path}: format version {record.get('version')!r}; {remedy}")
    try:
        manifest = Manifest.from_json(record)
        if manifest.first_row:
            raise ValueError(f"a first build that begins at row {manifest.first_row}")
        if manifest.version != record["version"]:
            raise ValueError(f"version {record['version']} of an index of version {manifest.version}")
        return manifest
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IndexFormatError(f"{path}: contradicts itself: {error}") from error


def commit_manifest(index: Path, manifest: Manifest) -> None:
    """Make `manifest` the index: after checking that every file it names is there with its size."""
    _check(manifest)
    check_files(index, manifest.all_files)
    write_sealed(index / MANIFEST, manifest.to_json())


def _without_segments(record: Mapping[str, Any]) -> dict[str, Any]:
    """A segment has no segments of its own, and deleted rows are told once."""
    if {"segments", "live"} & record.keys():
        raise ValueError("a segment with segments or deleted rows of its own")
    return dict(record)


def _check(manifest: Manifest) -> None:
    """ValueError when a manifest, or one of its segments, contradicts itself or the others."""
    parts = manifest.parts
    for part in parts:
        _check_counts(part)
        _check_paths(part)
        _check_pieces(part)
    if len({part.build for part in parts}) < len(parts):
        raise ValueError("a build that is there twice")
    if len({part.file(DICTIONARIES).blocks for part in parts}) > 1:
        raise ValueError("segments of different dictionaries")
    shared = {(part.own_ids, part.dimension, part.words, part.norm_bytes, part.metric) for part in parts}
    if len(shared) > 1:
        raise ValueError("segments of different kinds")
    for before, after in pairwise(parts):
        if after.first_row != before.first_row + before.source_rows:
            raise ValueError(f"a segment from row {after.first_row} on behind row {before.first_row}")
    if manifest.all_source_rows >= MAX_COUNT:
        raise ValueError(f"{manifest.all_source_rows} rows")
    live = manifest.live
    if live is None:
        return
    if not _LIVE.fullmatch(live.file.path) or live.file.bytes != -(-manifest.all_source_rows // 8):
        raise ValueError(f"{live.file.bytes} bytes of {live.file.path[:80]!r} for the rows that are there")
    if manifest.live_rows < 0 or live.deleted == 0:
        raise ValueError(f"{live.deleted} deleted rows")


def _check_pieces(manifest: Manifest) -> None:
    row = manifest.first_row
    for piece in manifest.pieces:
        if piece.first_row != row or piece.rows == 0:
            raise ValueError(f"a source of {piece.rows} rows from row {piece.first_row} on, expected {row}")
        row += piece.rows
    if manifest.pieces and (row != manifest.first_row + manifest.source_rows or len(manifest.pieces) == 1):
        raise ValueError(f"{len(manifest.pieces)} sources of {row - manifest.first_row} rows")


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
    # Readers make room for a bit of each row of the source, so a row that is claimed must have its code.
    if manifest.code_bytes < manifest.source_rows * manifest.layout.width:
        raise ValueError(f"{manifest.source_rows} rows with {manifest.code_bytes} bytes of codes")


def _check_paths(manifest: Manifest) -> None:
    if not _BUILD.fullmatch(manifest.build):
        raise ValueError(f"build {manifest.build[:40]!r}")
    seen: set[str] = set()
    for record in manifest.files:
        first, *rest = record.path.split("/")
        if first != manifest.directory or not rest or not all(NAME.fullmatch(part) for part in rest):
            raise ValueError(f"path {record.path[:80]!r} is not in {manifest.directory}")
        if record.path in seen:
            raise ValueError(f"{record.path} is named twice")
        seen.add(record.path)
