"""Makes tests/data/growable-<version>: an index that an older release built of rows, to be grown today.

    python -m helpers.golden.make_growable 3 DIRECTORY     (in tests/, the older release on PYTHONPATH)

Uses nothing but the public API, so that it runs with every release. Those in tests/data are of commit
31d9f00.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS, DIMENSION = 300, 4
MORE = 120
"""Rows that version 3 has behind the others."""
GONE = (5, 299, 301)
"""Rows that version 3 has no more."""
METRICS = {1: "l2", 2: "cosine", 3: "l2"}
RECIPE: dict[str, Any] = {
    "words": (16, 8),
    "beam": 2,
    "train_rows": 300,
    "batch_rows": 300,
    "shard_rows": 200,
    "bucket": 8,
    "workers": 0,
}


def rows_of(version: int, start: int, stop: int) -> NDArray[np.uint8]:
    """Rows of an index of a version, as many as one likes: (stop - start, DIMENSION) uint8."""
    random = np.random.default_rng(version)
    return random.integers(0, 256, (stop, DIMENSION), np.uint8)[start:]


def ids_of(version: int, start: int, stop: int) -> NDArray[np.int64] | None:
    """Own ids, which version 2 has."""
    return np.arange(start, stop) ** 3 - 1_000_000 if version == 2 else None


def main(version: int, directory: Path) -> None:
    import aggtree

    index = directory / f"growable-{version}"
    more = {"ids": ids_of(version, 0, ROWS)} if version == 2 else {}
    aggtree.build(rows_of(version, 0, ROWS), index, metric=METRICS[version], **more, **RECIPE)
    if version == 3:
        aggtree.append(index, rows_of(version, ROWS, ROWS + MORE), workers=0)
        aggtree.delete(index, GONE)
    print(json.loads((index / "manifest.json").read_text())["version"])


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
