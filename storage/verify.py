"""Whether every byte of an index is right: checksums of all files, then the structure of the tree.

Checksums are computed by threads, one run of blocks each; CRC-32C and reading leave the interpreter
free, so they scale. Damage is named by file, block of 4 MiB and level of the tree.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.array_file import ArrayFile
from aggtree.storage.checksums import BLOCK, block_ranges, crc32c
from aggtree.storage.code_store import CodeStore
from aggtree.storage.dictionary_file import DICTIONARY_KIND
from aggtree.storage.errors import AggtreeError, DiskError, IndexFormatError
from aggtree.storage.format import CODES, DICTIONARIES, MANIFEST, TREE
from aggtree.storage.index_reader import Index
from aggtree.storage.manifest import FileRecord, Manifest, file_problem, read_manifest
from aggtree.storage.structure_checks import structure_checks

BLOCKS_PER_TASK = 16


@dataclass(frozen=True, order=True)
class Damage:
    """Something wrong in an index.

    file : below the index directory.
    block : number of the block of 4 MiB, or -1 for the whole file.
    what : what is wrong with it, with the tree's level or the rows concerned.
    """

    file: str
    block: int
    what: str

    def __str__(self) -> str:
        return (
            f"{self.file}: {self.what}" if self.block < 0 else f"{self.file}: block {self.block}: {self.what}"
        )


def verify_index(
    path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None, workers: int = 1
) -> list[Damage]:
    """Read every byte of an index; returns the damage found, nothing when all is well.

    `progress` is told the bytes compared so far and the bytes of the index.
    IndexFormatError when there is no index at all.
    """
    index = Path(path)
    if not (index / MANIFEST).exists():
        read_manifest(index)
    try:
        manifest = read_manifest(index)
    except AggtreeError as error:
        return [Damage(MANIFEST, -1, str(error).removeprefix(f"{index / MANIFEST}: "))]
    damage = _check_build(index, manifest, progress, workers)
    if damage and read_manifest(index).build != manifest.build:
        # Replaced meanwhile, its files removed: the index is another one now.
        return verify_index(index, progress, workers)
    return damage


def _check_build(
    index: Path, manifest: Manifest, progress: Callable[[int, int], None] | None, workers: int
) -> list[Damage]:
    """All checks of the build a manifest describes."""
    damage = _check_bytes(index, manifest, progress, workers)
    for check in (_check_dictionaries, _check_codes):
        damage += check(index, manifest)
    if not any(f"/{TREE}/" in item.file for item in damage):
        damage += _check_tree(index, manifest, workers)
    return sorted(set(damage))


@dataclass(frozen=True)
class _Task:
    """A run of blocks of one file."""

    record: FileRecord
    ranges: tuple[tuple[int, int], ...]


def _check_bytes(
    index: Path, manifest: Manifest, progress: Callable[[int, int], None] | None, workers: int
) -> list[Damage]:
    """Compare the size of each file and the checksum of each block."""
    damage: list[Damage] = []
    tasks: list[_Task] = []
    for record in manifest.files:
        problem = file_problem(index, record)
        if problem:
            damage.append(Damage(record.path, -1, problem))
            continue
        ranges = tuple(block_ranges(record.bytes))
        tasks += [
            _Task(record, ranges[i : i + BLOCKS_PER_TASK]) for i in range(0, len(ranges), BLOCKS_PER_TASK)
        ]
    total, done = sum(record.bytes for record in manifest.files), 0
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for task, bad in zip(tasks, pool.map(lambda task: _bad_blocks(index, task), tasks), strict=True):
            damage += [
                Damage(task.record.path, block, what + _place(manifest, task.record, block))
                for block, what in bad
            ]
            done += task.ranges[-1][1] - task.ranges[0][0]
            if progress:
                progress(done, total)
    return damage


def _bad_blocks(index: Path, task: _Task) -> list[tuple[int, str]]:
    """The blocks whose bytes have changed or cannot be read, and which of both."""
    buffer = np.empty(BLOCK, np.uint8)
    bad = []
    for start, stop in task.ranges:
        block = start // BLOCK
        try:
            if _crc(index / task.record.path, buffer[: stop - start], start) != task.record.blocks[block]:
                bad.append((block, "checksum does not match"))
        except OSError as error:
            bad.append((block, f"cannot be read: {error.strerror or error}"))
    return bad


def _crc(path: Path, buffer: NDArray[np.uint8], start: int) -> int:
    """Checksum of the bytes of a file from `start`, as many as the buffer holds."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        done = 0
        while done < len(buffer):
            count = os.preadv(descriptor, [buffer[done:].data], start + done)
            if count == 0:
                raise OSError("the file became shorter")
            done += count
    finally:
        os.close(descriptor)
    return crc32c(buffer)


def _place(manifest: Manifest, record: FileRecord, block: int) -> str:
    """Which levels of the tree, or which rows of the codes, a block holds."""
    *_, parent, name = record.path.split("/")
    if f"/{CODES}/c/" in record.path:
        return f", codes of shard {parent}: encode it again"
    if parent != TREE:
        return ""
    itemsize = record.bytes // record.length
    first = block * BLOCK // itemsize
    last = (min((block + 1) * BLOCK, record.bytes) - 1) // itemsize
    low, high = _level(manifest, name, first), _level(manifest, name, last)
    return f" (level {low})" if low == high else f" (levels {low} to {high})"


def _level(manifest: Manifest, name: str, element: int) -> int:
    """The level of the tree an element of an array belongs to; a sentinel counts to the last."""
    counts = manifest.counts
    starts = {"records": counts.record_start, "ids": counts.level_leaf}.get(name, counts.level_start)
    if name == "first_labels":
        return 1
    return min(bisect_right(starts, element) - 1, len(manifest.words))


def _check_dictionaries(index: Path, manifest: Manifest) -> Iterator[Damage]:
    record = manifest.file(DICTIONARIES)
    if file_problem(index, record):
        return
    try:
        with ArrayFile(index / record.path, DICTIONARY_KIND) as file:
            file.check()
            arrays = file.arrays()
    except AggtreeError as error:
        yield Damage(record.path, -1, str(error).removeprefix(f"{index / record.path}: "))
        return
    for name in ("words", "norm_ranges"):
        if name not in arrays or not np.isfinite(arrays[name]).all():
            yield Damage(record.path, -1, f"array {name} is missing or holds a number that is not finite")


def _check_codes(index: Path, manifest: Manifest) -> Iterator[Damage]:
    directory = f"{manifest.directory}/{CODES}"
    named = {record.path for record in manifest.files if record.path.startswith(f"{directory}/")}
    if not named:
        return
    try:
        store = CodeStore.open(index / directory)
    except (IndexFormatError, DiskError) as error:
        yield Damage(
            f"{directory}/zarr.json", -1, str(error).removeprefix(f"{index / directory}/zarr.json: ")
        )
        return
    if (store.rows, store.width) != (manifest.source_rows, manifest.layout.width):
        shape = f"{store.rows} codes of {store.width} bytes"
        expected = f"{manifest.source_rows} of {manifest.layout.width}"
        yield Damage(f"{directory}/zarr.json", -1, f"{shape}, the manifest says {expected}")
    if len(named) != store.shards + 1:
        yield Damage(MANIFEST, -1, f"names {len(named) - 1} shards of codes, the store has {store.shards}")


def _check_tree(index: Path, manifest: Manifest, workers: int) -> list[Damage]:
    """Check the structure; the bytes are known to be what the manifest says."""
    damage: list[Damage] = []

    def report(name: str, element: int, what: str) -> None:
        block = element * np.dtype(manifest.tree_file(name).dtype).itemsize // BLOCK
        message = f"{what} (level {_level(manifest, name, element)}, element {element})"
        damage.append(Damage(manifest.tree_file(name).path, block, message))

    try:
        opened = Index(index, manifest)
    except AggtreeError as error:
        return [Damage(manifest.directory, -1, str(error))]
    with opened, ThreadPoolExecutor(max(1, workers)) as pool:
        checks = structure_checks(opened.tree, manifest, report)
        list(pool.map(lambda check: check(), checks))
    return damage
