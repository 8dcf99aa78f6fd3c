"""Throughput of `aggtree verify`: bytes of an index per second, files in the page cache.

    python -m bench verify --work DIR [--rows 25000000] [--rounds 3]

Random codes make the index, so no vectors are needed. For 1 and 2 workers: the whole of `verify`, and for
comparison the checksums alone. One JSON line per number of workers.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.params import TreeParams
from aggtree.engine.tree.code_order import sort_codes
from aggtree.engine.tree.layout import build_tree_partition
from aggtree.storage.atomic import make_directory
from aggtree.storage.index.code_store import create_code_store
from aggtree.storage.index.dictionary_file import save_dictionaries
from aggtree.storage.index.format import CODES, DICTIONARIES
from aggtree.storage.index.manifest import read_manifest
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.index.writer import commit_index, stitch_partitions
from aggtree.storage.verify.index import check_bytes, verify_index
from aggtree.storage.work.job_record import finish_job, start_job
from aggtree.storage.work.partitions import write_partition
from bench import record

WORDS = (4096, *[256] * 7)
DIMENSION = 128
WORKERS = (1, 2)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench verify", description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="where the index is made, and kept")
    parser.add_argument("--rows", type=int, default=25_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="of which the best counts")
    return parser.parse_args(arguments)


def random_codes(rows: int) -> NDArray[np.uint8]:
    """Codes (rows, width) uint8 of labels that are all equally likely."""
    codes = np.random.default_rng(0).integers(0, 256, (rows, CodeLayout(WORDS).width), np.uint8)
    codes[:, 0] %= WORDS[0] // 256
    return codes


def make_index(index: Path, rows: int) -> SegmentManifest:
    """An index of random codes, by the storage layer alone."""
    layout, params = CodeLayout(WORDS), TreeParams(bucket=1024)
    words = np.random.default_rng(1).standard_normal((sum(WORDS), DIMENSION)).astype(np.float32)
    dictionaries = Dictionaries(words, layout)
    ranges = np.tile(np.array([[0, 2 * DIMENSION]], np.float32), (layout.levels + 1, 1))
    job = start_job(index, {"words": list(WORDS)}, {"rows": rows}, replace=True)
    make_directory(job.build_directory)
    save_dictionaries(job.build_directory / DICTIONARIES, dictionaries, ranges)
    codes = random_codes(rows)
    store = create_code_store(job.build_directory / CODES, *codes.shape)
    shards = {
        shard: store.write_shard(shard, codes[slice(*store.shard_range(shard))])
        for shard in range(store.shards)
    }
    partition = job.work_directory / "partition"
    ordered = sort_codes(codes, np.arange(rows, dtype=np.uint32))
    write_partition(partition, build_tree_partition(*ordered, dictionaries, params, ranges))
    tree = stitch_partitions(index, job.build, [partition], layout, norm_bytes=params.norm_bytes)
    manifest = commit_index(
        index,
        job.build,
        tree=tree,
        codes=store.file_records(f"{job.build_directory.name}/{CODES}", shards),
        source_rows=rows,
        parameters=job.parameters,
        source=job.source,
    )
    finish_job(index)
    return manifest.first_segment


def seconds(action: Callable[[], Any], rounds: int) -> list[float]:
    """Seconds of each of several runs, after a warm-up run."""
    taken = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        if action():
            raise SystemExit("the index of this benchmark is damaged: remove it")
        taken.append(time.perf_counter() - began)
    return taken[1:]


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    index = options.work / f"verify-{options.rows}.index"
    segment = read_manifest(index).first_segment if index.exists() else make_index(index, options.rows)
    size = sum(file.bytes for file in segment.files)
    for workers in WORKERS:
        whole = seconds(lambda count=workers: verify_index(index, workers=count), options.rounds)
        sums = seconds(
            lambda count=workers: check_bytes(index, segment, lambda _: None, count), options.rounds
        )
        speed = size / min(whole) / 1e9
        results = {"seconds": whole, "checksum_seconds": sums, "gigabytes_per_second": speed}
        record.write("verify", {"rows": options.rows, "bytes": size, "workers": workers}, results)
        print(
            f"{size / 1e6:,.0f} MB, {workers} workers: {speed:.2f} GB/s, "
            f"checksums alone {size / min(sums) / 1e9:.2f} GB/s"
        )
    return 0
