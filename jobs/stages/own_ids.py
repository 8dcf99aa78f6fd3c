"""The user's own ids, copied before all other work: bad ids are refused before hours of training."""

from dataclasses import replace
from typing import Any

from aggtree.jobs.planning.costs import DRIVER_BYTES
from aggtree.jobs.running.memory import MIB
from aggtree.storage.errors import JobError
from aggtree.storage.index.file_record import FileRecord
from aggtree.storage.index.format import MANIFEST, OWN_IDS
from aggtree.storage.index.manifest import read_manifest
from aggtree.storage.index.own_ids import KnownIds, write_own_ids
from aggtree.storage.sources.base import VectorSource
from aggtree.storage.sources.ids import IdSource
from aggtree.storage.work.job_facts import read_facts, save_facts
from aggtree.storage.work.job_record import JobRecord

LEAST_ROOM = 16 * MIB


def input_fingerprint(source: VectorSource, ids: IdSource | None) -> dict[str, Any]:
    """Fingerprint of the input of a build: vectors, and ids if there are any."""
    return source.fingerprint() | (ids.fingerprint() if ids is not None else {})


def same_vectors(source: VectorSource, fingerprint: dict[str, Any]) -> bool:
    """Whether these are the vectors of an input, regardless of its ids."""
    return all(fingerprint.get(name) == value for name, value in source.fingerprint().items())


def copy_ids(job: JobRecord, ids: IdSource | None, allowed: int, known: KnownIds | None = None) -> None:
    """Copy the ids into the build, unless they are there; `known` are ids of other rows of the index."""
    if ids is None or has_own_ids(job):
        return
    record = write_own_ids(
        job.build_directory,
        ids,
        int(job.source["rows"]),
        checksum=str(job.source["ids_crc32c"]),
        room=max(LEAST_ROOM, (allowed - DRIVER_BYTES) // 2),
        known=known,
    )
    note_own_ids(job, record)


def has_own_ids(job: JobRecord) -> bool:
    """Whether the file of own ids is complete."""
    return read_facts(job).own_ids is not None and (job.build_directory / OWN_IDS).exists()


def note_own_ids(job: JobRecord, record: FileRecord) -> None:
    """Record that the file of own ids is complete."""
    save_facts(job, replace(read_facts(job), own_ids=record))


def own_ids_record(job: JobRecord) -> FileRecord | None:
    """The file of own ids that belongs to the build: as copied, or as in the index that is repaired."""
    if "ids" not in job.source:
        return None
    record = read_facts(job).own_ids
    if record is not None:
        return record
    if (job.index / MANIFEST).exists() and (job.build_directory / OWN_IDS).exists():
        first = read_manifest(job.index).first_segment
        if first.build == job.build:
            return first.file(OWN_IDS)
    raise JobError(f"{job.index}: its own ids are missing; build again with `repair` and `ids`")
