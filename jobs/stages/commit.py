"""Put a finished build into the index: as the whole index, as one more segment, or as a replacement.

Only the manifest is read before the commit, so rows may be deleted while an unfinished job waits to be
continued.
"""

from dataclasses import replace

from aggtree.jobs.stages.drift import mean_error
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.file_record import LiveRows
from aggtree.storage.index.live_rows import live_bits, write_live
from aggtree.storage.index.manifest import IndexManifest, read_manifest
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.row_bits import extended
from aggtree.storage.version import __version__
from aggtree.storage.work.job_facts import read_facts
from aggtree.storage.work.job_record import JobRecord


def placed(job: JobRecord, made: SegmentManifest) -> IndexManifest:
    """The manifest of the index after a job has built the segment `made`."""
    now = _committed(job)
    if now is None:
        return IndexManifest(segments=(made,))
    if job.task == "compact":
        return IndexManifest(segments=(_compacted(now, made),))
    for number, segment in enumerate(now.segments):
        if segment.build == made.build:  # made again, because it was damaged
            return _with_segment(now, number, made)
    if job.task == "append":
        return _appended(job, now, made)
    return IndexManifest(segments=(made,))


def first_error(job: JobRecord, first: SegmentManifest) -> float | None:
    """Mean squared error of the training rows: from the manifest, or as recorded by the job."""
    return read_facts(job).training_error if first.distortion is None else first.distortion


def _committed(job: JobRecord) -> IndexManifest | None:
    try:
        return read_manifest(job.index)
    except IndexFormatError:
        if job.task != "build":
            raise
        return None


def _with_segment(now: IndexManifest, number: int, made: SegmentManifest) -> IndexManifest:
    """The index with the damaged segment replaced by its rebuilt copy."""
    damaged = now.segments[number]
    made = replace(made, first_row=damaged.first_row, pieces=damaged.pieces, distortion=damaged.distortion)
    segments = (*now.segments[:number], made, *now.segments[number + 1 :])
    return replace(now, segments=segments, made_by=now.made_by if number else __version__)


def _appended(job: JobRecord, now: IndexManifest, made: SegmentManifest) -> IndexManifest:
    """The index with one more segment, and the error of its first, the reference for that of others."""
    first = replace(now.first_segment, distortion=first_error(job, now.first_segment))
    made = replace(made, first_row=now.all_source_rows, distortion=mean_error(job))
    return replace(
        now,
        segments=(first, *now.appended_segments, made),
        live=_longer(job, now, made.source_rows),
    )


def _compacted(now: IndexManifest, made: SegmentManifest) -> SegmentManifest:
    """One segment of all rows, which records where each came from."""
    pieces = now.all_pieces
    if len(pieces) == 1:
        return replace(made, vectors=pieces[0].vectors, vectors_seal=pieces[0].vectors_seal)
    return replace(made, pieces=pieces)


def _longer(job: JobRecord, now: IndexManifest, more: int) -> LiveRows | None:
    """Deleted rows of an index to which `more` rows are appended."""
    if now.live is None:
        return None
    rows = now.all_source_rows
    return write_live(job.index, extended(live_bits(job.index, now), rows, more), rows + more)
