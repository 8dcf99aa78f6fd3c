"""A tiny data set as the benchmarks read them."""

from pathlib import Path

import numpy as np

from aggtree.storage.sources.formats.vecs import write_vecs
from helpers.small_builds import vectors


def write_set(folder: Path) -> np.ndarray:
    """A tiny data set of bvecs and ivecs; returns its base."""
    base, learn, query = vectors(2000, 16), vectors(1500, 16, seed=1), vectors(40, 16, seed=2)
    for name, rows in (("base", base), ("learn", learn), ("query", query)):
        (folder / f"tiny_{name}.bvecs").write_bytes(write_vecs(rows, "bvecs"))
    distances = ((query[:, None].astype(np.int64) - base[None].astype(np.int64)) ** 2).sum(axis=2)
    truth = np.argsort(distances, axis=1, kind="stable")[:, :100].astype(np.int32)
    (folder / "tiny_groundtruth.ivecs").write_bytes(write_vecs(truth, "ivecs"))
    return base
