"""Dictionaries of another index, reused by a build instead of training new ones."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from aggtree.storage.atomic import write_bytes
from aggtree.storage.checksums import BlockChecksums, to_hex
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.file_record import check_files
from aggtree.storage.index.format import DICTIONARIES
from aggtree.storage.index.manifest import IndexManifest


@dataclass(frozen=True, kw_only=True)
class ReusedDictionaries:
    """A file of dictionaries.

    checksum : identifies the dictionaries in the recipe of a build that uses them.
    """

    path: Path
    checksum: str

    @classmethod
    def of(cls, index: Path, manifest: IndexManifest) -> "ReusedDictionaries":
        """The dictionaries of a committed index, of which every segment has a copy: those of the first."""
        record = manifest.first_segment.file(DICTIONARIES)
        check_files(index, [record])
        return cls(path=index / record.path, checksum=_name(record.blocks))

    def copy_to(self, path: Path) -> None:
        """Copy the file; IndexFormatError if it has changed."""
        content = self.path.read_bytes()
        checksums = BlockChecksums()
        checksums.add(content)
        if _name(checksums.blocks) != self.checksum:
            raise IndexFormatError(
                f"{self.path}: is damaged or was changed; call aggtree.verify or run `aggtree verify`"
            )
        write_bytes(path, content)


def _name(blocks: tuple[int, ...]) -> str:
    return hashlib.sha256(to_hex(blocks).encode()).hexdigest()[:12]
