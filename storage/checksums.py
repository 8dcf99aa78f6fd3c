"""CRC-32C of buffers and files, one per block of 4 MiB so that damage is located."""

from collections.abc import Iterator
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

BLOCK = 4 << 20

Buffer = bytes | bytearray | memoryview | NDArray[Any]


def as_bytes(data: Buffer) -> NDArray[np.uint8]:
    """The bytes of `data` in C order as a flat array, without a copy where it is contiguous."""
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return np.frombuffer(data, np.uint8)


def crc32c(data: Buffer, start: int = 0) -> int:
    """CRC-32C of `data`, continuing the checksum `start` of what came before it."""
    return int(google_crc32c.extend(start, as_bytes(data)))


class BlockChecksums:
    """Checksums of a stream of bytes: one per block of 4 MiB, and one of the whole."""

    def __init__(self) -> None:
        self.bytes = 0
        self.crc = 0
        self._full: list[int] = []
        self._open = 0

    def add(self, data: Buffer) -> None:
        """Add the next bytes of the stream."""
        rest = as_bytes(data)
        self.crc = crc32c(rest, self.crc)
        while len(rest):
            part = rest[: BLOCK - self.bytes % BLOCK]
            self._open = crc32c(part, self._open)
            self.bytes += len(part)
            rest = rest[len(part) :]
            if self.bytes % BLOCK == 0:
                self._full.append(self._open)
                self._open = 0

    @property
    def blocks(self) -> tuple[int, ...]:
        """One checksum per block; the last block may be short. Empty for no bytes."""
        return (*self._full, self._open) if self.bytes % BLOCK else tuple(self._full)


def block_checksums(data: Buffer) -> tuple[int, ...]:
    """One checksum per block of `data`."""
    checksums = BlockChecksums()
    checksums.add(data)
    return checksums.blocks


def block_ranges(size: int) -> Iterator[tuple[int, int]]:
    """First byte and end of each block of a file of `size` bytes."""
    for start in range(0, size, BLOCK):
        yield start, min(start + BLOCK, size)


def block_count(size: int) -> int:
    """Number of blocks of a file of `size` bytes."""
    return -(-size // BLOCK)


def to_hex(blocks: tuple[int, ...]) -> str:
    """Checksums as text, eight digits each."""
    return "".join(f"{crc:08x}" for crc in blocks)


def from_hex(text: str) -> tuple[int, ...]:
    """The inverse of `to_hex`; ValueError for anything that is not its output."""
    blocks = tuple(int.from_bytes(raw) for raw in _split(bytes.fromhex(text)))
    if to_hex(blocks) != text:
        raise ValueError(f"{text[:16]!r} is no list of checksums")
    return blocks


def _split(raw: bytes) -> Iterator[bytes]:
    for start in range(0, len(raw), 4):
        yield raw[start : start + 4]
