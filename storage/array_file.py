"""One file of named arrays: dictionaries, trainer checkpoints, sorted runs and partitions of a tree.

    bytes 0..7     b"AGGTREE1"
    bytes 8..11    length of the header, uint32 little-endian
    bytes 12..15   CRC-32C of the header
    header         JSON: kind, fields, and for each array name, dtype, shape, offset, crc32c per block
    arrays         raw, little-endian, C order, each at a multiple of 64 bytes

Opening checks the header, and every array's place against the size of the file, before anything is
allocated or mapped; `ArrayFile.check` compares the data with the checksums.
"""

import json
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.atomic import Json, canonical, explained, replace_file
from aggtree.storage.checksums import (
    BLOCK,
    BlockChecksums,
    block_checksums,
    block_count,
    crc32c,
    from_hex,
    to_hex,
)
from aggtree.storage.errors import IndexFormatError

MAGIC = b"AGGTREE1"
ALIGNMENT = 64
DTYPES = frozenset({"|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"})


@dataclass(frozen=True)
class _Place:
    """Position of an array in the file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    blocks: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class ArrayFile:
    """An open file of arrays. Arrays are mapped read-only on first use; `blocks` reads without mapping."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self._maps: dict[str, NDArray[Any]] = {}
        with explained(path):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.bytes = os.fstat(self._descriptor).st_size
            self.fields, self._places = self._read_header(kind)
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays in the order of the file."""
        return tuple(self._places)

    def dtype(self, name: str) -> np.dtype[Any]:
        return self._place(name).dtype

    def shape(self, name: str) -> tuple[int, ...]:
        return self._place(name).shape

    def offset(self, name: str) -> int:
        """First byte of an array in the file."""
        return self._place(name).offset

    def array(self, name: str) -> NDArray[Any]:
        """The array, mapped read-only; it stays valid after `close`."""
        if name not in self._maps:
            place = self._place(name)
            self._maps[name] = self._map(place) if place.bytes else np.empty(place.shape, place.dtype)
        return self._maps[name]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays, mapped read-only."""
        return {name: self.array(name) for name in self._places}

    def read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """A copy of rows start..stop, read without mapping so that no mapped pages count as memory."""
        place = self._place(name)
        start, stop = max(0, start), min(stop, place.shape[0])
        rows = np.empty((max(0, stop - start), *place.shape[1:]), place.dtype)
        offset = place.offset + start * math.prod(place.shape[1:]) * place.dtype.itemsize
        read_exactly(self.path, self._descriptor, rows, offset)
        return rows

    def blocks(self, name: str, rows: int) -> Iterator[NDArray[Any]]:
        """The array in order, `rows` rows at a time, with memory for one block."""
        for start in range(0, self._place(name).shape[0], rows):
            yield self.read(name, start, start + rows)

    def check(self) -> None:
        """Compare every array with its checksums; IndexFormatError naming array and block."""
        for name, place in self._places.items():
            checksums = BlockChecksums()
            for start in range(0, place.bytes, BLOCK):
                with explained(self.path):
                    checksums.add(
                        os.pread(self._descriptor, min(BLOCK, place.bytes - start), place.offset + start)
                    )
            if checksums.blocks != place.blocks:
                pairs = zip(checksums.blocks, place.blocks, strict=False)
                block = next(
                    (number for number, (found, expected) in enumerate(pairs) if found != expected), 0
                )
                raise IndexFormatError(
                    f"{self.path}: damaged, array {name}, block {block}: checksum does not match"
                )

    def close(self) -> None:
        """Release the file; arrays already returned stay valid."""
        self._maps = {}
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def _place(self, name: str) -> _Place:
        if name not in self._places:
            raise IndexFormatError(f"{self.path}: has no array {name}")
        return self._places[name]

    def _map(self, place: _Place) -> NDArray[Any]:
        # A map starts at a page, the array a little later.
        page_start = place.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        skip = place.offset - page_start
        with explained(self.path):
            pages = mmap.mmap(
                self._descriptor, skip + place.bytes, access=mmap.ACCESS_READ, offset=page_start
            )
        return np.frombuffer(pages, place.dtype, math.prod(place.shape), skip).reshape(place.shape)

    def _read_header(self, kind: str) -> tuple[dict[str, Any], dict[str, _Place]]:
        with explained(self.path):
            start = os.pread(self._descriptor, 16, 0)
        length = int.from_bytes(start[8:12], "little")
        if len(start) < 16 or start[:8] != MAGIC or 16 + length > self.bytes:
            raise IndexFormatError(f"{self.path}: damaged, truncated or not a file of aggtree")
        with explained(self.path):
            text = os.pread(self._descriptor, length, 16)
        if crc32c(text) != int.from_bytes(start[12:16], "little"):
            raise IndexFormatError(f"{self.path}: damaged, the checksum of its header does not match")
        try:
            header = json.loads(text)
            found, fields = header["kind"], dict(header["fields"])
            places = {item["name"]: _parse_place(item) for item in header["arrays"]}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise IndexFormatError(f"{self.path}: damaged, its header cannot be understood") from error
        if found != kind:
            raise IndexFormatError(f"{self.path}: a file of kind {found!r}, expected {kind!r}")
        for name, place in places.items():
            if place.offset < 16 + length or place.offset + place.bytes > self.bytes:
                raise IndexFormatError(
                    f"{self.path}: damaged or truncated, array {name} does not fit into the file"
                )
            if len(place.blocks) != block_count(place.bytes):
                raise IndexFormatError(f"{self.path}: damaged, array {name} has a wrong number of checksums")
        return fields, places


def read_exactly(path: Path, descriptor: int, rows: NDArray[Any], offset: int) -> None:
    """Fill a contiguous array with the bytes of an open file from `offset` on."""
    target = rows.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(target):
        with explained(path):
            count = os.preadv(descriptor, [target[done:]], offset + done)
        if count == 0:
            raise IndexFormatError(f"{path}: shorter than when it was opened")
        done += count


def _parse_place(item: Mapping[str, Any]) -> _Place:
    shape = item["shape"]
    if item["dtype"] not in DTYPES or not isinstance(shape, list):
        raise ValueError
    numbers = [*shape, item["offset"]]
    if any(type(number) is not int or not 0 <= number < 2**48 for number in numbers) or len(shape) > 8:
        raise ValueError
    return _Place(np.dtype(item["dtype"]), tuple(shape), item["offset"], from_hex(item["crc32c"]))


def write_arrays(
    path: Path, kind: str, arrays: Mapping[str, NDArray[Any]], fields: Mapping[str, Json] | None = None
) -> BlockChecksums:
    """Write arrays into one file; returns the checksums of the file."""
    ready = {name: _little_endian(name, array) for name, array in arrays.items()}
    header = _header(kind, ready, dict(fields or {}))
    with replace_file(path, len(header) + sum(array.nbytes + ALIGNMENT for array in ready.values())) as file:
        file.write(header)
        for array in ready.values():
            file.write(bytes(-file.bytes % ALIGNMENT))
            file.write(array)
    return file.checksums


def _little_endian(name: str, array: NDArray[Any]) -> NDArray[Any]:
    ready = np.asarray(array, order="C")
    ready = ready.astype(ready.dtype.newbyteorder("<"), copy=False)
    if ready.dtype.str not in DTYPES:
        raise TypeError(f"array {name} of dtype {array.dtype}: only numbers are stored")
    return ready


def _header(kind: str, arrays: Mapping[str, NDArray[Any]], fields: dict[str, Json]) -> bytes:
    # Offsets are inside the header, whose length depends on them: room is left for their digits.
    items: list[dict[str, Json]] = [
        {
            "name": name,
            "dtype": array.dtype.str,
            "shape": [int(length) for length in array.shape],
            "crc32c": to_hex(block_checksums(array)),
        }
        for name, array in arrays.items()
    ]
    header: dict[str, Json] = {"kind": kind, "fields": fields, "arrays": list(items)}
    room = len(canonical(header)) + 64 * len(items)
    room += -(16 + room) % ALIGNMENT
    offset = 16 + room
    for item, array in zip(items, arrays.values(), strict=True):
        item["offset"] = offset
        offset += array.nbytes + -array.nbytes % ALIGNMENT
    text = canonical(header).ljust(room)
    return MAGIC + len(text).to_bytes(4, "little") + crc32c(text).to_bytes(4, "little") + text


class OpenArrays:
    """The arrays of one open file under their names; close it to release the file."""

    file: ArrayFile

    def check(self) -> None:
        """Compare every byte with its checksum; IndexFormatError when one differs."""
        self.file.check()

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()
