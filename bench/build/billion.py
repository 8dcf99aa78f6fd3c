"""A billion codes become an index: derived from really encoded ones, built and opened as any other.

    python -m bench billion --codes INDEX --work DIR [--rows 1000000000] [--memory 8GiB]
        [--queries "synthetic:sift?rows=1000&seed=1&first=10000000000"] [--bucket 1024 --direct-leaves 16]

INDEX holds the codes of at least ten million vectors and may be unfinished. They are the first rows of the
new index in DIR, so that ids stay true; the others are derived from them, see `grown_codes`. Code shards
are written as the encoding stage writes them, then `aggtree commit` does the work: its seconds, its measured
peak of memory and the bytes per vector are recorded, and what `opening` measures of the finished index. A
second run continues where the first stopped. With as many rows as INDEX has, only the tree differs.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import aggtree
from aggtree.jobs.planning.recipe import Recipe
from aggtree.jobs.running.memory import parse_size
from aggtree.storage.atomic import make_directory, write_bytes
from aggtree.storage.index.code_store import CodeStore, ShardRecord, create_code_store
from aggtree.storage.index.format import CODES, DICTIONARIES
from aggtree.storage.index.manifest import read_manifest
from aggtree.storage.work.job_record import JobRecord, start_job
from aggtree.storage.work.lock import BuildLock
from bench import record
from bench.data.grown_codes import PRIOR, encoded_job, grown, read_codes, real_codes
from bench.data.grown_codes_kernels import RealCodes
from bench.search import opening

SHARD_ROWS = 1_000_000


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench billion", description=__doc__)
    parser.add_argument("--codes", type=Path, required=True, help="an index of real vectors")
    parser.add_argument("--work", type=Path, required=True, help="directory of the new index")
    parser.add_argument("--rows", type=int, default=1_000_000_000)
    parser.add_argument("--shard-rows", type=int, default=SHARD_ROWS)
    parser.add_argument("--memory", default="8GiB")
    parser.add_argument("--bucket", type=int, help="of the new tree, if not that of INDEX")
    parser.add_argument("--direct-leaves", type=int)
    parser.add_argument("--threads", type=int, default=2, help="of the generator")
    parser.add_argument("--queries", help="a source of queries to answer from the new index")
    return parser.parse_args(arguments)


def start(options: argparse.Namespace, real: JobRecord) -> JobRecord:
    """The job of the new index, in the state after training."""
    recipe = Recipe.from_json(real.parameters)
    tree = replace(
        recipe.tree,
        bucket=recipe.tree.bucket if options.bucket is None else options.bucket,
        direct_leaves=recipe.tree.direct_leaves if options.direct_leaves is None else options.direct_leaves,
    )
    recipe = replace(recipe, shard_rows=options.shard_rows, tree=tree)
    source = {
        "kind": "grown codes",
        "rows": options.rows,
        "dimension": real.source["dimension"],
        "dtype": str(real.source["dtype"]),
        "codes": real.build,
        "prior": PRIOR,
    }
    job = start_job(options.work, recipe.to_json(), source)
    make_directory(job.build_directory)
    words = (real.build_directory / DICTIONARIES).read_bytes()
    write_bytes(job.build_directory / DICTIONARIES, words)
    job.record_done("train", 0, {"error": None})
    return job


def open_store(job: JobRecord, rows: int, width: int) -> CodeStore:
    place = job.build_directory / CODES
    if place.exists():
        return CodeStore.open(place)
    recipe = Recipe.from_json(job.parameters)
    return create_code_store(place, rows, width, recipe.shard_rows, recipe.chunk_rows)


def shard_codes(codes: np.ndarray, real: RealCodes, start: int, stop: int) -> np.ndarray:
    """Codes of rows start..stop: real ones as far as they go, then derived ones."""
    own = codes[start:stop]
    first = start + len(own)
    return own if first == stop else np.concatenate([own, grown(real, first, stop - first)])


def write_codes(job: JobRecord, codes: np.ndarray, real: RealCodes, rows: int, threads: int) -> int:
    """Write and record the shards that are missing; returns how many rows that were."""
    store = open_store(job, rows, codes.shape[1])
    done = {
        number
        for number, found in job.done("encode").items()
        if store.has_shard(ShardRecord.from_json(found))
    }

    def write(number: int) -> int:
        low, high = store.shard_range(number)
        written = store.write_shard(number, shard_codes(codes, real, low, high))
        job.record_done("encode", number, written.to_json() | {"invalid": []})
        return high - low

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(write, (number for number in range(store.shards) if number not in done)))


def generate(options: argparse.Namespace) -> dict[str, Any]:
    """All code shards of the new index, and how fast they were made."""
    began = time.perf_counter()
    codes, layout = read_codes(options.codes, options.rows)
    real = real_codes(codes, layout)
    ready = time.perf_counter()
    make_directory(options.work)
    with BuildLock(options.work):
        rows = write_codes(
            start(options, encoded_job(options.codes)[0]), codes, real, options.rows, options.threads
        )
    seconds = time.perf_counter() - ready
    return {"real_rows": len(codes), "sort_seconds": ready - began, "rows": rows, "seconds": seconds}


def build_tree(index: Path, memory: str) -> dict[str, Any]:
    """Final report of `aggtree commit`, run in a separate process to measure its own peak."""
    command = [sys.executable, "-m", "aggtree.jobs.cli.main", "commit", str(index), "--memory", memory]
    answer = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(answer.stdout.splitlines()[-1]))


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    options.work = options.work.absolute()
    if (options.work / "manifest.json").exists():
        sys.stderr.write(f"{options.work}: finished already; name another directory\n")
        return 2
    results: dict[str, Any] = {"generate": generate(options)}
    results["tree"] = build_tree(options.work, options.memory)
    with aggtree.open(options.work) as index:
        parts = index.bytes_by_part()
        needed = sum(size for part, size in parts.items() if part != CODES)
        results |= {
            "words": list(index.layout.words),
            "bytes": parts,
            "bytes_per_vector": needed / len(index),
        }
        results["levels"] = {
            "nodes": index.manifest.first_segment.level_nodes,
            "leaves": index.manifest.first_segment.level_leaves,
        }
    if options.queries:
        results["opening"] = opening.measured(options.work, options.queries)
    parameters = {"rows": options.rows, "memory": parse_size(options.memory)}
    parameters |= {
        name: read_manifest(options.work).first_segment.parameters[name] for name in ("bucket", "stray")
    }
    record.write("billion", parameters, results)
    return 0
