"""Every reader of our own files gets mutated ones: it reads them, or raises an error of ours, on one line."""

import json

import numpy as np
import pytest
from small_index import make_index, make_sample, write_parts

from aggtree.storage.atomic import canonical
from aggtree.storage.checksums import crc32c
from aggtree.storage.code_store import CodeStore
from aggtree.storage.dictionary_file import load_dictionaries, load_state, save_dictionaries, save_state
from aggtree.storage.errors import AggtreeError
from aggtree.storage.format import MANIFEST
from aggtree.storage.job_record import start_job, unfinished_jobs
from aggtree.storage.manifest import read_manifest
from aggtree.storage.part_files import open_part
from aggtree.storage.run_files import open_run, write_run
from aggtree.storage.sealed_json import seal, unseal

HEADER = 16


def mutated(data, random):
    """A copy with some bytes changed, cut out, repeated or cut off."""
    changed = bytearray(data)
    for _ in range(random.integers(1, 4)):
        if not changed:
            break
        start, stop = sorted(random.integers(0, len(changed) + 1, 2))
        stop = min(stop, start + int(random.choice([1, 4, 64, 10**6])))
        match random.integers(5):
            case 0:
                changed[start % len(changed)] ^= 1 << random.integers(8)
            case 1:
                del changed[start:stop]
            case 2:
                changed[start:start] = changed[start:stop]
            case 3:
                changed[start:stop] = random.bytes(stop - start)
            case 4:
                del changed[start:]
    return bytes(changed)


def digits_changed(text, random):
    """A copy of JSON in which some digits are others: numbers that lie, in a text that is whole."""
    changed = bytearray(text)
    digits = [place for place, byte in enumerate(changed) if 48 <= byte <= 57]
    for place in random.choice(digits, min(len(digits), int(random.integers(1, 5))), replace=False):
        changed[place] = random.integers(48, 58)
    return bytes(changed)


def resealed_array_file(data, random):
    """Numbers of the header changed under a checksum that matches."""
    length = int.from_bytes(data[8:12], "little")
    text = digits_changed(data[HEADER : HEADER + length], random)
    return data[:12] + crc32c(text).to_bytes(4, "little") + text + data[HEADER + length :]


def resealed_record(data, random):
    """Numbers of a sealed record changed under a checksum that matches."""
    text = digits_changed(canonical(unseal(data, "record")), random)
    try:
        return seal(json.loads(text))
    except ValueError:
        return text


def read_run(path):
    with open_run(path) as run:
        run.read(0, run.count)
        run.check()


def read_part(path):
    with open_part(path) as part:
        part.arrays()
        part.check()


def read_codes(path):
    store = CodeStore.open(path.parent)
    store.read(0, min(store.rows, 1000))


def write_job(path):
    job = start_job(path.parent, {"a": 1}, {"rows": 5})
    return job.work_directory / "job.json"


def make_files(directory):
    """Each kind of file, with what reads it and what lies in it under matching checksums."""
    sample = make_sample(60)
    save_dictionaries(directory / "dictionaries", sample.dictionaries, sample.norm_ranges)
    save_state(directory / "state", {"a": np.arange(9.0), "b": np.int64(3)})
    write_run(directory / "run", sample.codes, np.arange(60, dtype=np.uint32))
    (part,) = write_parts(directory / "parts", sample, 1)
    make_index(directory / "i", sample)
    manifest = read_manifest(directory / "i")
    job = write_job(directory / "jobs" / "x")
    return {
        "dictionaries": (directory / "dictionaries", load_dictionaries, resealed_array_file),
        "state": (directory / "state", load_state, resealed_array_file),
        "run": (directory / "run", read_run, resealed_array_file),
        "part": (part, read_part, resealed_array_file),
        "manifest": (directory / "i" / MANIFEST, lambda path: read_manifest(path.parent), resealed_record),
        "job": (job, lambda path: unfinished_jobs(path.parent.parent), resealed_record),
        "zarr metadata": (
            directory / "i" / manifest.directory / "codes.zarr" / "zarr.json",
            read_codes,
            digits_changed,
        ),
        "zarr shard": (
            directory / "i" / manifest.directory / "codes.zarr" / "c" / "0" / "0",
            lambda path: read_codes(path.parent.parent),
            mutated,
        ),
    }


KINDS = ["dictionaries", "state", "run", "part", "manifest", "job", "zarr metadata", "zarr shard"]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [100, pytest.param(15_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_mutated_files_are_read_or_refused(tmp_path, kind, count):
    path, read, lie = make_files(tmp_path)[kind]
    data = path.read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    for number in range(count):
        path.write_bytes((mutated if number % 2 else lie)(data, random))
        try:
            read(path)
        except AggtreeError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > count // 3
    path.write_bytes(data)
    read(path)
