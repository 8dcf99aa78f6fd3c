"""Makes tests/data/format-<version>: an index of the present format, kept to be read by all later releases.

    python tests/make_golden.py

Run once when the format's version is raised, never to make a failing test pass.
"""

import json
from pathlib import Path

import numpy as np
from small_index import make_index, make_sample

from aggtree.engine.params import SearchParams
from aggtree.storage.format import FORMAT_VERSION
from aggtree.storage.index_reader import open_index

DATA = Path(__file__).parent / "data"
ANSWERS = 20
DIFFERENT = 1e-4
"""Answers of different codes lie at least so far apart that rounding does not change their order."""


def queries() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)


def main() -> None:
    directory = DATA / f"format-{FORMAT_VERSION}"
    sample = make_sample(400)
    make_index(directory / "golden.index", sample, name="golden")
    with open_index(directory / "golden.index") as index:
        ids, distances = index.search(queries(), ANSWERS, SearchParams.unlimited())
    for row, near in zip(ids, distances, strict=True):
        same = (sample.codes[row[1:]] == sample.codes[row[:-1]]).all(axis=1)
        gaps = np.diff(near)[~same]
        if gaps.min() < DIFFERENT:
            raise ValueError(f"answers only {gaps.min()} apart: choose other queries")
    answers = {"ids": ids.tolist(), "distances": distances.tolist()}
    (directory / "answers.json").write_text(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
