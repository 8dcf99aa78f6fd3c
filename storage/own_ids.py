"""The file of the user's own ids: an int64 for each row of the source, in the order of the rows.

The tree holds row numbers, which lead to the vectors; the last step of a search puts own ids in their
place. The file is copied in blocks when a build starts and belongs to the build as its other files do.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.atomic import make_directory, replace_file
from aggtree.storage.errors import SourceError
from aggtree.storage.format import OWN_IDS
from aggtree.storage.id_source import BLOCK_ROWS, STORED, IdSource
from aggtree.storage.manifest import FileRecord

NO_ANSWER = -1
LEAST_PASS = 1 << 20
"""Ids compared with each other in one pass, at least."""
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def write_own_ids(directory: Path, ids: IdSource, rows: int, *, checksum: str, room: int) -> FileRecord:
    """Copy the ids of `rows` rows into a build's directory; SourceError if they cannot be its ids.

    checksum : of their fingerprint; they may have changed since.
    room : bytes of memory for finding equal ids. Ids that rise need none; others are read once more for each
        share of them that fits.
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
        if not rising:
            _refuse_equal(ids, max(LEAST_PASS, room // 24))
    return FileRecord.of(f"{directory.name}/{OWN_IDS}", file.checksums)


def _refuse_equal(ids: IdSource, most: int) -> None:
    """SourceError if an id is there twice. Each pass compares the ids of one share of all hashes."""
    # Shares differ by chance, a few per mille at this size.
    shares = -(-ids.rows * 9 // (8 * most)) if ids.rows > most else 1
    for share in range(shares):
        kept = np.concatenate([_of_share(block, share, shares) for _, block in ids.blocks()])
        kept.sort()
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


def rows_of_ids(own: NDArray[np.int64], wanted: NDArray[np.integer]) -> NDArray[np.int64]:
    """The rows that have the given ids, ascending; ValueError for an id that none has."""
    ids = np.unique(wanted.astype(np.int64))
    rows = [np.empty(0, np.int64)]
    for start in range(0, len(own), BLOCK_ROWS):
        rows.append(start + np.flatnonzero(np.isin(own[start : start + BLOCK_ROWS], ids)))
    found = np.concatenate(rows)
    if len(found) < len(ids):
        missing = np.setdiff1d(ids, own[found])[0]
        raise ValueError(f"within: id {missing} is not in the index")
    return found


def to_own_ids(own: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Own ids of row numbers of any shape; -1 stays, and a row that is not there is no answer either."""
    known = (rows >= 0) & (rows < len(own))
    return np.where(known, own[np.where(known, rows, 0)], NO_ANSWER)
