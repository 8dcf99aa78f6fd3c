"""What a manifest states of one segment: one build, its counts, its sources and its files.

Nothing in a record is trusted: `check_segment` compares counts with each other and with the sizes of the
files, and keeps every path in the build's directory.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.params import AnnealingParams, Metric
from aggtree.engine.tree.planes import allows_planes
from aggtree.storage.atomic import Json
from aggtree.storage.errors import IndexFormatError, SourceError
from aggtree.storage.index.file_record import (
    NAME,
    FileRecord,
    RemoteCodes,
    SourcePiece,
    as_count,
    as_counts,
    as_flag,
    as_metric,
    as_number,
    as_text,
)
from aggtree.storage.index.format import (
    ARRAYS,
    CODES,
    DICTIONARIES,
    MANIFEST,
    OWN_IDS,
    TREE,
    TreeCounts,
    build_name,
)
from aggtree.storage.places import may_open, refusal
from aggtree.storage.sources.base import MAX_DIMENSION

_BUILD = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True, kw_only=True)
class SegmentManifest:
    """One segment of an index: a build and the rows it holds.

    build : id of the build, 12 hexadecimal digits.
    rows : vectors in the tree.
    source_rows : rows of the source and of the code store; more than `rows` when some were left out.
    dimension, words, norm_bytes, planes, transformed, metric, own_ids : the same for all segments.
        words : sizes of the dictionaries.
        planes : whether leaves are stored in planes.
        transformed : whether vectors are moved or scaled before they are quantized, see the dictionaries.
        metric : distance of queries: l2, ip or cosine.
        own_ids : whether the file `own_ids` gives the user's id of each row; the tree's ids are row numbers.
    level_nodes, level_leaves : M + 1 counts each, of level 0 (the root) to level M.
    files : all files in the build's directory.
    parameters, source : parameters of the build and fingerprint of its source, for people and to resume.
    codes : where the codes are, if not among the files.
    vectors : what opens the source again, for re-ranking; "" for an array, which nothing opens again.
    vectors_seal : of the user who named `vectors`; see `storage/places.py`.
    first_row : row of the index that is the first of this segment.
    pieces : the sources of a build that was made from several, in the order of their rows.
    distortion : mean squared error, of the first segment's training rows and of a sample of an appended
        segment's rows; None when it was not measured.
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
    planes: bool = False
    transformed: bool = False
    own_ids: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    codes: RemoteCodes | None = None
    vectors: str = ""
    vectors_seal: str = ""
    metric: Metric = "l2"
    first_row: int = 0
    pieces: tuple[SourcePiece, ...] = ()
    distortion: float | None = None

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
            planes=self.planes,
        )

    @property
    def directory(self) -> str:
        """The build's directory below the index."""
        return build_name(self.build)

    @property
    def all_pieces(self) -> tuple[SourcePiece, ...]:
        """Every source of the segment, also if it is a single one."""
        whole = SourcePiece(
            first_row=self.first_row,
            rows=self.source_rows,
            source=self.source,
            vectors=self.vectors,
            vectors_seal=self.vectors_seal,
        )
        return self.pieces or (whole,)

    def codes_at(self, index: Path) -> str | Path:
        """The code store of this segment of `index`, to be opened: a URL, or a path in the build's directory.

        SourceError for a URL that may not be opened automatically.
        """
        if self.codes is None:
            return index / self.directory / CODES
        if not may_open(self.codes.location, self.codes.seal):
            remedy = "build the index again with `codes`"
            raise SourceError(refusal(index, "codes", self.codes.location, remedy))
        return self.codes.location

    @property
    def code_bytes(self) -> int:
        """Bytes of the store of this segment's codes, wherever it is."""
        inside = f"{self.directory}/{CODES}/"
        here = [record for record in self.files if record.path.startswith(inside)]
        return sum(record.bytes for record in (self.codes.files if self.codes else here))

    def file(self, *names: str) -> FileRecord:
        """The record of a file below the build's directory, such as `file("tree", "ids")`."""
        path = "/".join((self.directory, *names))
        for record in self.files:
            if record.path == path:
                return record
        raise IndexFormatError(f"{MANIFEST}: names no file {path}")

    def tree_file(self, name: str) -> FileRecord:
        """The record of one of the tree's arrays."""
        return self.file(TREE, name)

    def to_json(self) -> dict[str, Json]:
        """What is recorded of this segment alone; what all segments share is recorded once per index."""
        optional: dict[str, Json] = {"codes": self.codes.to_json()} if self.codes else {}
        optional |= {"vectors": self.vectors} if self.vectors else {}
        optional |= {"vectors_seal": self.vectors_seal} if self.vectors_seal else {}
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
    def from_json(cls, record: Mapping[str, Any], index: Mapping[str, Any]) -> "SegmentManifest":
        """The segment that `record` describes, with what the record of its `index` states of all segments."""
        return cls(
            build=as_text(record["build"]),
            rows=as_count(record["rows"]),
            source_rows=as_count(record["source_rows"]),
            own_ids=as_flag(index["own_ids"]),
            dimension=as_count(index["dimension"]),
            words=as_counts(index["words"]),
            norm_bytes=as_count(index["norm_bytes"]),
            planes=as_flag(index.get("planes", False)),
            transformed=as_flag(index.get("transformed", False)),
            level_nodes=as_counts(record["level_nodes"]),
            level_leaves=as_counts(record["level_leaves"]),
            parameters=dict(record["parameters"]),
            source=dict(record["source"]),
            files=tuple(FileRecord.from_json(item) for item in record["files"]),
            codes=RemoteCodes.from_json(record["codes"]) if "codes" in record else None,
            vectors=as_text(record.get("vectors", "")),
            vectors_seal=as_text(record.get("vectors_seal", "")),
            metric=as_metric(index.get("metric", "l2")),
            first_row=as_count(record.get("first_row", 0)),
            pieces=tuple(SourcePiece.from_json(item) for item in record.get("pieces", ())),
            distortion=as_number(record["distortion"]) if "distortion" in record else None,
        )


def check_segment(segment: SegmentManifest) -> None:
    """ValueError when a segment contradicts itself."""
    _check_paths(segment)
    _check_counts(segment)
    _check_pieces(segment)


def _check_counts(segment: SegmentManifest) -> None:
    AnnealingParams(words=segment.words)  # its own checks of the sizes
    levels = len(segment.words) + 1
    if len(segment.level_nodes) != levels or len(segment.level_leaves) != levels:
        raise ValueError(
            f"{levels} levels but {len(segment.level_nodes)} and {len(segment.level_leaves)} counts"
        )
    if segment.level_nodes[0] != 1 or segment.level_leaves[0] != 0:
        raise ValueError("level 0 is not one root without leaves")
    if segment.norm_bytes not in ((0, 1) if segment.planes else (1, 2, 4)):
        raise ValueError(f"norms of {segment.norm_bytes} bytes")
    if segment.planes and not (allows_planes(segment.layout) and segment.level_leaves[1] == segment.rows):
        raise ValueError("leaves in planes behind long dictionaries, or below level 1")
    if sum(segment.level_leaves) != segment.rows or not 1 <= segment.rows <= segment.source_rows:
        raise ValueError(
            f"{segment.rows} rows of {segment.source_rows} in {sum(segment.level_leaves)} leaves"
        )
    if not 1 <= segment.dimension <= MAX_DIMENSION:
        raise ValueError(f"dimension {segment.dimension}")
    counts, lengths = segment.counts, segment.counts.lengths()
    for spec in ARRAYS:
        record = segment.tree_file(spec.name)
        allowed = (counts.offset_dtype,) if spec.name.endswith("_start") else spec.dtypes
        if record.dtype not in allowed or record.length != lengths[spec.name]:
            expected = f"{lengths[spec.name]} of {' or '.join(allowed)}"
            raise ValueError(f"{record.path} holds {record.length} {record.dtype}, expected {expected}")
    segment.file(DICTIONARIES)
    if segment.own_ids and segment.file(OWN_IDS).bytes != 8 * segment.source_rows:
        raise ValueError(f"{segment.file(OWN_IDS).bytes} bytes of ids for {segment.source_rows} rows")
    # Readers make room for a bit of each row of the source, so a row that is claimed must have its code.
    if segment.code_bytes < segment.source_rows * segment.layout.width:
        raise ValueError(f"{segment.source_rows} rows with {segment.code_bytes} bytes of codes")


def _check_paths(segment: SegmentManifest) -> None:
    if not _BUILD.fullmatch(segment.build):
        raise ValueError(f"build {segment.build[:40]!r}")
    seen: set[str] = set()
    for record in segment.files:
        first, *rest = record.path.split("/")
        if first != segment.directory or not rest or not all(NAME.fullmatch(part) for part in rest):
            raise ValueError(f"path {record.path[:80]!r} is not in {segment.directory}")
        if record.path in seen:
            raise ValueError(f"{record.path} is named twice")
        seen.add(record.path)


def _check_pieces(segment: SegmentManifest) -> None:
    row = segment.first_row
    for piece in segment.pieces:
        if piece.first_row != row or piece.rows == 0:
            raise ValueError(f"a source of {piece.rows} rows from row {piece.first_row} on, expected {row}")
        row += piece.rows
    if segment.pieces and (row != segment.first_row + segment.source_rows or len(segment.pieces) == 1):
        raise ValueError(f"{len(segment.pieces)} sources of {row - segment.first_row} rows")
