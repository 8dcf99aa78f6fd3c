"""One process that reads an index while it is replaced.

    python -m reliability.programs.one_reader INDEX EXPECTED STOP

Opens, searches and compares until the file STOP is there; prints its counts as JSON.
"""

import json
import sys
from pathlib import Path

import numpy as np

from aggtree.engine.params import SearchParams
from aggtree.storage.index.reader import Index, open_index

K = 7
KEPT_ROUNDS = 25
"""One index is kept open for so many rounds before the present one is taken."""
QUERIES = np.arange(24, dtype=np.float32).reshape(2, 12) * 9


def answer(index: Index) -> str:
    """All bytes of the answers, as text."""
    ids, distances = index.search(QUERIES, K, SearchParams.unlimited())
    return (ids.tobytes() + distances.tobytes()).hex()


def read(path: str, expected_path: str, stop: str) -> dict[str, int]:
    """How many answers were looked at, how many were wrong, and how many errors came."""
    expected = json.loads(Path(expected_path).read_text())
    counts, rounds, builds = {"answers": 0, "wrong answers": 0, "errors": 0}, 0, set()
    kept = open_index(path)
    answer(kept)
    print("ready", flush=True)
    while not Path(stop).exists():
        try:
            with open_index(path) as index:
                wrong = answer(index) != expected[index.manifest.first_segment.build]
                builds.add(index.manifest.first_segment.build)
            wrong += answer(kept) != expected[kept.manifest.first_segment.build]
            counts["answers"] += 2
            counts["wrong answers"] += wrong
            rounds += 1
            if rounds % KEPT_ROUNDS == 0:
                kept = open_index(path)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            counts["errors"] += 1
    return counts | {"builds": len(builds)}


if __name__ == "__main__":
    print(json.dumps(read(*sys.argv[1:])))
