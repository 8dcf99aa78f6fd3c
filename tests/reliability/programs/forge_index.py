"""Forges an index again and again, with checksums that match, and does with it all that a user may.

    python forge_index.py INDEX SEED COUNT

A forgery changes counts, names, offsets, row maps, segments, dictionaries or groups, alone or together, as an
attacker would who can compute checksums. It must be refused by an error of ours of one line, or answered with
rows that exist. Memory is limited, and a case that takes minutes ends the process with a traceback. Prints a
line per failure and a JSON object of counts at the end; without it, the process has crashed.
"""

import copy
import faulthandler
import json
import os
import resource
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.params import SearchParams
from aggtree.storage.checksums import BlockChecksums, crc32c, to_hex
from aggtree.storage.errors import AggtreeError
from aggtree.storage.index.format import ARRAYS, MANIFEST, TreeCounts
from aggtree.storage.index.opened import vectors as index_vectors
from aggtree.storage.index.reader import Index, open_index
from aggtree.storage.sealed_json import read_sealed, seal
from aggtree.storage.sources.array import ArraySource
from aggtree.storage.sources.base import VectorSource, open_source
from aggtree.storage.sources.joined import rows_of
from aggtree.storage.sources.unit_rows import metric_source
from aggtree.storage.verify.index import verify_index

MEMORY = 4 << 30
MOST_BYTES = 1 << 20
"""Of a file that a forgery makes longer."""
HANG_SECONDS = 300
ALIGNED = 64
PARAMS = (SearchParams(), SearchParams.unlimited(), SearchParams(limits=(3, 5)))
NAMES = (
    *("../../etc/passwd", "/etc/passwd", "tree/../../x", "", ".", "a" * 5000, "tree//ids", "tree\\ids"),
    *("x\ny", "ünï", "\x00", "-rf", "build-0123456789ab/tree/ids", "CON", "tree/ids/", "link", "fifo"),
)
PLACES = (
    *("/etc/passwd", "/dev/zero", "/dev/zero.npy", "file:///dev/zero.npy", "http://127.0.0.1:9/x.npy"),
    *("s3://b/x.npy", "joined:" * 500, "unit:unit:/etc/hostname.npy", "joined:/etc/x.npy,demo:base", "x\ny"),
    *("../x.npy", "demo:base", "synthetic:sift?rows=1000000000000", "/proc/self/mem.npy"),
)

Random = np.random.Generator
Record = dict[str, Any]


@dataclass
class Forgery:
    """An index in memory: its manifest, its files by name, and what is a link or a pipe instead of a file."""

    record: Record
    files: dict[str, bytes]
    odd: dict[str, str]

    @property
    def segments(self) -> list[Record]:
        return [self.record, *self.record.get("segments", [])]

    @property
    def file_records(self) -> list[Record]:
        """Of files that are there."""
        return [file for file in self.all_records if file["path"] in self.files]

    @property
    def all_records(self) -> list[Record]:
        live = [self.record["live"]] if isinstance(self.record.get("live"), dict) else []
        return [file for segment in self.segments for file in segment["files"]] + live

    def seal(self) -> None:
        """Let sizes, lengths and checksums be those of the files."""
        for file in self.file_records:
            content = self.files[file["path"]]
            checksums = BlockChecksums()
            checksums.add(content)
            file["bytes"], file["crc32c"] = len(content), to_hex(checksums.blocks)
            if "dtype" in file:
                file["length"] = len(content) // max(1, int(str(file["dtype"])[2:] or 1))

    def write(self, index: Path) -> None:
        (index / MANIFEST).write_bytes(seal(self.record))
        for name, content in self.files.items():
            path = index / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for name, kind in self.odd.items():
            (index / name).unlink()
            if kind == "link":
                (index / name).symlink_to("/etc/passwd")
            elif kind == "fifo":
                os.mkfifo(index / name)
            else:
                (index / name).mkdir()


def read(index: Path) -> Forgery:
    """A whole index, to forge others from."""
    record = read_sealed(index / MANIFEST)
    made = Forgery(record, {}, {})
    made.files = {file["path"]: (index / file["path"]).read_bytes() for file in made.all_records}
    return made


def with_vectors(made: Forgery) -> np.ndarray:
    """Vectors that the manifest says the index was built from, by their fingerprints."""
    rows = sum(segment["source_rows"] for segment in made.segments)
    base = np.random.default_rng(0).standard_normal((rows, made.record["dimension"])).astype(np.float32)
    first = 0
    for segment in made.segments:
        part = rows_of(ArraySource(base), first, segment["source_rows"])
        segment["source"] = metric_source(part, made.record.get("metric", "l2")).fingerprint()
        first += segment["source_rows"]
    return base


def one_of(random: Random, values: Any) -> Any:
    return values[int(random.integers(len(values)))]


def other_number(random: Random, value: Any) -> Any:
    """A number near another one, at the end of a range, or none at all."""
    near = [value + 1, value - 1, 2 * value, value // 2] if isinstance(value, int) else []
    ends = [0, 1, -1, 2**15, 2**16, 2**31 - 1, 2**32, 2**47, 2**48, 2**63, 2**64, 10**30]
    return one_of(random, [*near, *near, *ends, 1.5, "7", None, True, [], {}])


def some_bytes(random: Random, content: bytes, dtype: str) -> bytes:
    """Other numbers in an array: random, all equal, reversed, shifted, at the ends of their range."""
    if not content:
        return content
    kind = np.dtype(dtype)
    array = np.frombuffer(content, kind).copy()
    start, stop = sorted(random.integers(0, len(array) + 1, 2).tolist())
    start, stop = (0, len(array)) if random.random() < 0.3 else (start, stop)
    part = array[start:stop]
    raw = np.frombuffer(random.bytes(part.nbytes), kind)
    ends = np.iinfo(kind) if kind.kind in "iu" else np.finfo(kind)
    with np.errstate(over="ignore"):
        choices = (
            raw,
            part[::-1],
            np.zeros_like(part),
            np.full_like(part, ends.max),
            np.full_like(part, ends.min),
            np.sort(raw),
            part + np.ones(1, kind),
            np.full_like(part, part[0] if len(part) else 0),
            np.full_like(part, np.nan if kind.kind == "f" else min(len(array), ends.max)),
        )
    array[start:stop] = one_of(random, choices)
    return array.tobytes()


def forge_counts(random: Random, made: Forgery) -> None:
    """Counts of a segment, or of the index; half of the time with files that fit them."""
    segment = one_of(random, made.segments)
    names = [name for name in ("level_nodes", "level_leaves", "words") if name in segment]
    if random.random() < 0.6:
        counts = segment[one_of(random, names)]
        place = int(random.integers(len(counts)))
        if random.random() < 0.5 and len(counts) > 1:  # from one level to another
            other, moved = int(random.integers(len(counts))), int(random.integers(1, 50))
            counts[place], counts[other] = counts[place] - moved, counts[other] + moved
        else:
            counts[place] = other_number(random, counts[place])
    else:
        names = ["rows", "source_rows", "first_row", "dimension", "norm_bytes", "block_bytes", "version"]
        name = one_of(random, [name for name in names if name in segment])
        segment[name] = other_number(random, segment[name])
    if random.random() < 0.7:
        fit_files(random, made, segment)


def fit_files(random: Random, made: Forgery, segment: Record) -> None:
    """Files of the lengths that follow from the counts, if that is possible."""
    first = made.record
    try:
        segment["rows"] = sum(segment["level_leaves"])
        counts = TreeCounts(
            layout=CodeLayout(tuple(first["words"])),
            norm_bytes=first["norm_bytes"],
            planes=bool(first.get("planes")),
            level_nodes=tuple(segment["level_nodes"]),
            level_leaves=tuple(segment["level_leaves"]),
        )
        lengths = counts.lengths()
    except (ValueError, TypeError, KeyError, OverflowError, IndexError):
        return
    for file in segment["files"]:
        name = file["path"].rpartition("/")[2]
        known = file["path"] in made.files and "/tree/" in file["path"]
        if not known or name not in lengths or "dtype" not in file:
            continue
        size = lengths[name] * int(file["dtype"][2:])
        content = made.files[file["path"]]
        if not (isinstance(size, int) and 0 <= size <= MOST_BYTES):
            continue
        more = random.bytes(size - len(content)) if size > len(content) else b""
        made.files[file["path"]] = content[:size] + more


def forge_arrays(random: Random, made: Forgery) -> None:
    """Offsets, labels, norms, records or row numbers of a tree."""
    for _ in range(int(random.integers(1, 4))):
        segment = one_of(random, made.segments)
        names = [spec.name for spec in ARRAYS]
        name = one_of(random, [*names, "child_start", "leaf_start", "ids", "ids"])
        for file in segment["files"]:
            if file["path"].endswith(f"/tree/{name}") and file["path"] in made.files:
                made.files[file["path"]] = some_bytes(random, made.files[file["path"]], file["dtype"])


def forge_row_maps(random: Random, made: Forgery) -> None:
    """Row numbers, own ids and the bits of deleted rows."""
    for file in made.file_records:
        content, name = made.files[file["path"]], file["path"].rpartition("/")[2]
        if name == "ids" and random.random() < 0.8:
            made.files[file["path"]] = some_bytes(random, content, file["dtype"])
        elif name == "own_ids" and random.random() < 0.8:
            made.files[file["path"]] = some_bytes(random, content, "<i8")
        elif name.startswith("live-"):
            content = made.files[file["path"]] = some_bytes(random, content, "|u1")
            rows = sum(segment["source_rows"] for segment in made.segments)
            bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")[:rows]
            file["deleted"] = one_of(random, [int((bits == 0).sum()), 1, 0, rows, 10**9])


def forge_segments(random: Random, made: Forgery) -> None:
    """Segments that overlap, are there twice, in another order, or gone."""
    segments = made.record.setdefault("segments", [])
    what = int(random.integers(5))
    if what == 0 and segments:
        segments.pop(int(random.integers(len(segments))))
    elif what == 1 and segments:
        segments.reverse()
    elif what == 2 and segments:
        segment = one_of(random, segments)
        segment["first_row"] = other_number(random, segment["first_row"])
    else:  # once more, under another name
        original = one_of(random, made.segments)
        names = {
            "build",
            "rows",
            "source_rows",
            "level_nodes",
            "level_leaves",
            "parameters",
            "source",
            "files",
        }
        twin = copy.deepcopy({name: original[name] for name in names})
        twin["build"] = "".join(one_of(random, "0123456789abcdef") for _ in range(12))
        for file in twin["files"]:
            path = file["path"].replace(f"build-{original['build']}", f"build-{twin['build']}")
            if what == 4:
                path = file["path"]  # the files of the other
            made.files[path] = made.files.get(file["path"], b"")
            file["path"] = path
        rows = sum(segment["source_rows"] for segment in made.segments)
        twin["first_row"] = one_of(random, [rows, rows, rows, rows - 1, 0, original.get("first_row", 0)])
        segments.append(twin)
        made.record["version"] = max(3, made.record["version"])
    if not segments:
        del made.record["segments"]


def forge_names(random: Random, made: Forgery) -> None:
    """Names of files, builds and places."""
    what = int(random.integers(6))
    file = one_of(random, made.file_records)
    if what == 0:
        made.record["build"] = one_of(random, [*NAMES, "0123456789ab"])
    elif what == 1:
        one_of(random, made.segments)["vectors"] = one_of(random, PLACES)
        if random.random() < 0.5:
            made.record["vectors_seal"] = one_of(random, ["", "0" * 64, "x", "ü"])
    elif what == 2:
        made.record["codes"] = {"location": one_of(random, PLACES), "files": []}
        inside = [file for file in made.record["files"] if "/codes.zarr/" in file["path"]]
        if random.random() < 0.8:
            made.record["files"] = [file for file in made.record["files"] if file not in inside]
            for code in inside:
                code["path"] = code["path"].partition("codes.zarr/")[2]
            made.record["codes"]["files"] = inside
    elif what == 3:
        made.odd[file["path"]] = one_of(random, ["link", "fifo", "directory"])
    elif what == 4:
        file["path"] = one_of(random, made.file_records)["path"]
    else:
        directory = file["path"].rpartition("/")[0]
        file["path"] = one_of(random, [one_of(random, NAMES), f"{directory}/{one_of(random, NAMES)}"])


def forge_array_files(random: Random, made: Forgery) -> None:
    """Words, norm ranges and groups of the first level, and the headers of their files."""
    names = [name for name in made.files if name.endswith(("/dictionaries", "/first_level"))]
    name = one_of(random, names)
    data = made.files[name]
    length = int.from_bytes(data[8:12], "little")
    header, body = json.loads(data[16 : 16 + length]), bytearray(data)
    array = one_of(random, header["arrays"])
    start = array["offset"]
    size = int(np.prod(array["shape"])) * np.dtype(array["dtype"]).itemsize
    body[start : start + size] = some_bytes(random, bytes(body[start : start + size]), array["dtype"])
    array["crc32c"] = type(array["crc32c"])(
        f"{crc32c(bytes(body[start : start + size])):08x}"
        if isinstance(array["crc32c"], str)
        else crc32c(bytes(body[start : start + size]))
    )
    if random.random() < 0.3:
        key = one_of(random, ["offset", "shape", "dtype", "name"])
        values = {
            "offset": other_number(random, array["offset"]),
            "shape": [other_number(random, count) for count in array["shape"]],
            "dtype": one_of(random, ["<f8", "<i8", "|u1", "|O", "<U9", "<f4"]),
            "name": one_of(random, ["words", "sizes", "x"]),
        }
        array[key] = values[key]
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    text = text.ljust(length) if len(text) <= length else text
    if len(text) == length:
        body[16 : 16 + length] = text
        body[12:16] = crc32c(text).to_bytes(4, "little")
    content = bytes(body)
    shared = name.endswith("/dictionaries") and random.random() < 0.8
    for other in made.files:  # all segments have the same dictionaries
        if other == name or (shared and other.endswith("/dictionaries")):
            made.files[other] = content


KINDS: dict[str, Callable[[Random, Forgery], None]] = {
    "counts": forge_counts,
    "arrays": forge_arrays,
    "row maps": forge_row_maps,
    "segments": forge_segments,
    "names": forge_names,
    "array files": forge_array_files,
}


def check_ids(index: Index, ids: np.ndarray) -> None:
    """Answers are rows of the index, or own ids of them."""
    own = index.own_ids
    rows = index.manifest.all_source_rows
    found = ids[ids != -1]
    if own is None and found.size and not (found.min() >= 0 and found.max() < rows):
        raise ValueError(f"id {found.min()} or {found.max()} of {rows} rows")
    if own is not None and not np.isin(found, np.concatenate([block for _, block in own.blocks()])).all():
        raise ValueError("an id that no row has")


def use(index: Path, random: Random, base: np.ndarray) -> bool:
    """What a user may do with an index; each part may be refused. Returns whether it could be opened.

    base : the vectors of the index that was forged.
    """
    opened_once = []

    def allow(action: Callable[[], object]) -> None:
        try:
            action()
        except AggtreeError as error:
            if "\n" in str(error) or len(str(error)) > 3000:
                raise ValueError(f"an error of several lines, or of pages: {str(error)[:300]!r}") from error

    def search(opened: Index, **options: Any) -> None:
        queries = random.standard_normal((3, opened.dimension)).astype(np.float32)
        k = one_of(random, [1, 10, 5000])
        ids, distances = opened.search(queries, k, one_of(random, PARAMS), **options)
        if ids.shape != (3, k) or distances.shape != (3, k):
            raise ValueError(f"answers of shape {ids.shape}")
        check_ids(opened, ids)

    def look(given: np.ndarray | None) -> None:
        with open_index(index, vectors=given) as opened:
            opened_once.append(True)
            rows = np.arange(min(opened.manifest.all_source_rows, 10**6))
            masks = {"within": rows % 2 == 0}, {"within": rows % 50 == 1}
            masks = () if opened.manifest.all_source_rows > len(rows) else masks
            for options in ({}, {}, *masks, {"rerank": 5000}):
                allow(lambda options=options: search(opened, **options))  # type: ignore[misc]
            query = np.zeros(opened.dimension)
            if opened.metric == "l2":
                allow(lambda: check_ids(opened, opened.range_search(query, 2.0).ids))
            found = opened.search(query, 3).ids[0]
            allow(lambda: opened.reconstruct(found[found != -1]))
            allow(opened.refresh)
            str(opened), opened._repr_html_(), opened.bytes_by_part()

    allow(lambda: look(base))
    allow(lambda: look(None))
    allow(lambda: verify_index(index, deep=random.random() < 0.3))
    return bool(opened_once)


def try_one(index: Path, whole: Forgery, base: np.ndarray, random: Random) -> tuple[str, str, bool]:
    """The kinds of one forgery, what went wrong with it, or nothing, and whether it could be opened."""
    made = copy.deepcopy(whole)
    names = random.choice(list(KINDS), int(random.integers(1, 4)), replace=False).tolist()
    for number, name in enumerate(names):
        # What an earlier forgery put there may be nothing a later one can work on.
        with suppress(*((Exception,) if number else ())):
            KINDS[name](random, made)
    made.seal()
    for path in list(index.iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with suppress(OSError, ValueError):  # names that no file system takes
        made.write(index)
    try:
        return "+".join(names), "", use(index, random, base)
    except Exception as error:
        return "+".join(names), f"{type(error).__name__}: {str(error)[:300]}", True


def main(index: Path, seed: int, count: int) -> None:
    def never(place: str) -> VectorSource:
        if not place.startswith(("demo:", "synthetic:")):
            raise ValueError(f"opened {place}")
        return open_source(place)

    whole = read(index)
    base = with_vectors(whole)
    whole.write(index)
    use(index, np.random.default_rng(seed), base)  # compiled before memory is limited
    warnings.simplefilter("ignore", RuntimeWarning)  # forged words overflow
    index_vectors.open_source = never  # type: ignore[assignment]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    counts: Counter[str] = Counter()
    for number in range(count):
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        kinds, problem, opened = try_one(index, whole, base, np.random.default_rng([seed, number]))
        counts["forgeries"] += 1
        counts["opened"] += opened
        counts["failed"] += bool(problem)
        if problem:
            print(f"FAILURE {seed} {number} {kinds}: {problem}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps(counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
