"""A small index made by the storage layer alone, without a job: what the storage tests read and damage."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.params import TreeParams
from aggtree.engine.tree.code_order import sort_codes
from aggtree.engine.tree.layout import build_tree_partition
from aggtree.storage.atomic import make_directory
from aggtree.storage.index.code_store import create_code_store
from aggtree.storage.index.dictionary_file import save_dictionaries
from aggtree.storage.index.format import CODES, DICTIONARIES, build_name
from aggtree.storage.index.live_rows import write_live
from aggtree.storage.index.manifest import IndexManifest, commit_manifest, read_manifest
from aggtree.storage.index.own_ids import write_own_ids
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.index.writer import StitchedTree, describe_build, stitch_partitions
from aggtree.storage.sources.ids import open_ids
from aggtree.storage.work.job_record import JobRecord, finish_job, start_job
from aggtree.storage.work.partitions import write_partition


@dataclass(frozen=True, eq=False)
class Sample:
    """Everything an index is made from."""

    dictionaries: Dictionaries
    norm_ranges: NDArray[np.float32]
    codes: NDArray[np.uint8]
    params: TreeParams


def make_sample(
    rows: int = 500, words: tuple[int, ...] = (300, 7, 16), *, seed: int = 0, params: TreeParams | None = None
) -> Sample:
    """Random dictionaries of dimension 5 and codes of which many are equal."""
    random = np.random.default_rng(seed)
    layout = CodeLayout(words)
    scale = np.repeat(0.5 ** np.arange(len(words)), words)[:, None]
    vectors = (random.standard_normal((sum(words), 5)) * scale).astype(np.float32)
    labels = (random.random((rows, len(words))) ** 3 * words).astype(np.uint16)
    levels = len(words) + 1
    norm_ranges = np.stack([np.full(levels, -3, np.float32), np.full(levels, 9, np.float32)], axis=1)
    return Sample(
        Dictionaries(vectors, layout),
        norm_ranges,
        layout.pack(labels),
        params or TreeParams(bucket=4, direct_leaves=1),
    )


def shared_rows(layout: CodeLayout, rows: NDArray[np.uint8], code: NDArray[np.uint8]) -> NDArray[np.int64]:
    """How many of `rows` share the first 0..M labels of `code`."""
    ends = [layout.prefix_bytes(level) for level in range(layout.levels + 1)]
    return np.array([(rows[:, :end] == code[:end]).all(axis=1).sum() for end in ends], np.int64)


def write_partitions(directory: Path, sample: Sample, partitions: int) -> list[Path]:
    """Write the tree of a sample in partitions of about equal size."""
    make_directory(directory)
    codes, ids = sort_codes(sample.codes, np.arange(len(sample.codes), dtype=np.uint32))
    layout, ends = sample.dictionaries.layout, np.linspace(0, len(codes), partitions + 1).astype(int)
    paths = []
    for start, stop in pairwise(ends):
        partition = build_tree_partition(
            codes[start:stop],
            ids[start:stop],
            sample.dictionaries,
            sample.params,
            sample.norm_ranges,
            shared_rows(layout, codes[:start], codes[start]),
            shared_rows(layout, codes[stop:], codes[stop - 1]),
        )
        paths.append(directory / f"{len(paths)}.partition")
        write_partition(paths[-1], partition)
    return paths


def stitch(index: Path, build: str, sample: Sample, partitions: list[Path]) -> StitchedTree:
    return stitch_partitions(
        index,
        build,
        partitions,
        sample.dictionaries.layout,
        norm_bytes=sample.params.norm_bytes,
        planes=sample.params.planes,
    )


def make_index(
    index: Path,
    sample: Sample | None = None,
    *,
    partitions: int = 3,
    name: str = "small",
    ids: NDArray[np.int64] | None = None,
) -> IndexManifest:
    """Build and commit an index; `name` stands for the parameters of the build, `ids` are own ids."""
    sample = sample or make_sample()
    job = start_job(index, {"name": name}, {"rows": len(sample.codes)}, replace=True)
    manifest = IndexManifest(segments=(make_build(job, sample, partitions, ids),))
    commit_manifest(index, manifest)
    finish_job(index)
    return manifest


def make_build(
    job: JobRecord, sample: Sample, partitions: int, ids: NDArray[np.int64] | None
) -> SegmentManifest:
    """The files of a build, and what a manifest states of them."""
    make_directory(job.build_directory)
    save_dictionaries(job.build_directory / DICTIONARIES, sample.dictionaries, sample.norm_ranges)
    store = create_code_store(
        job.build_directory / CODES, *sample.codes.shape, shard_rows=200, chunk_rows=100
    )
    shards = {}
    for shard in range(store.shards):
        shards[shard] = store.write_shard(shard, sample.codes[slice(*store.shard_range(shard))])
    tree = stitch(
        job.index, job.build, sample, write_partitions(job.work_directory / "partitions", sample, partitions)
    )
    own_ids = None
    if ids is not None:
        source = open_ids(ids)
        checksum = str(source.fingerprint()["ids_crc32c"])
        own_ids = write_own_ids(job.build_directory, source, len(ids), checksum=checksum, room=0)
    return describe_build(
        job.index,
        job.build,
        tree=tree,
        codes=store.file_records(f"{build_name(job.build)}/{CODES}", shards),
        source_rows=len(sample.codes),
        parameters=job.parameters,
        source=job.source,
        own_ids=own_ids,
    )


def add_segment(
    index: Path, sample: Sample, deleted: Sequence[int] = (), ids: NDArray[np.int64] | None = None
) -> IndexManifest:
    """Append the rows of a sample, and delete some rows of the whole."""
    now = read_manifest(index)
    source = {"rows": len(sample.codes), "first_row": now.all_source_rows}
    job = start_job(index, {"name": "segment"}, source, task="append")
    segment = replace(make_build(job, sample, 2, ids), first_row=now.all_source_rows)
    grown = replace(now, segments=(*now.segments, segment))
    rows = grown.all_source_rows
    if deleted:
        live = np.ones(rows, np.bool_)
        live[list(deleted)] = False
        grown = replace(grown, live=write_live(index, np.packbits(live, bitorder="little"), rows))
    commit_manifest(index, grown)
    finish_job(index)
    return grown
