"""Small JSON records that detect any damage.

A sealed record is a JSON object in one canonical spelling (sorted keys, fixed indentation, ASCII)
with the CRC-32C of the rest under the key `crc32c`. Reading compares the bytes with that spelling,
so a change of any byte, even of a space, is found.
"""

import json
from pathlib import Path
from typing import Any

from aggtree.storage.atomic import Json, canonical, read_file, write_bytes
from aggtree.storage.checksums import crc32c
from aggtree.storage.errors import IndexFormatError

CHECKSUM = "crc32c"
MAX_BYTES = 256 << 20
"""No record of ours comes near; a larger file is refused before it is read."""


def seal(record: dict[str, Json]) -> bytes:
    """The bytes of a sealed record."""
    return canonical({**record, CHECKSUM: f"{crc32c(canonical(record)):08x}"})


def unseal(data: bytes, name: str) -> dict[str, Any]:
    """The record sealed in `data`; IndexFormatError naming `name` when a byte of it has changed."""
    try:
        record = json.loads(data)
        checksum = record.pop(CHECKSUM)
        whole = checksum == f"{crc32c(canonical(record)):08x}" and data == seal(record)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IndexFormatError(f"{name}: damaged, not a record written by aggtree") from error
    if not whole:
        raise IndexFormatError(f"{name}: damaged, its checksum does not match")
    return dict(record)


def write_sealed(path: Path, record: dict[str, Json]) -> None:
    """Write a sealed record to `path`."""
    write_bytes(path, seal(record))


def read_beside(path: Path, kind: tuple[str, int], build: str, remedy: str) -> dict[str, Any] | None:
    """The record of this build beside its manifest; None if there is none, or one of another build.

    kind : its `format` and `version`. IndexFormatError with the remedy when it is damaged.
    """
    if not path.exists():
        return None
    record = read_sealed(path)
    if (record.get("format"), record.get("version")) != kind:
        raise IndexFormatError(f"{path}: cannot be understood; {remedy}")
    return record if record.get("build") == build else None


def read_sealed(path: Path) -> dict[str, Any]:
    """Read and check a sealed record; DiskError when it cannot be read."""
    data = read_file(path, MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise IndexFormatError(f"{path}: larger than {MAX_BYTES:,} bytes, not a record written by aggtree")
    return unseal(data, str(path))
