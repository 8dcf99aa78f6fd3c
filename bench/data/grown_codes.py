"""More codes from real ones: a billion that have the prefixes of a real billion, in minutes.

    python -m bench grown_codes --codes INDEX [--start 1000000] [--rows 10000000]

Encoding a billion vectors takes hours, and what a tree's size and speed depend on is which prefixes its
codes share. A derived code follows a real code, chosen at random, through all labels it shares with any
other real code, and then leaves it:

    real code      i_1 i_2 | i_3 i_4 i_5 ...     no other real code begins with i_1 i_2 i_3
    derived code   i_1 i_2 | a   b   c ...       a from a row that shares i_1, b and c... from two others

A real code is to the other real codes what a new row is to all of them, so how far a new row's prefix is
known is distributed as it is here (Good and Turing's argument). The next label is drawn from a random row
that shares one label fewer; the labels behind it from rows that share fewer still. A context of few rows
knows few labels: one of c rows is left for the next wider with probability PRIOR / (c + PRIOR).

This module checks it: the first `start` rows of INDEX are grown to `rows` rows and compared with as
many real ones, prefixes per level and shared prefixes alike.
"""

import argparse
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.params import TreeParams
from aggtree.engine.tree.build_kernels import common_labels, hang_levels, level_counts
from aggtree.engine.tree.code_order import sort_codes
from aggtree.engine.tree.layout import record_sizes
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.index.format import CODES
from aggtree.storage.index.manifest import read_manifest
from aggtree.storage.work.job_record import JobRecord, unfinished_jobs
from bench import record
from bench.data.grown_codes_kernels import RealCodes, grow_codes

PRIOR = 128
NODE_BYTES = 13
TREES = {
    "paper": TreeParams(bucket=1),
    "narrow": TreeParams(bucket=64),
    "wide": TreeParams(bucket=1024, direct_leaves=16),
}


def shared_labels(codes: np.ndarray, layout: CodeLayout) -> np.ndarray:
    """Labels each of the sorted codes shares with the one before, (n + 1,) int8; 0 at both ends."""
    common = np.zeros(len(codes) + 1, np.int8)
    ids = np.arange(len(codes), dtype=np.uint32)
    bad = common_labels(codes, ids, np.asarray(layout.words, np.int64), int(layout.wide), common[:-1])
    if bad >= 0:
        raise ValueError(f"row {bad}: a label that no dictionary of {layout.words} has")
    common[0] = 0
    return common


def real_codes(codes: np.ndarray, layout: CodeLayout) -> RealCodes:
    """Codes (n, width) in any order, made ready to grow from."""
    ordered = sort_codes(codes, np.arange(len(codes), dtype=np.uint32))[0]
    labels = ordered[:, int(layout.wide)].astype(np.int64)
    if layout.wide:
        labels |= ordered[:, 0].astype(np.int64) << 8
    label_start = np.searchsorted(labels, np.arange(layout.words[0] + 1)).astype(np.int64)
    return RealCodes(ordered, shared_labels(ordered, layout), label_start, int(layout.wide), layout.levels)


def grown(real: RealCodes, first: int, count: int) -> np.ndarray:
    """The codes of rows first..first + count, (count, width) uint8; the same for the same range."""
    out = np.empty((count, real.codes.shape[1]), np.uint8)
    stride = round(count * 0.6180339887) | 1
    while gcd(stride, count) > 1:
        stride += 2
    grow_codes(real, first, stride, PRIOR, out)
    return out


def statistics(codes: np.ndarray, layout: CodeLayout) -> dict[str, Any]:
    """Statistics of codes that determine a tree.

    prefixes : different prefixes of 1..M labels, per row
    shared : fraction of the rows whose longest prefix that another row has is of 0..M labels
    trees : bytes per vector, and nodes and leaves per level, of three kinds of trees
    """
    rows, levels = len(codes), layout.levels
    common = shared_labels(sort_codes(codes, np.arange(rows, dtype=np.uint32))[0], layout)
    longest = np.maximum(common[:-1], common[1:])
    common = common[:-1]
    common[0] = -1
    none = np.zeros(levels + 1, np.int64)
    trees = {}
    for name, params in TREES.items():
        hang, (nodes, leaves) = np.empty(rows, np.int8), np.zeros((2, levels + 1), np.int64)
        hang_levels(common, none, none, params.bucket, params.direct_leaves, np.empty(rows, np.bool_), hang)
        level_counts(common, hang, nodes, leaves)
        size = int((leaves * (record_sizes(layout, 1) + 4)).sum() + NODE_BYTES * nodes.sum())
        trees[name] = {"bytes": size / rows, "nodes": nodes.tolist(), "leaves": leaves.tolist()}
    return {
        "prefixes": [float((common < level).mean()) for level in range(1, levels + 1)],
        "shared": (np.bincount(longest, minlength=levels + 1) / rows).tolist(),
        "trees": trees,
    }


def encoded_job(index: Path) -> tuple[JobRecord, int]:
    """The build whose codes an index holds, and how many of its first rows are encoded.

    The encoding of the index may be unfinished.
    """
    unfinished = unfinished_jobs(index)
    if not unfinished:
        built = read_manifest(index).first_segment
        job = JobRecord(index, built.build, built.parameters, built.source)
        return job, built.source_rows
    job, rows = unfinished[0], 0
    for number, found in enumerate(job.done("encode").items()):
        if found[0] != number:
            break
        rows += int(found[1]["rows"])
    return job, rows


def read_codes(index: Path, rows: int | None = None) -> tuple[np.ndarray, CodeLayout]:
    """The first codes of an index; all if `rows` is None."""
    job, encoded = encoded_job(index)
    store = CodeStore.open(job.build_directory / CODES)
    layout = CodeLayout(tuple(job.parameters["words"]))
    return store.read(0, encoded if rows is None else min(rows, encoded)), layout


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench grown_codes", description=__doc__)
    parser.add_argument("--codes", type=Path, required=True, help="an index, finished or not")
    parser.add_argument("--start", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=10_000_000)
    options = parser.parse_args(arguments)
    codes, layout = read_codes(options.codes, options.rows)
    start = codes[: options.start]
    made = np.concatenate([start, grown(real_codes(start, layout), len(start), len(codes) - len(start))])
    results = {
        "start": statistics(start, layout),
        "real": statistics(codes, layout),
        "grown": statistics(made, layout),
    }
    record.write(
        "grown_codes",
        {"words": layout.words, "start": len(start), "rows": len(codes), "prior": PRIOR},
        results,
    )
    return 0
