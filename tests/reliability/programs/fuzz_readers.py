"""Every reader of files, with a valid file for it and ways to spoil that file."""

import faulthandler
import json
import resource
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from helpers.small_index import make_index, make_sample, write_partitions
from helpers.source_files import (
    FLAT,
    bin_bytes,
    sample,
    small_file,
    write_hdf5,
    write_npy,
    write_parquet,
    write_zarr,
)

from aggtree.storage.atomic import canonical
from aggtree.storage.checksums import BlockChecksums, crc32c
from aggtree.storage.errors import AggtreeError
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.index.dictionary_file import load_dictionaries, load_state, save_dictionaries, save_state
from aggtree.storage.index.file_record import FileRecord
from aggtree.storage.index.format import LOCK, MANIFEST
from aggtree.storage.index.manifest import read_manifest
from aggtree.storage.sealed_json import seal, unseal, write_sealed
from aggtree.storage.sources.base import open_source, read_ground_truth
from aggtree.storage.sources.formats.vecs import write_vecs
from aggtree.storage.work.job_facts import FACTS, JobFacts, read_facts, save_facts
from aggtree.storage.work.job_record import start_job, unfinished_jobs
from aggtree.storage.work.lock import BuildLock, Owner
from aggtree.storage.work.partitions import open_partition
from aggtree.storage.work.runs import open_run, write_run

HEADER = 16
FEW = 30
"""Rows of the sources that take long to read."""
MEMORY = 6 << 30
HANG_SECONDS = 1800

Random = np.random.Generator


def mutated(data: bytes, random: Random) -> bytes:
    """A copy with some bytes changed, cut out, repeated or cut off."""
    changed = bytearray(data)
    for _ in range(random.integers(1, 4)):
        if not changed:
            break
        start, stop = sorted(random.integers(0, len(changed) + 1, 2).tolist())
        stop = min(stop, start + int(random.choice([1, 4, 64, 10**6])))
        match random.integers(6):
            case 0:
                changed[start % len(changed)] ^= 1 << int(random.integers(8))
            case 1:
                del changed[start:stop]
            case 2:
                changed[start:start] = changed[start:stop]
            case 3:
                changed[start:stop] = random.bytes(stop - start)
            case 4:
                del changed[start:]
            case 5:  # numbers at the ends of their ranges
                number = int(random.choice([0, 0x7F, 0x80, 0xFF]))
                changed[start : start + 4] = bytes([number]) * len(changed[start : start + 4])
    return bytes(changed)


def digits_changed(text: bytes, random: Random) -> bytes:
    """A copy of JSON in which some digits are others: numbers that lie, in a text that is whole."""
    changed = bytearray(text)
    digits = [place for place, byte in enumerate(changed) if 48 <= byte <= 57]
    for place in random.choice(digits, min(len(digits), int(random.integers(1, 5))), replace=False):
        changed[place] = random.integers(48, 58)
    return bytes(changed)


def resealed_array_file(data: bytes, random: Random) -> bytes:
    """Numbers of the header changed under a checksum that matches."""
    length = int.from_bytes(data[8:12], "little")
    text = digits_changed(data[HEADER : HEADER + length], random)
    return data[:12] + crc32c(text).to_bytes(4, "little") + text + data[HEADER + length :]


def resealed_record(data: bytes, random: Random) -> bytes:
    """Numbers of a sealed record changed under a checksum that matches."""
    text = digits_changed(canonical(unseal(data, "record")), random)
    try:
        return seal(json.loads(text))
    except ValueError:
        return text


def read_run(path: Path) -> None:
    with open_run(path) as run:
        run.codes.sum()
        run.ids.sum()
        run.check()


def read_partition(path: Path) -> None:
    with open_partition(path) as partition:
        partition.arrays()
        partition.check()


def read_codes(path: Path) -> None:
    store = CodeStore.open(path)
    store.read(0, min(store.rows, 1000))


def read_lock(path: Path) -> None:
    with BuildLock(path.parent):
        pass


def read_vectors(path: Path) -> None:
    """Everything a build or a query reads of a source."""
    with open_source(path) as source:
        # Memory must not follow what a header claims.
        size = sum(file.stat().st_size for file in path.rglob("*")) if path.is_dir() else path.stat().st_size
        if not str(path).endswith((".zarr", ".hdf5", ".parquet")):  # these may be compressed
            assert source.rows * source.dimension <= 8 * size
        source.read(0, min(source.rows, 5000))
        source.take([0, source.rows - 1])
        source.fingerprint()


@dataclass(frozen=True)
class Kind:
    """A valid file, what reads it, and what lies in it under matching checksums.

    speed : inputs for each one of the slowest kinds.
    """

    file: Path
    read: Callable[[Path], Any]
    lie: Callable[[bytes, Random], bytes] = mutated
    target: Path | None = None
    speed: int = 10

    def try_one(self, content: bytes) -> bool:
        """Read spoiled content; whether it was refused. Anything but an error of ours comes through."""
        self.file.write_bytes(content)
        try:
            self.read(self.target or self.file)
        except AggtreeError as error:
            if "\n" in str(error):
                raise ValueError(f"an error of several lines: {error}") from error
            return True
        return False


def _own_files(directory: Path) -> dict[str, Kind]:
    """Files of aggtree itself."""
    sample = make_sample(60)
    save_dictionaries(directory / "dictionaries", sample.dictionaries, sample.norm_ranges)
    save_state(directory / "state", {"a": np.arange(9.0), "b": np.array([3])})
    write_run(directory / "run", sample.codes, np.arange(60, dtype=np.uint32))
    (partition,) = write_partitions(directory / "partitions", sample, 1)
    make_index(directory / "i", sample)
    codes = directory / "i" / read_manifest(directory / "i").first_segment.directory / "codes.zarr"
    job = start_job(directory / "jobs", {"a": 1}, {"rows": 5})
    job.record_done("encode", 3, {"rows": 5})
    ids = FileRecord.of("build-0123456789ab/own_ids", BlockChecksums())
    save_facts(job, JobFacts(vectors="x.npy", own_ids=ids, training_error=1.5, figures=({"name": "train"},)))
    (directory / "locked").mkdir()
    write_sealed(directory / "locked" / LOCK, asdict(Owner.this_process()))
    return {
        "dictionaries": Kind(directory / "dictionaries", load_dictionaries, resealed_array_file),
        "state": Kind(directory / "state", load_state, resealed_array_file),
        "run": Kind(directory / "run", read_run, resealed_array_file),
        "partition": Kind(partition, read_partition, resealed_array_file),
        "manifest": Kind(
            directory / "i" / MANIFEST, lambda path: read_manifest(path.parent), resealed_record, speed=5
        ),
        "job": Kind(
            job.work_directory / "job.json",
            lambda path: unfinished_jobs(path.parent.parent),
            resealed_record,
        ),
        "partition record": Kind(
            job.work_directory / "done" / "encode" / "3.json", lambda _: job.done("encode"), resealed_record
        ),
        "job facts": Kind(job.work_directory / FACTS, lambda _: read_facts(job), resealed_record),
        "lock": Kind(directory / "locked" / LOCK, read_lock, resealed_record),
        "code store metadata": Kind(codes / "zarr.json", read_codes, digits_changed, codes, speed=2),
        "code shard": Kind(codes / "c" / "0" / "0", read_codes, mutated, codes, speed=1),
    }


def _sources(directory: Path) -> dict[str, Kind]:
    """Vectors and ground truth in every format."""
    kinds = {}
    for suffix in FLAT:
        path = directory / f"x.{suffix}"
        path.write_bytes(small_file(suffix))
        kinds[suffix] = Kind(path, read_vectors)
    ids = np.arange(12).reshape(3, 4)
    for suffix, data in (("ivecs", write_vecs(ids, "ivecs")), ("ibin", bin_bytes(ids, "<i4"))):
        path = directory / f"truth.{suffix}"
        path.write_bytes(data)
        kinds[f"ground truth {suffix}"] = Kind(path, read_ground_truth)
    np.save(directory / "truth.npy", ids)
    kinds["ground truth npy"] = Kind(directory / "truth.npy", read_ground_truth)
    few = sample()[:FEW]
    parts = directory / "x-parts"
    parts.mkdir()
    for number in range(3):
        write_npy(parts / f"{number}.npy", few[10 * number : 10 * number + 10])
    kinds["npy parts"] = Kind(parts / "1.npy", read_vectors, mutated, parts, speed=5)
    write_hdf5(directory / "x.hdf5", train=few)
    write_parquet(directory / "x.parquet", {"vector": list(few)}, row_group_size=10)
    write_zarr(directory / "x.zarr", few, chunks=(10, few.shape[1]))
    kinds["hdf5"] = Kind(directory / "x.hdf5", read_vectors, speed=2)
    kinds["ground truth hdf5"] = Kind(
        directory / "x.hdf5", lambda path: read_ground_truth(f"{path}::train"), speed=2
    )
    kinds["parquet"] = Kind(directory / "x.parquet", read_vectors, speed=2)
    store = directory / "x.zarr"
    kinds["zarr metadata"] = Kind(store / "zarr.json", read_vectors, digits_changed, store, speed=1)
    kinds["zarr chunk"] = Kind(store / "c" / "1" / "0", read_vectors, mutated, store, speed=1)
    return kinds


def make_kinds(directory: Path) -> dict[str, Kind]:
    """Every kind of file, valid, in a directory of its own."""
    return _own_files(directory) | _sources(directory)


KINDS = (
    *(
        "dictionaries",
        "state",
        "run",
        "partition",
        "manifest",
        "job",
        "partition record",
        "job facts",
        "lock",
    ),
    *(
        "code store metadata",
        "code shard",
        *FLAT,
        "npy parts",
        "hdf5",
        "parquet",
        "zarr metadata",
        "zarr chunk",
    ),
    *("ground truth ivecs", "ground truth ibin", "ground truth npy", "ground truth hdf5"),
)


def fuzz(kind: Kind, count: int, seed: int) -> int:
    """Read `count` spoiled files, then the valid one; how many were refused."""
    valid = kind.file.read_bytes()
    random = np.random.default_rng(seed)
    refused = 0
    for number in range(count):
        content = (mutated if number % 2 else kind.lie)(valid, random)
        refused += kind.try_one(content)
    kind.file.write_bytes(valid)
    kind.read(kind.target or kind.file)
    return refused


def fuzz_alone(kind: Kind, count: int, seed: int, report: Path) -> None:
    """`fuzz` in a process of its own, with limits; how many were refused goes to the file `report`."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    faulthandler.enable()
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    report.write_text(str(fuzz(kind, count, seed)))
