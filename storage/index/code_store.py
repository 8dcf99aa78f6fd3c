"""Codes on disk: a zarr v3 array (rows, width) uint8 in shards, readable with plain `zarr.open`.

A shard holds about a million rows in inner chunks of 100,000, each with its CRC-32C. zarr renames
what it writes but does not sync it, so a shard is encoded by zarr in memory and its bytes go to
disk by `atomic`, under the key zarr would have used. A shard is one partition of the encoding job:
written by one task, never in part, recorded with its checksums.

zarr is imported where it is used: a process that only answers queries never loads it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.atomic import Json, canonical, make_directory, read_file, write_bytes
from aggtree.storage.checksums import BlockChecksums, from_hex, to_hex
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.file_record import FileRecord
from aggtree.storage.index.format import MAX_COUNT
from aggtree.storage.remote_files import RemoteFiles, local_path

METADATA = "zarr.json"
BUILD_ATTRIBUTE = "aggtree_build"
SHARD_ROWS = 1_000_000
CHUNK_ROWS = 100_000
MAX_CHUNK_BYTES = 1 << 30
"""zarr makes room for a whole chunk before it reads one."""


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """A shard that was written, as recorded by the job and by the manifest."""

    shard: int
    rows: int
    bytes: int
    crc: int
    blocks: tuple[int, ...]

    def to_json(self) -> dict[str, Json]:
        numbers: dict[str, Json] = {
            "shard": self.shard,
            "rows": self.rows,
            "bytes": self.bytes,
            "crc": self.crc,
        }
        return numbers | {"crc32c": to_hex(self.blocks)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "ShardRecord":
        numbers = {name: int(record[name]) for name in ("shard", "rows", "bytes", "crc")}
        return cls(**numbers, blocks=from_hex(record["crc32c"]))


class _Files(Protocol):
    """Access to the store's files, in a local directory or behind an fsspec URL."""

    def put(self, key: str, data: bytes) -> None: ...
    def get(self, key: str) -> bytes: ...
    def sizes(self, keys: list[str]) -> dict[str, int]: ...


class CodeStore:
    """An open code store. Shard i holds rows i·shard_rows .. min((i + 1)·shard_rows, rows).

    build : id of the build whose codes these are, which a remote store records; otherwise "".
    """

    def __init__(
        self,
        location: str | PathLike[str],
        rows: int,
        width: int,
        shard_rows: int,
        chunk_rows: int,
        build: str = "",
    ) -> None:
        self.location = str(location)
        self.build = build
        self.rows = rows
        self.width = width
        self.shard_rows = shard_rows
        self.chunk_rows = chunk_rows
        self._files = _files(self.location)
        self._copied: tuple[range, Any] = range(0), None

    @classmethod
    def open(cls, location: str | PathLike[str]) -> "CodeStore":
        """Open the store at a local path or fsspec URL; IndexFormatError when it is not one of ours."""
        text = _files(str(location)).get(METADATA)
        try:
            rows, width, shard_rows, chunk_rows = _parse_metadata(text)
            build = str(json.loads(text).get("attributes", {}).get(BUILD_ATTRIBUTE, ""))
        except (ValueError, AttributeError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise IndexFormatError(f"{location}/{METADATA}: not the metadata of a code store") from error
        return cls(location, rows, width, shard_rows, chunk_rows, build)

    @property
    def shards(self) -> int:
        """Number of shards."""
        return -(-self.rows // self.shard_rows)

    def shard_range(self, shard: int) -> tuple[int, int]:
        """First row and end of a shard."""
        if not 0 <= shard < self.shards:
            raise ValueError(f"shard {shard}: {self.location} has {self.shards}")
        return shard * self.shard_rows, min((shard + 1) * self.shard_rows, self.rows)

    def write_shard(self, shard: int, codes: NDArray[np.uint8]) -> ShardRecord:
        """Write all rows (r, width) uint8 of a shard; it exists completely or not at all."""
        start, stop = self.shard_range(shard)
        if codes.shape != (stop - start, self.width) or codes.dtype != np.uint8:
            expected = f"uint8 ({stop - start}, {self.width})"
            raise ValueError(f"shard {shard}: codes {codes.dtype}{codes.shape}, expected {expected}")
        data = _encode(codes, self.shard_rows, self.chunk_rows)
        self._files.put(shard_key(shard), data)
        return _shard_record(shard, stop - start, data)

    def present(self, records: Mapping[int, ShardRecord]) -> set[int]:
        """The recorded shards whose files exist with their size; cheap."""
        sizes = self._files.sizes([shard_key(shard) for shard in records])
        return {shard for shard, record in records.items() if sizes.get(shard_key(shard)) == record.bytes}

    def check_shard(self, record: ShardRecord) -> bool:
        """Whether every byte of the shard matches its checksum."""
        return bool(self.present({record.shard: record})) and self.recomputed_record(record.shard) == record

    def recomputed_record(self, shard: int) -> ShardRecord:
        """The record of a shard, computed from its stored bytes."""
        start, stop = self.shard_range(shard)
        return _shard_record(shard, stop - start, self._files.get(shard_key(shard)))

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Codes (stop - start, width) uint8 of a range of rows; the checksums of the chunks are verified."""
        if not 0 <= start <= stop <= self.rows:
            raise ValueError(f"rows {start}..{stop}: {self.location} has {self.rows}")
        shards = range(start // self.shard_rows, -(-stop // self.shard_rows))
        sizes = self._files.sizes([shard_key(shard) for shard in shards])
        for shard in shards:
            # zarr gives zeros for a shard that is not there.
            if shard_key(shard) not in sizes:
                raise IndexFormatError(f"{self.location}/{shard_key(shard)}: missing; {self._remedy(shard)}")
        from zarr import open_array

        place = self._zarr_place(shards)
        try:
            return np.asarray(open_array(place, mode="r")[start:stop], np.uint8)
        except Exception as error:  # zarr's codecs raise many kinds for damaged bytes
            first, last = start // self.shard_rows, max(start, stop - 1) // self.shard_rows
            name = shard_key(first) if first == last else f"{shard_key(first)} to {shard_key(last)}"
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise IndexFormatError(
                f"{self.location}/{name}: damaged ({reason}); {self._remedy(first)}"
            ) from error

    def _zarr_place(self, shards: range) -> Any:
        """Where zarr reads these shards: the local directory, or a copy of remote objects in memory.

        The last copy is kept, because a shard is often read in parts.
        """
        if isinstance(self._files, LocalFiles):
            return self._files.directory
        if self._copied[0] != shards:
            from zarr.core.buffer import default_buffer_prototype
            from zarr.storage import MemoryStore

            wrap = default_buffer_prototype().buffer.from_bytes
            keys = (METADATA, *map(shard_key, shards))
            self._copied = shards, MemoryStore({key: wrap(self._files.get(key)) for key in keys})
        return self._copied[1]

    def file_records(self, directory: str, records: Mapping[int, ShardRecord]) -> Iterator[FileRecord]:
        """Manifest entries of the store, which lies at `directory` below the index, one record per shard.

        A store that is not in its index has no such directory: the paths are then those in the store.
        """
        prefix = f"{directory}/" if directory else ""
        checksums = BlockChecksums()
        checksums.add(self._files.get(METADATA))
        yield FileRecord.of(f"{prefix}{METADATA}", checksums)
        for shard in range(self.shards):
            record = records[shard]
            yield FileRecord(path=f"{prefix}{shard_key(shard)}", bytes=record.bytes, blocks=record.blocks)

    def bad_blocks(self, record: FileRecord) -> list[int]:
        """Blocks of a file, named by its path in the store, whose checksums do not match."""
        checksums = BlockChecksums()
        checksums.add(self._files.get(record.path))
        if checksums.bytes != record.bytes:
            return [-1]
        pairs = zip(checksums.blocks, record.blocks, strict=True)
        return [number for number, (found, expected) in enumerate(pairs) if found != expected]

    def _remedy(self, shard: int) -> str:
        start, stop = self.shard_range(shard)
        return f"encode rows {start} to {stop} again"


def create_code_store(
    location: str | PathLike[str],
    rows: int,
    width: int,
    shard_rows: int = SHARD_ROWS,
    chunk_rows: int = CHUNK_ROWS,
    build: str = "",
) -> CodeStore:
    """Make an empty store at a local path or fsspec URL; fewer rows than a chunk become one small chunk.

    build : id of the build, kept in the metadata of a store that is not inside its index.
    """
    if rows < 1 or width < 1 or chunk_rows < 1 or shard_rows % chunk_rows or shard_rows < 1:
        raise ValueError(
            f"code store of {rows} by {width} in shards of {shard_rows} and chunks of {chunk_rows} rows"
        )
    chunk_rows = min(chunk_rows, rows)
    shard_rows = min(shard_rows, -(-rows // chunk_rows) * chunk_rows) // chunk_rows * chunk_rows
    metadata = _metadata(rows, width, shard_rows, chunk_rows)
    metadata["attributes"] = {BUILD_ATTRIBUTE: build} if build else {}
    _files(str(location)).put(METADATA, canonical(metadata))
    return CodeStore(location, rows, width, shard_rows, chunk_rows, build)


def shard_key(shard: int) -> str:
    """Name of a shard's file in the store."""
    return f"c/{shard}/0"


def _shard_record(shard: int, rows: int, data: bytes) -> ShardRecord:
    checksums = BlockChecksums()
    checksums.add(data)
    return ShardRecord(shard=shard, rows=rows, bytes=len(data), crc=checksums.crc, blocks=checksums.blocks)


def _metadata(rows: int, width: int, shard_rows: int, chunk_rows: int) -> dict[str, Json]:
    """The content of zarr.json; written here so that its bytes do not depend on the release of zarr."""
    checksum: Json = {"name": "crc32c"}
    sharding: dict[str, Json] = {
        "chunk_shape": [chunk_rows, width],
        "codecs": [{"name": "bytes"}, checksum],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, checksum],
        "index_location": "end",
    }
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [rows, width],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [shard_rows, width]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "storage_transformers": [],
    }


def _encode(codes: NDArray[np.uint8], shard_rows: int, chunk_rows: int) -> bytes:
    """zarr's bytes of a shard that holds `codes` from its first row on."""
    from zarr import create_array
    from zarr.codecs import Crc32cCodec
    from zarr.storage import MemoryStore

    store: dict[str, Any] = {}
    array = create_array(
        MemoryStore(store),
        shape=codes.shape,
        dtype="uint8",
        shards=(shard_rows, codes.shape[1]),
        chunks=(chunk_rows, codes.shape[1]),
        compressors=[Crc32cCodec()],
        fill_value=0,
        zarr_format=3,
        config={"write_empty_chunks": True},  # a chunk of zeros is data like any other
    )
    array[:] = codes
    return bytes(store[shard_key(0)].to_bytes())


def _parse_metadata(text: bytes) -> tuple[int, int, int, int]:
    """Rows, width, rows of a shard and of a chunk; any exception if this is not a code store."""
    metadata = json.loads(text)
    (rows, width), (shard_rows, shard_width) = (
        metadata["shape"],
        metadata["chunk_grid"]["configuration"]["chunk_shape"],
    )
    (sharding,) = metadata["codecs"]
    chunk_rows, chunk_width = sharding["configuration"]["chunk_shape"]
    inner = [codec["name"] for codec in sharding["configuration"]["codecs"]]
    kind = (metadata["zarr_format"], metadata["node_type"], metadata["data_type"], sharding["name"], inner)
    if kind != (3, "array", "uint8", "sharding_indexed", ["bytes", "crc32c"]):
        raise ValueError(kind)
    if metadata["chunk_key_encoding"] != {"name": "default", "configuration": {"separator": "/"}}:
        raise ValueError(metadata["chunk_key_encoding"])
    counts = (rows, width, shard_rows, chunk_rows)
    if (
        any(type(count) is not int or not 0 < count < MAX_COUNT for count in counts)
        or shard_rows % chunk_rows
    ):
        raise ValueError(counts)
    if shard_width != width or chunk_width != width or chunk_rows * width > MAX_CHUNK_BYTES:
        raise ValueError((shard_width, chunk_width, chunk_rows))
    return counts


class LocalFiles:
    """Files below a local directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def put(self, key: str, data: bytes) -> None:
        path = self.directory / key
        make_directory(path.parent)
        write_bytes(path, data)

    def get(self, key: str) -> bytes:
        return read_file(self.directory / key)

    def sizes(self, keys: list[str]) -> dict[str, int]:
        paths = {key: self.directory / key for key in keys}
        return {key: path.stat().st_size for key, path in paths.items() if path.is_file()}


def _files(location: str) -> _Files:
    path = local_path(location)
    return RemoteFiles(location) if path is None else LocalFiles(path)
