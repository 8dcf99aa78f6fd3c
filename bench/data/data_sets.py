"""The files of a data set: PREFIX_base, PREFIX_learn and PREFIX_query in one folder.

The official names fit: sift_base.fvecs of SIFT1M, gist_base.fvecs of GIST1M, bigann_base.bvecs of SIFT1B,
whose true neighbours are in gnd/idx_1000M.ivecs.
"""

from pathlib import Path

import numpy as np

from aggtree.engine.params import METRICS, Metric
from aggtree.storage.sources.base import open_source, read_ground_truth

ENDS = ("bvecs", "fvecs", "u8bin", "fbin", "npy")
TITLES = {
    "photosift500k": "photosift500k (500,000 SIFT of real photographs, not SIFT1M)",
    "photogist10k": "photogist10k (10,000 GIST of photo crops, not GIST1M)",
    "sift": "SIFT1M",
    "gist": "GIST1M",
    "bigann": "SIFT1B",
    "glove200k": "glove200k (200,000 GloVe word vectors of 100 dimensions)",
    "text100k": "text100k (100,000 sentence embeddings of 256 dimensions)",
}


def title_of(prefix: str) -> str:
    """The title of a data set in tables."""
    return TITLES.get(prefix, prefix)


def vector_file(folder: Path, prefix: str, name: str) -> Path:
    """The file of one part of the set, whatever its format; `name` is base, learn or query."""
    for end in ENDS:
        path = folder / f"{prefix}_{name}.{end}"
        if path.exists():
            return path
    raise SystemExit(f"{folder}: no {prefix}_{name} of any of {', '.join(ENDS)}; name the folder by --data")


def read_vectors(folder: Path, prefix: str, name: str) -> np.ndarray:
    """All rows of one file of the set."""
    with open_source(vector_file(folder, prefix, name)) as source:
        return np.ascontiguousarray(source.read(0, source.rows))


def read_truth(folder: Path, prefix: str, rows: int | None = None) -> np.ndarray:
    """True neighbours of the queries; of a part of SIFT1B those among its first `rows`."""
    path = folder / f"{prefix}_groundtruth.ivecs"
    if rows is not None and not path.exists():
        path = folder / "gnd" / f"idx_{rows // 1_000_000}M.ivecs"
    return read_ground_truth(path)


def read_neighbours(folder: Path, prefix: str) -> tuple[np.ndarray, Metric]:
    """Exact neighbours of the queries, and their metric, which is part of the name of the file."""
    for metric in METRICS:
        path = folder / f"{prefix}_groundtruth_{metric}.npy"
        if path.exists():
            return read_ground_truth(path), metric
    return read_truth(folder, prefix), "l2"
