"""Codes of single rows of an index, for reconstructions, from its code store.

The tree leads from codes to rows and not back; the code store has the codes in the order of the rows.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.index.own_ids import OwnIds
from aggtree.storage.index.segment_manifest import SegmentManifest


def rows_of_ids(
    ids: ArrayLike, rows: int, own_ids: OwnIds | None, kept: NDArray[np.uint8] | None
) -> NDArray[np.int64]:
    """The row of each id, (n,) int64 in the order given; ValueError names an id that the index lacks.

    rows : of the index, deleted ones too
    kept : a bit for each row that exists; None if all do
    """
    wanted = np.atleast_1d(np.asarray(ids))
    if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
        raise ValueError(f"ids {wanted.dtype} of shape {wanted.shape}: expected integers of shape (n,)")
    if wanted.dtype.kind == "u" and wanted.max(initial=0) > np.iinfo(np.int64).max:
        raise ValueError(f"id {wanted.max()} is not in the index")
    numbers = wanted.astype(np.int64)
    if own_ids is None:
        found, known = numbers, (numbers >= 0) & (numbers < rows)
        known[known] = _is_set(kept, found[known])
    else:
        # An id that was deleted may have been given to another row since.
        there = own_ids.rows_of(numbers)
        there = there[_is_set(kept, there)]
        names = own_ids.of_rows(there)
        order = np.argsort(names)
        places = np.searchsorted(names[order], numbers).clip(max=max(0, len(names) - 1))
        known = np.zeros(len(numbers), np.bool_) if len(names) == 0 else names[order][places] == numbers
        found = there[order][places] if len(names) else numbers
    if not known.all():
        raise ValueError(f"id {numbers[~known][0]} is not in the index, or was deleted")
    return found


def _is_set(bits: NDArray[np.uint8] | None, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    if bits is None:
        return np.ones(len(rows), np.bool_)
    return ((bits[rows // 8] >> (rows % 8).astype(np.uint8)) & 1).astype(np.bool_)


def read_codes(path: Path, segment: SegmentManifest, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Codes (r, width) uint8 of rows of a segment, counted from its first; each chunk is read once."""
    location = segment.codes_at(path)
    store = CodeStore.open(location)
    shape = segment.source_rows, segment.layout.width
    # A store inside the index bears no name of a build: its directory does.
    if (store.rows, store.width) != shape or (segment.codes and store.build != segment.build):
        raise IndexFormatError(f"{location}: not the codes of {path}: verify the index")
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    codes = np.empty((len(rows), store.width), np.uint8)
    chunks = ascending // store.chunk_rows
    ends = np.concatenate(([0], np.flatnonzero(np.diff(chunks)) + 1, [len(rows)])).tolist()
    for start, stop in pairwise(ends):
        first, last = int(ascending[start]), int(ascending[stop - 1])
        codes[order[start:stop]] = store.read(first, last + 1)[ascending[start:stop] - first]
    return codes
