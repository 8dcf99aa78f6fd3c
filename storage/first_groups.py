"""The groups of a very wide first level, made once when the tree is written, mapped by every reader.

Grouping 65,536 words takes longer than all else that opening does, and a copy of them more memory than a
query process should own; in a file they are shared by all processes. The file is optional: a reader that
has none groups the words itself, and answers the same.
"""

from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from aggtree.engine.first_level import ONE_STAGE, FirstGroups, group_nodes
from aggtree.storage.array_file import ArrayFile, write_arrays
from aggtree.storage.dictionary_file import load_dictionaries
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.file_record import FileRecord, check_files
from aggtree.storage.format import DICTIONARIES, FIRST_GROUPS, TREE, build_name
from aggtree.storage.manifest import Manifest

KIND = "first groups"
DTYPES = {
    "centres": "<f4",
    "group_start": "<i8",
    "steps": "<f4",
    "differences": "|i1",
    "offsets": "<f4",
    "numbers": "<i8",
}


def write_first_groups(index: Path, build: str, nodes: int) -> tuple[FileRecord, ...]:
    """Group the level-1 nodes of a tree whose files are in place; nothing when queries score them all."""
    if nodes <= ONE_STAGE:
        return ()
    directory = index / build_name(build)
    dictionaries, _ = load_dictionaries(directory / DICTIONARIES)
    labels = np.fromfile(directory / TREE / "first_labels", "<u2")
    norms = np.fromfile(directory / TREE / "norms", "<f4", count=1 + nodes)[1:]
    # One thread: the order of sums decides bytes.
    with threadpool_limits(1):
        groups = group_nodes(labels, norms, dictionaries)
    path = f"{build_name(build)}/{FIRST_GROUPS}"
    checksums = write_arrays(index / path, KIND, groups._asdict())
    return (FileRecord.of(path, checksums),)


def groups_record(manifest: Manifest) -> FileRecord | None:
    """The manifest's entry of the groups, if the index has them."""
    path = f"{manifest.directory}/{FIRST_GROUPS}"
    return next((record for record in manifest.files if record.path == path), None)


def load_first_groups(index: Path, manifest: Manifest) -> FirstGroups | None:
    """The groups, mapped read-only, or None; that they fit the tree is checked where they are used."""
    record = groups_record(manifest)
    if record is None:
        return None
    check_files(index, [record])
    path = index / record.path
    with ArrayFile(path, KIND) as file:
        arrays = {name: file.array(name) for name in DTYPES}
    for name, dtype in DTYPES.items():
        if arrays[name].dtype.str != dtype:
            raise IndexFormatError(f"{path}: array {name} is {arrays[name].dtype}, expected {dtype}")
    return FirstGroups(**arrays)
