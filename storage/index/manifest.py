"""The manifest of an index: its segments, its deleted rows, and the size and checksums of each file.

Renaming a new manifest into place is the commit. Nothing in a manifest is trusted when it is read:
counts must agree with each other and with the sizes of the files, and paths stay in the directory of
their build, so nothing behind `read_manifest` and `check_files` has to check again.

An index is one segment or more: the first build, and those that were appended to it. On disk the first
segment is recorded among the fields of the index itself, and `segments` lists those that follow, so an
index of one segment looks as it did before there were others:

    {format, version, made_by, dimension, words, ...,   what all segments share
     build, rows, files, ...,                           the first segment
     segments: [{build, rows, files, ...}, ...],        those that follow, if any
     live: {path, deleted, ...}}                        deleted rows, if any
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.params import Metric
from aggtree.storage.atomic import Json, explained
from aggtree.storage.checksums import BLOCK
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.file_record import FileRecord, LiveRows, SourcePiece, as_text, check_files
from aggtree.storage.index.format import (
    DICTIONARIES,
    EXTENDED_VERSION,
    FORMAT,
    FORMAT_VERSION,
    GROWN_VERSION,
    LIVE_PREFIX,
    MANIFEST,
    MAX_COUNT,
    PLANES_VERSION,
    TRANSFORMED_VERSION,
    VERSIONS,
)
from aggtree.storage.index.segment_manifest import SegmentManifest, check_segment
from aggtree.storage.sealed_json import read_sealed, write_sealed
from aggtree.storage.version import __version__
from aggtree.storage.work.directory import work_in

MOST_WORDS = 300
"""Characters of an error that may repeat what a manifest states."""
_LIVE = re.compile(LIVE_PREFIX + r"[0-9a-f]{8}")


@dataclass(frozen=True, kw_only=True)
class IndexManifest:
    """A committed index: its segments and its deleted rows.

    segments : at least one, in the order of their rows.
    live : rows of all segments that were not deleted; None when none was.
    made_by : version of aggtree that built the first segment.
    """

    segments: tuple[SegmentManifest, ...]
    live: LiveRows | None = None
    made_by: str = __version__

    @property
    def version(self) -> int:
        """The lowest format version that describes this index."""
        if self.first_segment.transformed:
            return TRANSFORMED_VERSION
        if self.first_segment.planes:
            return PLANES_VERSION
        if self.appended_segments or self.first_segment.pieces or self.live:
            return GROWN_VERSION
        return EXTENDED_VERSION if self.own_ids or self.metric != "l2" else FORMAT_VERSION

    @property
    def first_segment(self) -> SegmentManifest:
        """The first segment, made by `build`."""
        return self.segments[0]

    @property
    def appended_segments(self) -> tuple[SegmentManifest, ...]:
        """All segments but the first."""
        return self.segments[1:]

    @property
    def dimension(self) -> int:
        return self.first_segment.dimension

    @property
    def words(self) -> tuple[int, ...]:
        """Sizes of the dictionaries."""
        return self.first_segment.words

    @property
    def layout(self) -> CodeLayout:
        return self.first_segment.layout

    @property
    def metric(self) -> Metric:
        return self.first_segment.metric

    @property
    def own_ids(self) -> bool:
        """Whether rows have ids of the user."""
        return self.first_segment.own_ids

    @property
    def all_files(self) -> tuple[FileRecord, ...]:
        """The files of all segments, and that of deleted rows."""
        live = (self.live.file,) if self.live else ()
        return (*(record for segment in self.segments for record in segment.files), *live)

    @property
    def live_rows(self) -> int:
        """Vectors of all segments that were not deleted."""
        return sum(segment.rows for segment in self.segments) - (self.live.deleted if self.live else 0)

    @property
    def all_source_rows(self) -> int:
        """Number of rows of all sources; every row number is smaller."""
        return sum(segment.source_rows for segment in self.segments)

    @property
    def all_pieces(self) -> tuple[SourcePiece, ...]:
        """Every source of the index, in the order of the rows."""
        return tuple(piece for segment in self.segments for piece in segment.all_pieces)

    @property
    def identity(self) -> str:
        """12 hexadecimal digits that stand for the trees: the id of the only build, or a hash of all ids."""
        if not self.appended_segments:
            return self.first_segment.build
        builds = "".join(segment.build for segment in self.segments)
        return hashlib.sha256(builds.encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Json]:
        first = self.first_segment
        optional: dict[str, Json] = {"metric": self.metric} if self.metric != "l2" else {}
        if self.appended_segments:
            optional["segments"] = [segment.to_json() for segment in self.appended_segments]
        optional |= {"live": self.live.to_json()} if self.live else {}
        optional |= {"planes": True} if first.planes else {}
        optional |= {"transformed": True} if first.transformed else {}
        return (
            optional
            | first.to_json()
            | {
                "format": FORMAT,
                "version": self.version,
                "made_by": self.made_by,
                "own_ids": first.own_ids,
                "dimension": first.dimension,
                "words": list(first.words),
                "norm_bytes": first.norm_bytes,
                "block_bytes": BLOCK,
            }
        )

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "IndexManifest":
        """The manifest a record describes; ValueError, KeyError or TypeError when it contradicts itself."""
        if record["block_bytes"] != BLOCK:
            raise ValueError(f"checksums of blocks of {repr(record['block_bytes'])[:40]} bytes")
        appended = record.get("segments", ())
        for item in appended:
            if {"segments", "live"} & item.keys():
                raise ValueError("a segment with segments or deleted rows of its own")
        made = cls(
            segments=tuple(SegmentManifest.from_json(item, index=record) for item in (record, *appended)),
            live=LiveRows.from_json(record["live"]) if "live" in record else None,
            made_by=as_text(record["made_by"]),
        )
        _check(made)
        return made


def read_manifest(index: Path) -> IndexManifest:
    """The manifest of a committed index; IndexFormatError when there is none or it is damaged."""
    path = index / MANIFEST
    with explained(path):
        if not path.is_file():
            raise IndexFormatError(f"{index}: no index here ({_what_is_there(index)})")
    record = read_sealed(path)
    if record.get("format") != FORMAT:
        raise IndexFormatError(f"{path}: not the manifest of an index")
    if record.get("version") not in VERSIONS:
        remedy = f"this aggtree ({__version__}) reads versions 1 to {VERSIONS[-1]}; use the one that made it"
        raise IndexFormatError(f"{path}: format version {record.get('version')!r}; {remedy}")
    try:
        manifest = IndexManifest.from_json(record)
        if manifest.version != record["version"]:
            raise ValueError(f"version {record['version']} of an index of version {manifest.version}")
        return manifest
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = " ".join(str(error).split())[:MOST_WORDS]
        raise IndexFormatError(f"{path}: contradicts itself: {what}") from error


def _what_is_there(index: Path) -> str:
    """What a directory without a manifest is instead of an index."""
    if any(work_in(index)):
        return "the build is not finished, run it again"
    if index.is_dir():
        return f"a directory without {MANIFEST}; name that of an index, or build one"
    return "a file, not a directory" if index.exists() else "no such directory"


def commit_manifest(index: Path, manifest: IndexManifest) -> None:
    """Make `manifest` the index: after checking that every file it names is there with its size."""
    _check(manifest)
    check_files(index, manifest.all_files)
    write_sealed(index / MANIFEST, manifest.to_json())


def _check(manifest: IndexManifest) -> None:
    """ValueError when a manifest, or one of its segments, contradicts itself or the others."""
    segments = manifest.segments
    for segment in segments:
        check_segment(segment)
    if len({segment.build for segment in segments}) < len(segments):
        raise ValueError("a build that is listed twice")
    if len({segment.file(DICTIONARIES).blocks for segment in segments}) > 1:
        raise ValueError("segments of different dictionaries")
    shared = {
        (one.own_ids, one.dimension, one.words, one.norm_bytes, one.planes, one.transformed, one.metric)
        for one in segments
    }
    if len(shared) > 1:
        raise ValueError("segments of different kinds")
    for before, after in pairwise(segments):
        if after.first_row != before.first_row + before.source_rows:
            raise ValueError(f"a segment from row {after.first_row} on behind row {before.first_row}")
    if segments[0].first_row:
        raise ValueError(f"a first segment that begins at row {segments[0].first_row}")
    if manifest.all_source_rows >= MAX_COUNT:
        raise ValueError(f"{manifest.all_source_rows} rows")
    live = manifest.live
    if live is None:
        return
    if not _LIVE.fullmatch(live.file.path) or live.file.bytes != -(-manifest.all_source_rows // 8):
        raise ValueError(f"{live.file.bytes} bytes of {live.file.path[:80]!r} for the existing rows")
    if manifest.live_rows < 0 or live.deleted == 0:
        raise ValueError(f"{live.deleted} deleted rows")
