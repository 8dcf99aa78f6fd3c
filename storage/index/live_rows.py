"""The file of rows that were not deleted: a bit for each row of the index.

A file is never changed: deleting writes another one, named by its checksum, and the manifest that names it
is the commit. Bits behind the last row are 0.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.atomic import explained, replace_file
from aggtree.storage.checksums import block_checksums, crc32c
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.file_record import FileRecord, LiveRows, check_files
from aggtree.storage.index.format import LIVE_PREFIX
from aggtree.storage.index.manifest import IndexManifest
from aggtree.storage.index.opened.segments import OpenSegment
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.row_bits import clear_missing, deleted_rows, extended, seen_bits


def live_bits(index: Path, manifest: IndexManifest) -> NDArray[np.uint8]:
    """The bits of all rows, in memory and writable; all of them set when no row was deleted."""
    if manifest.live is not None:
        return _whole_file(index, manifest.live.file)
    return extended(np.empty(0, np.uint8), 0, manifest.all_source_rows)


def _whole_file(index: Path, record: FileRecord) -> NDArray[np.uint8]:
    """The bytes of a file; IndexFormatError if its checksum does not match."""
    path = index / record.path
    check_files(index, [record])
    with explained(path):
        content = np.fromfile(path, np.uint8)
    if block_checksums(content) != record.blocks:
        raise IndexFormatError(f"{path}: damaged, the deleted rows are unknown; copy the file again")
    return content


def tree_bits(index: Path, segment: SegmentManifest) -> NDArray[np.uint8]:
    """A bit for each row of a segment that is in its tree; others were skipped when it was built."""
    return seen_bits(OpenSegment(index, segment).tree.ids, segment.source_rows)


def kept_bits(index: Path, manifest: IndexManifest) -> NDArray[np.uint8]:
    """A bit for each row of an index that is in a tree and was not deleted."""
    bits = live_bits(index, manifest)
    for segment in manifest.segments:
        if segment.rows < segment.source_rows:
            clear_missing(bits, OpenSegment(index, segment).tree.ids, segment.first_row, segment.source_rows)
    return bits


def write_live(index: Path, bits: NDArray[np.uint8], rows: int) -> LiveRows:
    """Write the bits of `rows` rows beside the manifest; the next commit names the file."""
    path = f"{LIVE_PREFIX}{crc32c(bits):08x}"
    with replace_file(index / path, len(bits)) as file:
        file.write(bits)
    return LiveRows(file=FileRecord.of(path, file.checksums), deleted=deleted_rows(bits, rows))
