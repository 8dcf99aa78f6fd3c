"""Make again what is damaged in a committed index, and nothing else.

A build is deterministic, so a damaged file is replaced by one of the same bytes: dictionaries are trained
again, shards of codes encoded again, and the tree is built again from the codes. The index stays as
readable as it was meanwhile. The ordinary stages do the work, from a job that has all undamaged parts as
done.
"""

from collections.abc import Sequence
from pathlib import Path

from aggtree.jobs.recipe import Recipe
from aggtree.storage.atomic import remove_file
from aggtree.storage.checksums import BlockChecksums
from aggtree.storage.code_store import ShardRecord
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.format import CODES, DICTIONARIES, TREE
from aggtree.storage.job_record import JobRecord, start_job
from aggtree.storage.manifest import Manifest, file_problem
from aggtree.storage.verify import Damage


def check_presence(index: Path, manifest: Manifest) -> None:
    """The cheap check of a finished index: every file is there with its size."""
    for record in manifest.files:
        problem = file_problem(index, record)
        if problem:
            raise IndexFormatError(f"{index / record.path}: {problem}; run the same command with --repair")


def reopen(index: Path, manifest: Manifest, damages: Sequence[Damage]) -> JobRecord:
    """The job of a committed build with its undamaged parts as done; the caller holds the lock."""
    job = start_job(index, manifest.parameters, manifest.source)
    damaged = {damage.file for damage in damages}
    for record in manifest.files:
        # Readers may have the tree open: its files are replaced at the end, never removed.
        if record.path in damaged and not record.path.startswith(f"{manifest.directory}/{TREE}/"):
            remove_file(index / record.path)
    if f"{manifest.directory}/{DICTIONARIES}" not in damaged:
        job.record_done("train", 0, {"error": None})
    # Which rows were left out is known from encoding alone.
    if manifest.rows == manifest.source_rows:
        for number in range(-(-manifest.source_rows // _shard_rows(manifest))):
            shard = _shard_record(index, manifest, number, damaged)
            if shard is not None:
                job.record_done("encode", number, shard.to_json() | {"invalid": []})
    return job


def _shard_rows(manifest: Manifest) -> int:
    return Recipe.from_json(manifest.parameters).shard_rows


def _shard_record(index: Path, manifest: Manifest, number: int, damaged: set[str]) -> ShardRecord | None:
    """What the job would have recorded of a shard; None when it must be encoded again."""
    path = f"{manifest.directory}/{CODES}/c/{number}/0"
    if path in damaged:
        return None
    checksums = BlockChecksums()
    checksums.add((index / path).read_bytes())
    start = number * _shard_rows(manifest)
    return ShardRecord(
        shard=number,
        rows=min(_shard_rows(manifest), manifest.source_rows - start),
        bytes=checksums.bytes,
        crc=checksums.crc,
        blocks=checksums.blocks,
    )
