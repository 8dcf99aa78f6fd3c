"""The file of the user's own ids: an int64 for each row of the source, in the order of the rows.

The tree holds row numbers, which locate the vectors; the last step of a search replaces them by own
ids. The file is copied in blocks when a build starts and belongs to the build like its other files.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.atomic import make_directory, replace_file
from aggtree.storage.errors import SourceError
from aggtree.storage.index.file_record import FileRecord
from aggtree.storage.index.format import OWN_IDS
from aggtree.storage.row_bits import unpacked
from aggtree.storage.sources.ids import BLOCK_ROWS, STORED, IdSource

NO_ANSWER = -1
LEAST_PASS = 1 << 20
"""Ids compared with each other in one pass, at least."""
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


KnownIds = Callable[[], Iterable[NDArray[np.int64]]]
"""Gives blocks of ids that other rows of the index have, each time it is called."""


def write_own_ids(
    directory: Path, ids: IdSource, rows: int, *, checksum: str, room: int, known: KnownIds | None = None
) -> FileRecord:
    """Copy the ids of `rows` rows into a build's directory; SourceError if they cannot be its ids.

    checksum : of their fingerprint; they may have changed since.
    room : bytes of memory for finding equal ids. Ids that rise need none; others are read once more for each
        share of them that fits.
    known : ids that may not be among them.
    """
    if ids.rows != rows:
        raise SourceError(f"{ids.spec}: {ids.rows:,} ids for {rows:,} vectors: name the ids of these vectors")
    make_directory(directory)
    rising, last = True, np.iinfo(np.int64).min
    with replace_file(directory / OWN_IDS, 8 * rows) as file:
        for start, block in ids.blocks():
            if (block == NO_ANSWER).any():
                row = start + int(np.flatnonzero(block == NO_ANSWER)[0])
                raise SourceError(f"{ids.spec}: the id of row {row} is -1, which means no answer: change it")
            rising = rising and block[0] > last and bool((block[1:] > block[:-1]).all())
            last = block[-1]
            file.write(block.astype(STORED, copy=False))
        if f"{file.checksums.crc:08x}" != checksum:
            raise SourceError(f"{ids.spec}: was changed while it was copied: start again")
        most = max(LEAST_PASS, room // 24)
        if not rising:
            _refuse_equal(ids, most)
        if known is not None:
            _refuse_known(ids, known, most)
    return FileRecord.of(f"{directory.name}/{OWN_IDS}", file.checksums)


def _sorted_shares(ids: IdSource, most: int) -> Iterator[NDArray[np.int64]]:
    """The ids of one share of all hashes after the other, each sorted."""
    # Shares differ by chance, a few per mille at this size.
    shares = -(-ids.rows * 9 // (8 * most)) if ids.rows > most else 1
    for share in range(shares):
        kept = np.concatenate([_of_share(block, share, shares) for _, block in ids.blocks()])
        kept.sort()
        yield kept


def _refuse_known(ids: IdSource, known: KnownIds, most: int) -> None:
    """SourceError if a row of the index has one of the ids."""
    for kept in _sorted_shares(ids, most):
        if len(kept) == 0:
            continue
        for block in known():
            places = np.searchsorted(kept, block).clip(max=len(kept) - 1)
            equal = np.flatnonzero(kept[places] == block)
            if len(equal):
                number = int(block[equal[0]])
                raise SourceError(f"{ids.spec}: id {number} is in the index already: delete it, or change it")


def _refuse_equal(ids: IdSource, most: int) -> None:
    """SourceError if two rows have the same id. Each pass compares the ids of one share of all hashes."""
    for kept in _sorted_shares(ids, most):
        equal = np.flatnonzero(kept[1:] == kept[:-1])
        if len(equal):
            number = int(kept[equal[0]])
            rows = [start + row for start, block in ids.blocks() for row in np.flatnonzero(block == number)]
            raise SourceError(f"{ids.spec}: rows {rows[0]} and {rows[1]} have the same id {number}")


def _of_share(ids: NDArray[np.int64], share: int, shares: int) -> NDArray[np.int64]:
    if shares == 1:
        return ids
    # The high bits of a product depend on all bits of an id.
    hashes = (ids.view(np.uint64) * GOLDEN) >> np.uint64(32)
    of_share: NDArray[np.int64] = ids[hashes % np.uint64(shares) == share]
    return of_share


class OwnIds:
    """The user's id of each row of an index, from the mapped files of its segments.

    segments : ids of the rows of each segment, int64, in the order of the rows.
    """

    def __init__(self, segments: Sequence[NDArray[np.int64]]) -> None:
        self._segments = tuple(segments)
        self._starts = np.cumsum([0, *(len(segment_ids) for segment_ids in segments)])
        self.rows = int(self._starts[-1])

    def blocks(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """All ids in order: first row, and the ids from there on."""
        for first, segment_ids in zip(self._starts.tolist(), self._segments, strict=False):
            for start in range(0, len(segment_ids), BLOCK_ROWS):
                yield first + start, segment_ids[start : start + BLOCK_ROWS]

    def live_blocks(self, live: NDArray[np.uint8], first: int) -> Iterator[NDArray[np.int64]]:
        """The ids of all rows that were not deleted; bit `first` of `live` is that of the first row."""
        for start, block in self.blocks():
            yield block[unpacked(live, first + start, first + start + len(block))]

    def of_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ids of row numbers of any shape; -1 stays, and a row outside the index becomes -1."""
        ids = np.full(rows.shape, NO_ANSWER, np.int64)
        for first, segment_ids in zip(self._starts.tolist(), self._segments, strict=False):
            inside = (rows >= first) & (rows < first + len(segment_ids))
            ids[inside] = segment_ids[rows[inside] - first]
        return ids

    def rows_of(self, wanted: NDArray[np.integer]) -> NDArray[np.int64]:
        """The rows that have the given ids, ascending; ValueError for an id that none has."""
        ids = np.unique(wanted.astype(np.int64))
        rows = [np.empty(0, np.int64)]
        for start, block in self.blocks():
            rows.append(start + np.flatnonzero(np.isin(block, ids)))
        found = np.concatenate(rows)
        missing = np.setdiff1d(ids, self.of_rows(found))
        if len(missing):
            raise ValueError(f"id {missing[0]} is not in the index")
        return found

    def between(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Whether the id of each row is one of start..stop - 1, (rows,) bool."""
        mask = np.empty(self.rows, np.bool_)
        for first, block in self.blocks():
            mask[first : first + len(block)] = (block >= start) & (block < stop)
        return mask
