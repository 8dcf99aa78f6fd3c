"""Groups of the words of a very wide first level, computed once with the tree and mapped by every reader.

Grouping 65,536 words takes longer than everything else at opening, and a private copy of the groups more
memory than a query process should have; all processes share the file. The file is optional: without it a
reader groups the words itself, and returns the same answers.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.scan.first_level import ONE_STAGE, FirstGroups, as_quads, group_nodes
from aggtree.engine.search.metrics import unit_words
from aggtree.storage.array_file import ArrayFile, write_arrays
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.dictionary_file import load_dictionaries
from aggtree.storage.index.file_record import FileRecord, check_files
from aggtree.storage.index.format import DICTIONARIES, FIRST_GROUPS, TREE, build_name
from aggtree.storage.index.segment_manifest import SegmentManifest

KIND = "first groups"
DTYPES = {
    "centres": "<f4",
    "group_start": "<i8",
    "steps": "<f4",
    "quads": "|u1",
    "offsets": "<f4",
    "numbers": "<i8",
}
BEFORE_QUADS = {"differences" if name == "quads" else name: dtype for name, dtype in DTYPES.items()}
BEFORE_QUADS["differences"] = "|i1"


def write_first_groups(
    index: Path, build: str, nodes: int, *, by_angle: bool = False
) -> tuple[FileRecord, ...]:
    """Group the level-1 nodes of a tree whose files are in place; no file if queries score them all.

    by_angle : whether queries rank nodes by the angle to their words, whatever the words' lengths.
    """
    if nodes <= ONE_STAGE:
        return ()
    directory = index / build_name(build)
    dictionaries, _ = load_dictionaries(directory / DICTIONARIES)
    labels = np.fromfile(directory / TREE / "first_labels", "<u2")
    norms = np.fromfile(directory / TREE / "norms", "<f4", count=1 + nodes)[1:]
    if by_angle:
        dictionaries, norms = unit_words(dictionaries), np.ones_like(norms)
    from threadpoolctl import threadpool_limits  # a process that only searches does without

    # One thread: the order of sums decides bytes.
    with threadpool_limits(1):
        groups = group_nodes(labels, norms, dictionaries)
    path = f"{build_name(build)}/{FIRST_GROUPS}"
    checksums = write_arrays(index / path, KIND, groups._asdict())
    return (FileRecord.of(path, checksums),)


def groups_record(segment: SegmentManifest) -> FileRecord | None:
    """The manifest's entry of the groups, if the segment has them."""
    path = f"{segment.directory}/{FIRST_GROUPS}"
    return next((record for record in segment.files if record.path == path), None)


def load_first_groups(index: Path, segment: SegmentManifest) -> FirstGroups | None:
    """The groups, mapped read-only, or None; that they fit the tree is checked where they are used."""
    record = groups_record(segment)
    if record is None:
        return None
    check_files(index, [record])
    path = index / record.path
    with ArrayFile(path, KIND) as file:
        dtypes = BEFORE_QUADS if "differences" in file.names else DTYPES
        arrays = {name: file.array(name) for name in dtypes}
    for name, dtype in dtypes.items():
        if arrays[name].dtype.str != dtype:
            raise IndexFormatError(f"{path}: array {name} is {arrays[name].dtype}, expected {dtype}")
    if "differences" in arrays:
        try:
            arrays["quads"] = _quads(arrays.pop("differences"), arrays["group_start"])
        except ValueError as error:
            raise IndexFormatError(f"{path}: differences of no groups: {error}") from error
    return FirstGroups(**arrays)


def _quads(differences: NDArray[Any], group_start: NDArray[Any]) -> NDArray[np.uint8]:
    """Differences as in files of earlier versions: for each group an array (d, columns), without quads."""
    columns = int(group_start[-1]) if len(group_start) else 0
    rows = len(differences) // max(columns, 1)
    parts = [
        as_quads(differences[rows * start : rows * stop].reshape(rows, stop - start))
        for start, stop in pairwise(group_start.tolist())
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)
