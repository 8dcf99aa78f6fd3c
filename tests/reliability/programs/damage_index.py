"""Damages an index again and again, each time verifying, opening and searching it, in a process of its own.

    python damage_index.py INDEX SEED FLIPS LIES

cuts: each file cut at every 4 KiB, which `verify` must find.
flips: FLIPS random bits of all files, each of which `verify` must find.
lies: LIES times an array with random bytes under checksums that match; only a crash is a failure.

Memory is limited, and a case that takes minutes ends the process with a traceback. Prints a line per failure
and a JSON object of counts at the end; without it, the process has crashed.
"""

import faulthandler
import json
import resource
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from aggtree.engine.params import SearchParams
from aggtree.storage.errors import AggtreeError
from aggtree.storage.index.file_record import FileRecord
from aggtree.storage.index.format import CODES, DICTIONARIES, MANIFEST
from aggtree.storage.index.manifest import commit_manifest, read_manifest
from aggtree.storage.index.reader import open_index
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.index.writer import file_record
from aggtree.storage.verify.index import verify_index

MEMORY = 4 << 30
STEP = 4096
HANG_SECONDS = 300

Damage = tuple[str, int, bytes]
"""File, place of the damage, new content."""


def flips(index: Path, count: int, random: np.random.Generator) -> Iterator[Damage]:
    names = [MANIFEST, *(record.path for record in read_manifest(index).all_files)]
    contents = [(index / name).read_bytes() for name in names]
    for number in range(count):
        # Every file in turn, so that small ones are damaged as often as large ones.
        name, content = names[number % len(names)], bytearray(contents[number % len(names)])
        place = int(random.integers(len(content)))
        content[place] ^= 1 << int(random.integers(8))
        yield name, place, bytes(content)


def cuts(index: Path) -> Iterator[Damage]:
    for name in [MANIFEST, *(record.path for record in read_manifest(index).all_files)]:
        content = (index / name).read_bytes()
        for place in range(0, len(content), STEP):
            yield name, place, content[:place]


def lies(index: Path, count: int, random: np.random.Generator) -> Iterator[Damage]:
    manifest = read_manifest(index)
    left_out = [f"/{CODES}/", *([f"/{DICTIONARIES}"] if manifest.appended_segments else [])]
    records = [record for record in manifest.all_files if not any(name in record.path for name in left_out)]
    for number in range(count):
        record = records[number % len(records)]
        content = np.frombuffer((index / record.path).read_bytes(), np.uint8).copy()
        start, stop = sorted(random.integers(0, len(content) + 1, 2))
        content[start:stop] = random.integers(0, 256, stop - start, np.uint8)
        yield record.path, int(start), content.tobytes()


def with_matching_checksums(index: Path, name: str) -> None:
    """Commit the damaged file as if it were right."""
    manifest = read_manifest(index)

    def fresh(record: FileRecord) -> FileRecord:
        return replace(record, blocks=file_record(index, name).blocks) if record.path == name else record

    def renewed(segment: SegmentManifest) -> SegmentManifest:
        return replace(segment, files=tuple(fresh(record) for record in segment.files))

    live = manifest.live and replace(manifest.live, file=fresh(manifest.live.file))
    segments = tuple(renewed(segment) for segment in manifest.segments)
    commit_manifest(index, replace(manifest, segments=segments, live=live))


def search(index: Path, random: np.random.Generator) -> str:
    """Open and search; what is wrong with the answer, or nothing. An error of our own is an answer."""
    try:
        with open_index(index) as opened:
            queries = random.standard_normal((3, opened.dimension)).astype(np.float32)
            for params in (SearchParams(), SearchParams.unlimited(), SearchParams(limits=(3, 5))):
                ids, distances = opened.search(queries, 10, params)
                if ids.shape != (3, 10) or distances.shape != (3, 10):
                    return f"answers of shape {ids.shape}"
            opened.search(queries, 10, within=range(200))
    except AggtreeError as error:
        return "" if "\n" not in str(error) else f"an error of several lines: {error}"
    return ""


def try_all(
    index: Path, damages: Iterator[Damage], random: np.random.Generator, *, lying: bool
) -> tuple[int, int]:
    """Apply and take back each damage; returns how many there were, and how many failures."""
    good = (index / MANIFEST).read_bytes()
    failures = tried = 0
    for name, place, content in damages:
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        original = (index / name).read_bytes()
        (index / name).write_bytes(content)
        if lying:
            with_matching_checksums(index, name)
        found = verify_index(index)
        problem = search(index, random)
        if not lying and name not in {damage.file for damage in found}:
            problem = "verify did not find it"
        if problem:
            print(f"FAILURE {name} at {place}: {problem}", flush=True)
            failures += 1
        (index / name).write_bytes(original)
        (index / MANIFEST).write_bytes(good)
        tried += 1
    faulthandler.cancel_dump_traceback_later()
    return tried, failures


def main(index: Path, seed: int, flip_count: int, lie_count: int) -> None:
    search(index, np.random.default_rng(seed))  # compiled before memory is limited
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    random = np.random.default_rng(seed)
    counts = {}
    for kind, damages in (
        ("cuts", cuts(index)),
        ("flips", flips(index, flip_count, random)),
        ("lies", lies(index, lie_count, random)),
    ):
        counts[kind], counts[f"{kind} failed"] = try_all(index, damages, random, lying=kind == "lies")
    print(json.dumps(counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
