"""Small builds for tests of jobs: seconds at most, with several batches, shards and partitions."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS, DIMENSION = 3100, 12

# Neither rows nor batches nor shards divide evenly.
SMALL: dict[str, Any] = {
    "words": (16, 16, 16),
    "beam": 4,
    "train_rows": 2000,
    "batch_rows": 1000,
    "shard_rows": 700,
    "bucket": 8,
}
# A wide first dictionary, learned in passes of its own.
WIDE = SMALL | {"words": (300, 16, 16)}
SMALL_ARGUMENTS = [
    *("--words", "16x3", "--beam", "4", "--train-rows", "2000", "--batch-rows", "1000"),
    *("--shard-rows", "700", "--bucket", "8"),
]


def vectors(rows: int = ROWS, dimension: int = DIMENSION, seed: int = 0) -> NDArray[np.uint8]:
    """Clustered vectors, (rows, dimension) uint8, some of them equal."""
    rng = np.random.default_rng(seed)
    centres = rng.integers(0, 200, (20, dimension))
    made = centres[rng.integers(0, 20, rows)] + rng.integers(0, 56, (rows, dimension))
    made[rows // 2 : rows // 2 + 40] = made[0]
    return made.astype(np.uint8)


def contents(index: Path) -> dict[str, str]:
    """Name and digest of every file of an index."""
    return {
        str(path.relative_to(index)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(index.rglob("*"))
        if path.is_file()
    }
