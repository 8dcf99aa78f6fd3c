"""The location of a build's source, stored by the stages that read it for the commit."""

from dataclasses import replace

from aggtree.jobs.running.streams import travels
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.manifest import read_manifest
from aggtree.storage.places import seal_of
from aggtree.storage.sources.base import VectorSource
from aggtree.storage.sources.unit_rows import plain_source
from aggtree.storage.work.job_facts import read_facts, save_facts
from aggtree.storage.work.job_record import JobRecord


def note_source(job: JobRecord, source: VectorSource | None) -> None:
    """Record the location of the vectors; if they moved since the build started, the new one."""
    if source is not None:
        vectors = plain_source(source).spec if travels(source) else ""
        save_facts(job, replace(read_facts(job), vectors=vectors, vectors_seal=seal_of(vectors)))


def source_location(job: JobRecord) -> tuple[str, str]:
    """The spec of the source, as noted or as in the index whose tree this job repairs, and its seal.

    "" for none.
    """
    noted = read_facts(job)
    if noted.vectors is not None:
        return noted.vectors, noted.vectors_seal
    try:
        first = read_manifest(job.index).first_segment
    except IndexFormatError:
        return "", ""
    return (first.vectors, first.vectors_seal) if first.build == job.build else ("", "")
