"""Small builds for tests of jobs: seconds at most, with several batches, shards and partitions."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.params import AnnealingParams
from aggtree.jobs.planning.recipe import Choices, Recipe, choose_recipe
from aggtree.storage.index.format import MANIFEST, REPORT
from aggtree.storage.sealed_json import seal, unseal
from helpers.sizes import sized

ROWS, DIMENSION = 3100, 12

# Neither rows nor batches nor shards divide evenly.
SMALL: dict[str, Any] = {
    "words": (16, 16, 16),
    "beam": 4,
    "train_rows": sized(2000, 400),
    "batch_rows": sized(1000, 200),
    "shard_rows": 700,
    "bucket": 8,
}
# A wide first dictionary, learned in passes of its own.
WIDE = SMALL | {"words": (300, 16, 16)}
SMALL_ARGUMENTS = [
    *("--words", "16x3", "--beam", "4", "--shard-rows", "700", "--bucket", "8"),
    *("--train-rows", str(SMALL["train_rows"]), "--batch-rows", str(SMALL["batch_rows"])),
]


def recipe_of(rows: int = ROWS, **options: Any) -> Recipe:
    """The recipe that `build` makes of these keywords."""
    names = ("beam", "seed", "cooling")
    annealing = AnnealingParams(**{name: options.pop(name) for name in names if name in options})
    return choose_recipe(rows, Choices(annealing=annealing, **options))


def vectors(rows: int = ROWS, dimension: int = DIMENSION, seed: int = 0) -> NDArray[np.uint8]:
    """Clustered vectors, (rows, dimension) uint8, some of them equal."""
    rng = np.random.default_rng(seed)
    centres = rng.integers(0, 200, (20, dimension))
    made = centres[rng.integers(0, 20, rows)] + rng.integers(0, 56, (rows, dimension))
    made[rows // 2 : rows // 2 + 40] = made[0]
    return made.astype(np.uint8)


def contents(index: Path) -> dict[str, str]:
    """Name and digest of every file of an index; of the manifest, of all but the place of the vectors.

    What the build took is no part of the index, and is left out.
    """
    return {
        str(path.relative_to(index)): hashlib.sha256(_without_place(path)).hexdigest()
        for path in sorted(index.rglob("*"))
        if path.is_file() and path != index / REPORT
    }


def _without_place(path: Path) -> bytes:
    """The bytes of a file, sealed again without `vectors` if it is a manifest: only they know a path."""
    data = path.read_bytes()
    if path.name != MANIFEST:
        return data
    record = unseal(data, str(path))
    for name in ("vectors", "vectors_seal"):
        record.pop(name, None)
    return seal(record)


def make_ids(rows: int = ROWS, seed: int = 0) -> np.ndarray:
    """Distinct ids of 64 bits, some below zero, in no order."""
    random = np.random.default_rng(seed)
    return np.unique(random.integers(-(2**62), 2**62, 2 * rows))[random.permutation(2 * rows)[:rows]]
