"""The location of the codes of a build: in the index directory, or at a URL given by the user.

The location changes no byte of the codes, so it is not part of the recipe; the job and the manifest record
it. Codes may be moved between two runs: all recorded shards must then be at the new location.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aggtree.engine.dictionaries import CodeLayout
from aggtree.jobs.planning.recipe import Recipe
from aggtree.storage.errors import BuildMismatchError, DiskError, IndexFormatError, UnreachableError
from aggtree.storage.index.code_store import CodeStore, ShardRecord, create_code_store
from aggtree.storage.index.file_record import FileRecord, RemoteCodes
from aggtree.storage.index.format import CODES, DICTIONARIES
from aggtree.storage.index.manifest import read_manifest
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.index.writer import file_record
from aggtree.storage.places import seal_of
from aggtree.storage.remote_files import is_url
from aggtree.storage.work.job_record import JobRecord


def checked_place(codes: str | None) -> str | None:
    """The URL that a user gave for the codes, or None; ValueError for anything else."""
    if codes is None:
        return None
    if not is_url(codes) or codes.startswith(("http://", "https://")):
        raise ValueError(
            f"codes {codes!r}: expected a URL that can be written, such as s3://bucket/codes.zarr; "
            "without it they are kept in the index directory"
        )
    return codes.rstrip("/")


def place_of(job: JobRecord) -> str:
    """Path or URL of a job's code store."""
    return job.codes or str(job.build_directory / CODES)


def move_codes(job: JobRecord, codes: str | None) -> JobRecord:
    """The job with its codes at `codes`; None keeps their location.

    BuildMismatchError if written shards are not at the new location.
    """
    if codes is None or codes == job.codes:
        return job
    moved = replace(job, codes=codes)
    written = shard_records(job)
    if written:
        there = CodeStore.open(codes).present(written)
        missing = min(set(written) - there, default=None)
        if missing is not None:
            raise BuildMismatchError(
                f"{job.index}: shard {missing} was written to {place_of(job)} and is not at {codes}; "
                "copy the codes there, or leave out `codes`"
            )
    moved.save()
    return moved


def check_built_place(segment: SegmentManifest, index: Path, codes: str | None) -> None:
    """Refuse another place for the codes of a segment that is finished."""
    place = segment.codes.location if segment.codes else str(index / segment.directory / CODES)
    if codes is not None and codes != place:
        raise BuildMismatchError(f"{index}: built already, with its codes at {place}; leave out `codes`")


def shard_records(job: JobRecord) -> dict[int, ShardRecord]:
    """The shards that were written, by number."""
    return {number: ShardRecord.from_json(record) for number, record in job.done("encode").items()}


def forget_codes_of_other_dictionaries(job: JobRecord) -> None:
    """Encode all shards again if the dictionaries of a committed build were trained again, and are others.

    Another release may train others on the same rows.
    """
    try:
        segments = read_manifest(job.index).segments
    except IndexFormatError:
        return
    path = f"{job.build_directory.name}/{DICTIONARIES}"
    for segment in segments:
        if (
            segment.build == job.build
            and segment.file(DICTIONARIES).blocks != file_record(job.index, path).blocks
        ):
            job.forget("encode")


def store_records(job: JobRecord, store: CodeStore) -> tuple[FileRecord, ...]:
    """The manifest's records of the codes; an error if a shard has disappeared."""
    shards = shard_records(job)
    missing = set(range(store.shards)) - store.present(shards)
    if missing:
        raise IndexFormatError(
            f"{store.location}: shard {min(missing)} is missing; build again or run `aggtree encode`"
        )
    directory = "" if job.codes else f"{job.build_directory.name}/{CODES}"
    return tuple(store.file_records(directory, shards))


def remote_codes(job: JobRecord, files: Sequence[FileRecord]) -> RemoteCodes | None:
    """What the manifest records of codes at a URL; None of codes in the index directory."""
    if not job.codes:
        return None
    return RemoteCodes(location=job.codes, files=tuple(files), seal=seal_of(job.codes))


def open_codes(job: JobRecord, recipe: Recipe) -> CodeStore:
    """The code store of a job, created if necessary."""
    place = place_of(job)
    try:
        store = CodeStore.open(place)
    except UnreachableError:
        raise
    except (DiskError, IndexFormatError):
        return make_codes(job, recipe)
    if job.codes and store.build != job.build:
        whose = f"build {store.build}" if store.build else "something else"
        raise BuildMismatchError(
            f"{place}: holds the codes of {whose}, not of build {job.build}; "
            "name another place by `codes`, or remove the existing one"
        )
    return store


def make_codes(job: JobRecord, recipe: Recipe) -> CodeStore:
    """Write the metadata of a job's code store; existing shards stay."""
    width, rows = CodeLayout(recipe.words).width, int(job.source["rows"])
    build = job.build if job.codes else ""
    return create_code_store(place_of(job), rows, width, recipe.shard_rows, recipe.chunk_rows, build)
