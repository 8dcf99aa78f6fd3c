"""Makes tests/data/format-<version>: an index of the present format, kept to be read by all later releases.

    python -m helpers.golden.make_golden 3        (in tests/)

Run once when the format's version is raised, never to make a failing test pass.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from aggtree.engine.params import SearchParams, TreeParams
from aggtree.engine.transform import Transform
from aggtree.storage.index.reader import open_index
from helpers.places import TESTS
from helpers.small_index import Sample, add_segment, make_index, make_sample

DATA = TESTS / "data"
ANSWERS = 20
DELETED = (3, 399, 400, 511)
"""Rows that version 3 has no more."""
DIFFERENT = 1e-4
"""Answers of different codes lie at least so far apart that rounding does not change their order."""


def queries() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)


def golden_ids(version: int) -> np.ndarray | None:
    """Own ids of the 400 rows, which version 2 has."""
    return np.arange(400) ** 3 - 1_000_000 if version == 2 else None


def golden_codes(version: int) -> np.ndarray:
    """Codes of all rows: version 3 has a segment of 150 behind the 400 rows of the others."""
    return np.concatenate([make_sample(400).codes, *([segment().codes] if version == 3 else [])])


def golden_transform() -> Transform:
    """What was done to the vectors of version 5."""
    return Transform(mean=np.array([0.5, -0.25, 1, 0, 2]), exponent=-1, reach=6, limit=6)


def segment() -> Sample:
    """More rows with the same dictionaries."""
    return replace(make_sample(400), codes=make_sample(150, seed=2).codes)


def make(index: Path, version: int) -> None:
    """The index of a version; version 4 has its leaves in planes, version 5 vectors that were transformed."""
    sample = make_sample(400, params=TreeParams(planes=True) if version == 4 else None)
    if version == 5:
        sample = replace(sample, dictionaries=replace(sample.dictionaries, transform=golden_transform()))
    make_index(index, sample, name="golden", ids=golden_ids(version))
    if version == 3:
        add_segment(index, segment(), deleted=DELETED)


def main(version: int) -> None:
    directory = DATA / f"format-{version}"
    make(directory / "golden.index", version)
    with open_index(directory / "golden.index") as index:
        ids, distances = index.search(queries(), ANSWERS, SearchParams.unlimited())
    for row, near in zip(ids, distances, strict=True):
        own = golden_ids(version)
        codes = golden_codes(version)[row if own is None else np.searchsorted(own, row)]
        same = (codes[1:] == codes[:-1]).all(axis=1)
        gaps = np.diff(near)[~same]
        if gaps.min() < DIFFERENT:
            raise ValueError(f"answers only {gaps.min()} apart: choose other queries")
    answers = {"ids": ids.tolist(), "distances": distances.tolist()}
    (directory / "answers.json").write_text(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
