"""Dictionaries that were trained for another index, taken for a build instead of training its own."""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aggtree.jobs.planning.recipe import Choices, Recipe, choose_recipe
from aggtree.storage.atomic import write_bytes
from aggtree.storage.checksums import BlockChecksums, to_hex
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.file_record import check_files
from aggtree.storage.index.format import DICTIONARIES
from aggtree.storage.index.manifest import IndexManifest, read_manifest
from aggtree.storage.sources.base import VectorSource


@dataclass(frozen=True, kw_only=True)
class TakenDictionaries:
    """A file of dictionaries.

    checksum : stands for its bytes in the recipe of a build that uses them.
    """

    path: Path
    checksum: str

    @classmethod
    def of(cls, index: Path, manifest: IndexManifest) -> "TakenDictionaries":
        """The dictionaries of a committed index, of which every segment has a copy: those of the first."""
        record = manifest.first_segment.file(DICTIONARIES)
        check_files(index, [record])
        return cls(path=index / record.path, checksum=_name(record.blocks))

    def copy_to(self, path: Path) -> None:
        """Copy the file; IndexFormatError when it is no longer what it was."""
        content = self.path.read_bytes()
        checksums = BlockChecksums()
        checksums.add(content)
        if _name(checksums.blocks) != self.checksum:
            raise IndexFormatError(f"{self.path}: is damaged or was changed; run `aggtree verify`")
        write_bytes(path, content)


def recipe_for(
    source: VectorSource,
    *,
    dictionaries: int | str | os.PathLike[str] | None = None,
    continue_training: bool = False,
    **choices: Any,
) -> tuple[Recipe, TakenDictionaries | None]:
    """The recipe of a build of this source as a user chose it, and the dictionaries it takes, if any.

    dictionaries : how many, or the index whose dictionaries are taken; choices : see `Choices`.
    """
    chosen = Choices(**choices)
    if dictionaries is None or isinstance(dictionaries, int):
        if continue_training:
            raise ValueError("continue: name the index to go on from by --dictionaries INDEX")
        return choose_recipe(source.rows, replace(chosen, dictionaries=dictionaries)), None
    index = Path(dictionaries)
    manifest = read_manifest(index)
    if chosen.words is not None:
        raise ValueError(f"words {chosen.words}: {index} gives the dictionaries, leave them out")
    if manifest.metric != chosen.metric:
        raise ValueError(f"metric {chosen.metric}: the dictionaries of {index} are for {manifest.metric}")
    if manifest.dimension != source.dimension:
        raise ValueError(
            f"{source.spec}: vectors of dimension {source.dimension}, {index} is of {manifest.dimension}"
        )
    taken = TakenDictionaries.of(index, manifest)
    chosen = replace(chosen, words=manifest.words, taken=taken.checksum, continued=continue_training)
    return choose_recipe(source.rows, chosen), taken


def _name(blocks: tuple[int, ...]) -> str:
    return hashlib.sha256(to_hex(blocks).encode()).hexdigest()[:12]
