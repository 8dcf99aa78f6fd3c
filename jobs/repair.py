"""Rebuild the damaged files of a committed index, and nothing else.

A build is deterministic, so a damaged file is replaced by one with the same bytes: dictionaries are trained
again, shards of codes encoded again, and the tree is rebuilt from the codes. Meanwhile the index stays as
readable as it was. The ordinary stages do the work, from a job in which everything undamaged counts as done.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from aggtree.jobs.planning.recipe import Recipe
from aggtree.jobs.running.cores import usable_cores
from aggtree.jobs.stages.code_location import make_codes
from aggtree.storage.atomic import remove_file
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.code_store import METADATA, CodeStore, ShardRecord, shard_key
from aggtree.storage.index.file_record import file_problem
from aggtree.storage.index.format import CODES, DICTIONARIES, LIVE_PREFIX, MANIFEST, REPORT, TREE, TUNING
from aggtree.storage.index.manifest import IndexManifest
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.verify.index import Damage, verify_index
from aggtree.storage.work.job_record import JobRecord, start_job


def check_presence(index: Path, manifest: IndexManifest) -> None:
    """The cheap check of a finished index: every file is there with its size."""
    for record in manifest.all_files:
        problem = file_problem(index, record)
        if problem:
            raise IndexFormatError(f"{index / record.path}: {problem}; run the same command with `repair`")


def damages_of(index: Path, segments: Sequence[SegmentManifest]) -> tuple[SegmentManifest, list[Damage]]:
    """The first damaged one of some segments, and its damage, from verifying every byte of the index.

    IndexFormatError if only other segments are damaged: each is repaired by the command that made it.
    """
    damages = verify_index(index, workers=usable_cores(), deep=True)
    for damage in damages:
        if damage.file in (REPORT, TUNING):  # nothing depends on what these held
            remove_file(index / damage.file)
    damages = [damage for damage in damages if damage.file not in (REPORT, TUNING)]
    for segment in segments:
        codes = segment.codes.location if segment.codes else segment.directory
        inside = (f"{segment.directory}/", f"{codes}/")
        own = [
            damage
            for damage in damages
            if damage.file in (MANIFEST, segment.directory) or damage.file.startswith(inside)
        ]
        if own:
            return segment, own
    if damages:
        remedy = "repeat the append that made it, with `repair`"
        if damages[0].file.startswith(LIVE_PREFIX):
            remedy = "the deleted rows are unknown; copy the file again"
        raise IndexFormatError(f"{index}: damaged elsewhere: {damages[0]}; {remedy}")
    return segments[0], []


def reopen(index: Path, segment: SegmentManifest, damages: Sequence[Damage]) -> JobRecord:
    """The job of a committed build, everything undamaged counting as done; the caller holds the lock."""
    _refuse_compacted(index, segment, damages)
    segment.codes_at(index)  # a location that may not be opened automatically is not written to either
    codes = segment.codes.location if segment.codes else ""
    job = start_job(index, segment.parameters, segment.source, codes=codes)
    damaged = {damage.file for damage in damages}
    for record in segment.files:
        # Readers may have the tree open: its files are replaced at the end, never removed.
        if record.path in damaged and not record.path.startswith(f"{segment.directory}/{TREE}/"):
            remove_file(index / record.path)
    if f"{segment.directory}/{DICTIONARIES}" not in damaged:
        job.record_done("train", 0, {"error": None})
    if segment.codes and f"{codes}/{METADATA}" in damaged:
        make_codes(job, Recipe.from_json(segment.parameters))
    # Which rows were left out is known from encoding alone.
    if segment.rows == segment.source_rows:
        for shard in _whole_shards(index, segment, damaged):
            job.record_done("encode", shard.shard, shard.to_json() | {"invalid": []})
    return job


def _refuse_compacted(index: Path, segment: SegmentManifest, damages: Sequence[Damage]) -> None:
    """IndexFormatError for damage that only the segments merged by `compact` could repair.

    Codes were copied from them, and no source records which rows were deleted.
    """
    tree = f"{segment.directory}/{TREE}/"
    beyond = [damage for damage in damages if not damage.file.startswith(tree)]
    if "segments" in segment.source and (beyond or segment.rows != segment.source_rows):
        damage = (beyond or damages)[0]
        raise IndexFormatError(
            f"{index}: {damage}; the segments it was compacted from are gone: copy it again or rebuild it"
        )


def _whole_shards(index: Path, segment: SegmentManifest, damaged: set[str]) -> Iterator[ShardRecord]:
    """Records of the shards that need not be encoded again."""
    recipe = Recipe.from_json(segment.parameters)
    location = segment.codes.location if segment.codes else f"{segment.directory}/{CODES}"
    if segment.codes and f"{location}/{METADATA}" in damaged:
        return  # behind metadata that cannot be read nothing was compared
    # Not opened: the metadata of a local store may be what is damaged.
    place = location if segment.codes else index / location
    store = CodeStore(place, segment.source_rows, segment.layout.width, recipe.shard_rows, recipe.chunk_rows)
    for shard in range(store.shards):
        if f"{location}/{shard_key(shard)}" not in damaged:
            yield store.recomputed_record(shard)
