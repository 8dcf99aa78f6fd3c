"""Delete rows from an index: one bit per row, committed with the manifest. The trees do not change."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.search.filters import Filter
from aggtree.storage.atomic import explained
from aggtree.storage.errors import SourceError
from aggtree.storage.index.live_rows import live_bits, tree_bits, write_live
from aggtree.storage.index.manifest import IndexManifest, commit_manifest, read_manifest
from aggtree.storage.index.opened.row_sets import make_filter
from aggtree.storage.index.opened.segments import map_own_ids
from aggtree.storage.index.own_ids import OwnIds
from aggtree.storage.keywords import explain_keywords
from aggtree.storage.work.job_record import remove_old_live
from aggtree.storage.work.lock import BuildLock

IdSet = NDArray[np.bool_] | NDArray[np.integer] | Sequence[int] | range | str | os.PathLike[str]
"""Ids: a range, a list or an array of them, a boolean per row, or a file of either."""


@dataclass(frozen=True, kw_only=True)
class DeleteResult:
    """The result of `delete`.

    deleted : rows deleted by this call. missing : rows deleted before.
    rows : rows that remain in the index.
    """

    path: Path
    deleted: int
    missing: int
    rows: int


@explain_keywords
def delete(index: str | os.PathLike[str], ids: IdSet) -> DeleteResult:
    """Delete the vectors with these ids from an index; searches no longer return them.

    ids : a range or an array of ids, a boolean per row, a .npy file of either, or a text file with one id per
        line. Your own ids if the index was built with ids, row numbers otherwise.

    Processes that have the index open see the vectors until they refresh or reopen it. `compact` frees the
    space.
    """
    path = Path(index).absolute()
    read_manifest(path)  # no lock where there is no index
    with BuildLock(path):
        manifest = read_manifest(path)
        wanted = _rows(path, manifest, ids)
        bits = live_bits(path, manifest)
        there = wanted.among(bits)
        rows = _in_trees(path, manifest, there.allowed)
        result = DeleteResult(
            path=path,
            deleted=len(rows),
            missing=wanted.count - len(rows),
            rows=manifest.live_rows - len(rows),
        )
        if len(rows):
            bits &= ~Filter.of_rows(rows, wanted.rows).bits
            manifest = replace(manifest, live=write_live(path, bits, wanted.rows))
            commit_manifest(path, manifest)
        remove_old_live(path, manifest)
    return result


def _rows(index: Path, manifest: IndexManifest, ids: IdSet) -> Filter:
    """The rows that a user names; ValueError for one that the index never had."""
    if isinstance(ids, (str, os.PathLike)) and not os.fspath(ids).endswith(".npy"):
        ids = _read_text(Path(ids))
    own = None
    if manifest.own_ids:
        own = OwnIds([map_own_ids(index, segment, []) for segment in manifest.segments])
    try:
        return make_filter(ids, manifest.all_source_rows, own)
    except ValueError as error:
        raise ValueError(f"{index}: {str(error).removeprefix('within: ')}") from error


def _read_text(path: Path) -> NDArray[np.int64]:
    """Ids from a file with one id per line."""
    with explained(path):
        lines = path.read_text(encoding="ascii", errors="replace").split()
    ids = np.empty(len(lines), np.int64)
    for place, line in enumerate(lines):
        try:
            ids[place] = int(line)
        except (ValueError, OverflowError):
            message = f"{path}: {line[:40]!r} is no id: write one integer on each line"
            raise SourceError(message) from None
    return ids


def _in_trees(index: Path, manifest: IndexManifest, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The given rows, ascending, without those that were skipped when the index was built."""
    kept = []
    for segment in manifest.segments:
        low, high = np.searchsorted(rows, (segment.first_row, segment.first_row + segment.source_rows))
        own = rows[low:high] - segment.first_row
        if len(own) and segment.rows < segment.source_rows:
            seen = tree_bits(index, segment)
            own = own[(seen[own // 8] >> (own % 8).astype(np.uint8)) & 1 != 0]
        kept.append(own + segment.first_row)
    return np.concatenate(kept)
