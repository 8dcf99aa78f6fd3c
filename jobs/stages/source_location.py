"""What opens the source of a build again, kept from the stages that have it to the commit that has not."""

from aggtree.jobs.running.streams import travels
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.manifest import read_manifest
from aggtree.storage.sources.base import VectorSource
from aggtree.storage.sources.unit_rows import plain_source
from aggtree.storage.work.job_record import JobRecord

STAGE = "source"


def remember_source(job: JobRecord, source: VectorSource | None) -> None:
    """Note where the vectors are; of a build that is continued after they moved, the new place."""
    if source is not None:
        job.record_done(STAGE, 0, {"vectors": plain_source(source).spec if travels(source) else ""})


def remembered_source(job: JobRecord) -> str:
    """The spec of the source: as noted, or as the index says whose tree this job repairs; "" for none."""
    for record in job.done(STAGE).values():
        return str(record["vectors"])
    try:
        first = read_manifest(job.index).first_segment
    except IndexFormatError:
        return ""
    return first.vectors if first.build == job.build else ""
