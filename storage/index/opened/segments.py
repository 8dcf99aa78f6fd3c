"""The files of one segment that queries need, mapped read-only and compared with the manifest.

Names, sizes, dtypes, counts and the labels of the first level are compared. The other data is not read; the
search kernels clip every range to the arrays, so damaged data gives wrong answers but never a crash, and
`verify` finds it.
"""

import mmap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import Dictionaries
from aggtree.engine.search.metrics import make_searcher
from aggtree.engine.search.searcher import Searcher
from aggtree.engine.tree.layout import Tree, norm_steps
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.dictionary_file import load_dictionaries
from aggtree.storage.index.file_record import check_files
from aggtree.storage.index.first_groups import load_first_groups
from aggtree.storage.index.format import ARRAYS, DICTIONARIES, OWN_IDS
from aggtree.storage.index.opened.memory_maps import map_array
from aggtree.storage.index.segment_manifest import SegmentManifest


class OpenSegment:
    """The files of one segment that a query needs, mapped read-only.

    files : as its manifest records them.
    own_ids : (source_rows,) int64, the user's id of each of its rows, or None.
    """

    def __init__(self, path: Path, segment: SegmentManifest) -> None:
        wanted = [segment.file(DICTIONARIES), *(segment.tree_file(spec.name) for spec in ARRAYS)]
        check_files(path, [*wanted, *([segment.file(OWN_IDS)] if segment.own_ids else [])])
        self.files = segment.files
        self.maps: list[mmap.mmap] = []
        self.own_ids: NDArray[np.int64] | None = None
        if segment.own_ids:
            self.own_ids = map_own_ids(path, segment, self.maps)
        arrays = {record.path.rpartition("/")[2]: map_array(path, record, self.maps) for record in wanted[1:]}
        dictionaries, norm_ranges = _load_dictionaries(path, segment)
        self.searcher = _searcher(path, segment, arrays, dictionaries, norm_ranges)

    @property
    def tree(self) -> Tree:
        """The tree's arrays, read-only."""
        return self.searcher.tree


def map_own_ids(path: Path, segment: SegmentManifest, maps: list[mmap.mmap]) -> NDArray[np.int64]:
    """The user's id of each row of a segment."""
    return map_array(path, replace(segment.file(OWN_IDS), dtype="<i8", length=segment.source_rows), maps)


def _load_dictionaries(path: Path, segment: SegmentManifest) -> tuple[Dictionaries, NDArray[np.float32]]:
    place = path / segment.directory / DICTIONARIES
    dictionaries, norm_ranges = load_dictionaries(place)
    if (dictionaries.layout.words, dictionaries.dimension) != (segment.words, segment.dimension):
        raise IndexFormatError(f"{place}: dictionaries of other sizes than the manifest states")
    if dictionaries.transform.plain == segment.transformed:
        raise IndexFormatError(f"{place}: moves or scales vectors, or not, other than the manifest states")
    return dictionaries, norm_ranges


def _searcher(
    path: Path,
    segment: SegmentManifest,
    arrays: dict[str, NDArray[Any]],
    dictionaries: Dictionaries,
    norm_ranges: NDArray[np.float32],
) -> Searcher:
    counts = segment.counts
    low, step = norm_steps(norm_ranges, segment.norm_bytes)
    tree = Tree(
        **arrays,
        level_start=np.array(counts.level_start, np.int64),
        level_leaf=np.array(counts.level_leaf, np.int64),
        record_start=np.array(counts.record_start, np.int64),
        norm_low=low,
        norm_step=step,
    )
    groups = load_first_groups(path, segment)
    try:
        return make_searcher(segment.metric, tree, dictionaries, groups=groups, planes=segment.planes)
    except ValueError as error:
        raise IndexFormatError(f"{path / segment.directory}: {error}") from error
