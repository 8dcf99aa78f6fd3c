"""How a build that is done takes its place in the index: as a whole, as one more segment, or again.

Nothing is read of the index before the commit but its manifest, so rows may be deleted while an unfinished
job waits to be continued.
"""

from dataclasses import replace

from aggtree.jobs.stages.drift import mean_error
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.file_record import LiveRows
from aggtree.storage.index.live_rows import live_bits, write_live
from aggtree.storage.index.manifest import Manifest, read_manifest
from aggtree.storage.row_bits import extended
from aggtree.storage.work.job_facts import read_facts
from aggtree.storage.work.job_record import JobRecord


def placed(job: JobRecord, made: Manifest) -> Manifest:
    """The manifest of the index after a job has made `made`."""
    now = _committed(job)
    if now is None or job.task == "compact":
        return made if now is None else _compacted(now, made)
    for number, part in enumerate(now.parts):
        if part.build == made.build:  # made again, because it was damaged
            return _with_part(now, number, _as(part, made))
    if job.task == "append":
        segment = replace(made, first_row=now.all_source_rows, distortion=mean_error(job))
        return replace(
            now,
            segments=(*now.segments, segment),
            live=_longer(job, now, made.source_rows),
            distortion=first_error(job, now),
        )
    return made


def first_error(job: JobRecord, now: Manifest) -> float | None:
    """Mean squared error of the rows that the dictionaries were made for: as remembered, or as noted."""
    return read_facts(job).training_error if now.distortion is None else now.distortion


def _committed(job: JobRecord) -> Manifest | None:
    try:
        return read_manifest(job.index)
    except IndexFormatError:
        if job.task != "build":
            raise
        return None


def _as(part: Manifest, made: Manifest) -> Manifest:
    """A build made again, in the place of the one that was damaged."""
    return replace(
        made,
        first_row=part.first_row,
        pieces=part.pieces,
        segments=part.segments,
        live=part.live,
        distortion=part.distortion,
    )


def _with_part(now: Manifest, number: int, part: Manifest) -> Manifest:
    if number == 0:
        return part
    segments = list(now.segments)
    segments[number - 1] = part
    return replace(now, segments=tuple(segments))


def _compacted(now: Manifest, made: Manifest) -> Manifest:
    """One build of all rows, which remembers where each came from."""
    pieces = now.all_pieces
    if len(pieces) == 1:
        return replace(made, vectors=pieces[0].vectors)
    return replace(made, pieces=pieces)


def _longer(job: JobRecord, now: Manifest, more: int) -> LiveRows | None:
    """Deleted rows of an index to which `more` rows are appended."""
    if now.live is None:
        return None
    rows = now.all_source_rows
    return write_live(job.index, extended(live_bits(job.index, now), rows, more), rows + more)
