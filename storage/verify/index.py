"""Verify every byte of an index: checksums of all files, then the structure of the tree.

A deep check also compares the tree with the codes it was built from.

Threads compute the checksums, one run of blocks each; they scale, because CRC-32C and reads release the
GIL. Damage is named by file, block of 4 MiB and level of the tree.
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
from aggtree.storage.errors import AggtreeError, DiskError, IndexFormatError
from aggtree.storage.index.build_report import read_report
from aggtree.storage.index.code_store import METADATA, CodeStore
from aggtree.storage.index.dictionary_file import DICTIONARY_KIND, load_dictionaries
from aggtree.storage.index.file_record import FileRecord, RemoteCodes, file_problem
from aggtree.storage.index.format import CODES, DICTIONARIES, MANIFEST, REPORT, TREE, TUNING
from aggtree.storage.index.manifest import IndexManifest, read_manifest
from aggtree.storage.index.opened.segments import OpenSegment
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.index.tuning import read_tuning
from aggtree.storage.row_bits import deleted_rows
from aggtree.storage.verify.deep import rows_of_other_codes
from aggtree.storage.verify.norms import norm_checks
from aggtree.storage.verify.structure import content_checks, offset_checks

BLOCKS_PER_TASK = 16


@dataclass(frozen=True, order=True)
class Damage:
    """Damage found in an index.

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


class _Meter:
    """Reports how many bytes were compared, of how many."""

    def __init__(self, total: int, report: Callable[[int, int], None] | None) -> None:
        self._total, self._report, self._done = total, report, 0

    def advance(self, count: int) -> None:
        self._done += count
        if self._report:
            self._report(self._done, self._total)


def verify_index(
    path: str | os.PathLike[str],
    progress: Callable[[int, int], None] | None = None,
    workers: int = 1,
    *,
    deep: bool = False,
) -> list[Damage]:
    """Read every byte of an index; returns the damage found, an empty list if there is none.

    progress : called with the number of bytes compared so far and the number to compare.
    deep : also compare the tree with the codes, row by row, and the norms of all nodes instead of a sample.
    IndexFormatError when there is no index at all.
    """
    index = Path(path)
    if not (index / MANIFEST).exists():
        read_manifest(index)
    try:
        manifest = read_manifest(index)
    except AggtreeError as error:
        return [Damage(MANIFEST, -1, str(error).removeprefix(f"{index / MANIFEST}: "))]
    meter = _Meter(sum(_bytes_to_read(segment, deep=deep) for segment in manifest.segments), progress)
    damage = [
        item
        for segment in manifest.segments
        for item in _check_segment(index, segment, meter, workers, deep=deep)
    ]
    damage += _check_live(index, manifest)
    damage += _check_beside(index, manifest)
    if damage and read_manifest(index) != manifest:
        # Replaced meanwhile, its files removed: the index is another one now.
        return verify_index(index, progress, workers, deep=deep)
    return damage


def _bytes_to_read(segment: SegmentManifest, *, deep: bool) -> int:
    """Bytes of a segment that are compared."""
    remote = segment.codes.files if segment.codes else ()
    size = sum(record.bytes for record in (*segment.files, *remote))
    return size + (
        segment.tree_file("records").bytes + segment.source_rows * segment.layout.width if deep else 0
    )


def _check_live(index: Path, manifest: IndexManifest) -> Iterator[Damage]:
    """Check the bits of deleted rows: their checksum, and their number against the manifest."""
    if manifest.live is None:
        return
    record = manifest.live.file
    problem = file_problem(index, record)
    if problem:
        yield Damage(record.path, -1, problem)
        return
    for block, what in _bad_blocks(index, _Task(record, tuple(block_ranges(record.bytes)))):
        yield Damage(record.path, block, what)
        problem = what
    if problem:
        return
    bits = np.fromfile(index / record.path, np.uint8)
    if deleted_rows(bits, manifest.all_source_rows) != manifest.live.deleted:
        yield Damage(record.path, -1, f"deletes other than {manifest.live.deleted:,} rows")


def _check_beside(index: Path, manifest: IndexManifest) -> Iterator[Damage]:
    """Whether what is kept beside the index can be read: the report of its build, and what was measured."""
    readers: tuple[tuple[str, Callable[[], object]], ...] = (
        (REPORT, lambda: read_report(index, manifest.first_segment.build)),
        (TUNING, lambda: read_tuning(index, manifest.identity)),
    )
    for name, read in readers:
        try:
            read()
        except AggtreeError as error:
            yield Damage(name, -1, str(error).removeprefix(f"{index / name}: "))


def _check_segment(
    index: Path, segment: SegmentManifest, meter: _Meter, workers: int, *, deep: bool
) -> list[Damage]:
    """All checks of one segment, as a manifest describes it."""
    damage = check_bytes(index, segment, meter.advance, workers)
    for check in (_check_dictionaries, _check_codes):
        damage += check(index, segment)
    if segment.codes is not None:
        damage += _check_remote_codes(index, segment.codes, segment, meter.advance, workers)
    if not any(f"/{TREE}/" in item.file for item in damage):
        damage += _check_tree(index, segment, workers, every_node=deep)
    if deep and not damage:
        damage += _check_against_codes(index, segment, meter.advance)
    return sorted(set(damage))


@dataclass(frozen=True)
class _Task:
    """A run of blocks of one file."""

    record: FileRecord
    ranges: tuple[tuple[int, int], ...]


def check_bytes(
    index: Path, segment: SegmentManifest, advance: Callable[[int], None], workers: int
) -> list[Damage]:
    """Compare the size of each file and the checksum of each block; report compared bytes to `advance`."""
    damage: list[Damage] = []
    tasks: list[_Task] = []
    for record in segment.files:
        problem = file_problem(index, record)
        if problem:
            damage.append(Damage(record.path, -1, problem + _rows(index, segment, record)))
            continue
        ranges = tuple(block_ranges(record.bytes))
        tasks += [
            _Task(record, ranges[i : i + BLOCKS_PER_TASK]) for i in range(0, len(ranges), BLOCKS_PER_TASK)
        ]
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for task, bad in zip(tasks, pool.map(lambda task: _bad_blocks(index, task), tasks), strict=True):
            for block, what in bad:
                place = _levels(segment, task.record, block) + _rows(index, segment, task.record)
                damage.append(Damage(task.record.path, block, what + place))
            advance(task.ranges[-1][1] - task.ranges[0][0])
    return damage


def _bad_blocks(index: Path, task: _Task) -> list[tuple[int, str]]:
    """The blocks that have changed or cannot be read, each with the reason."""
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


def _rows(index: Path, segment: SegmentManifest, record: FileRecord) -> str:
    """The rows to encode again if this is a file of codes."""
    if f"/{CODES}/c/" not in record.path:
        return ""
    shard = record.path.split("/")[-2]
    try:
        start, stop = CodeStore.open(index / segment.directory / CODES).shard_range(int(shard))
    except (AggtreeError, ValueError):
        return f", codes of shard {shard}: encode it again"
    return f", codes of rows {start} to {stop} (shard {shard}): encode them again"


def _levels(segment: SegmentManifest, record: FileRecord, block: int) -> str:
    """The levels of the tree that a block holds."""
    *_, parent, name = record.path.split("/")
    if parent != TREE:
        return ""
    itemsize = record.bytes // record.length
    first = block * BLOCK // itemsize
    last = (min((block + 1) * BLOCK, record.bytes) - 1) // itemsize
    low, high = _level(segment, name, first), _level(segment, name, last)
    return f" (level {low})" if low == high else f" (levels {low} to {high})"


def _level(segment: SegmentManifest, name: str, element: int) -> int:
    """The level of the tree that an element of an array belongs to; a sentinel belongs to the last level."""
    counts = segment.counts
    starts = {"records": counts.record_start, "ids": counts.level_leaf}.get(name, counts.level_start)
    if name == "first_labels":
        return 1
    return min(bisect_right(starts, element) - 1, len(segment.words))


def _check_dictionaries(index: Path, segment: SegmentManifest) -> Iterator[Damage]:
    record = segment.file(DICTIONARIES)
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
            return
    try:
        load_dictionaries(index / record.path)
    except IndexFormatError as error:
        yield Damage(record.path, -1, str(error).removeprefix(f"{index / record.path}: "))


def _check_codes(index: Path, segment: SegmentManifest) -> Iterator[Damage]:
    directory = f"{segment.directory}/{CODES}"
    named = {record.path for record in segment.files if record.path.startswith(f"{directory}/")}
    if not named:
        return
    try:
        store = CodeStore.open(index / directory)
    except (IndexFormatError, DiskError) as error:
        yield Damage(
            f"{directory}/{METADATA}", -1, str(error).removeprefix(f"{index / directory}/{METADATA}: ")
        )
        return
    yield from _check_store(store, f"{directory}/{METADATA}", len(named) - 1, segment)


def _check_store(store: CodeStore, metadata: str, shards: int, segment: SegmentManifest) -> Iterator[Damage]:
    """Check that a store has the shape of the index, and as many shards as the manifest lists."""
    if (store.rows, store.width) != (segment.source_rows, segment.layout.width):
        shape = f"{store.rows} codes of {store.width} bytes"
        expected = f"{segment.source_rows} of {segment.layout.width}"
        yield Damage(metadata, -1, f"{shape}, the manifest states {expected}")
    if shards != store.shards:
        yield Damage(MANIFEST, -1, f"lists {shards} shards of codes, the store has {store.shards}")


def _check_remote_codes(
    index: Path,
    codes: RemoteCodes,
    segment: SegmentManifest,
    advance: Callable[[int], None],
    workers: int,
) -> list[Damage]:
    """Compare every byte of a store outside the index; a single damage if it cannot be opened."""
    metadata = f"{codes.location}/{METADATA}"
    try:
        store = CodeStore.open(segment.codes_at(index))
    except AggtreeError as error:
        return [Damage(metadata, -1, str(error).removeprefix(f"{metadata}: "))]
    damage = list(_check_store(store, metadata, len(codes.files) - 1, segment))

    def check(record: FileRecord) -> list[Damage]:
        name = f"{codes.location}/{record.path}"
        try:
            return [Damage(name, block, "checksum does not match") for block in store.bad_blocks(record)]
        except DiskError as error:
            return [Damage(name, -1, str(error).removeprefix(f"{name}: "))]

    with ThreadPoolExecutor(max(1, workers)) as pool:
        for record, found in zip(codes.files, pool.map(check, codes.files), strict=True):
            damage += found
            advance(record.bytes)
    return damage


def _check_tree(index: Path, segment: SegmentManifest, workers: int, *, every_node: bool) -> list[Damage]:
    """Check the structure; the bytes are known to match their checksums."""
    damage: list[Damage] = []

    def report(name: str, element: int, what: str) -> None:
        block = element * np.dtype(segment.tree_file(name).dtype).itemsize // BLOCK
        message = f"{what} (level {_level(segment, name, element)}, element {element})"
        damage.append(Damage(segment.tree_file(name).path, block, message))

    try:
        searcher = OpenSegment(index, segment).searcher
    except AggtreeError as error:
        return [Damage(segment.directory, -1, str(error))]
    with ThreadPoolExecutor(max(1, workers)) as pool:
        tree, dictionaries = searcher.tree, searcher.dictionaries
        for checks in (
            offset_checks(tree, segment, report),
            content_checks(tree, segment, report),
            norm_checks(tree, dictionaries, segment, report, every_node=every_node),
        ):
            list(pool.map(lambda check: check(), checks))
            if damage:  # later checks rely on what earlier ones verified
                break
    return damage


def _check_against_codes(
    index: Path, segment: SegmentManifest, advance: Callable[[int], None]
) -> Iterator[Damage]:
    """Compare the tree with the codes; both are known to be undamaged."""
    codes = segment.codes_at(index)
    different = rows_of_other_codes(OpenSegment(index, segment).tree, segment, codes, advance)
    for start, stop in different:
        what = f"rows {start} to {stop}: the codes in the tree differ from those in {CODES}; rebuild the tree"
        yield Damage(segment.tree_file("records").path, -1, what)
