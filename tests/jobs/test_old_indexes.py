"""Indexes that an older release built of real rows: today's code reads, re-ranks, grows and compacts them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.golden.make_golden import DATA
from helpers.golden.make_growable import GONE, METRICS, MORE, ROWS, ids_of, rows_of

import aggtree
from aggtree.storage.verify.index import verify_index

EVERYTHING = aggtree.SearchParams.unlimited()
NEW = 80


@pytest.fixture(params=sorted(METRICS))
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def index(version: int, tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / f"growable-{version}", tmp_path / "i"))


def rows_before(version: int) -> int:
    """Rows the older release indexed, deleted ones too."""
    return ROWS + (MORE if version == 3 else 0)


def exact(version: int, queries: np.ndarray, rows: int, gone: set[int]) -> np.ndarray:
    """The nearest row of each query by brute force, as the index names it."""
    base, wanted = rows_of(version, 0, rows).astype(np.float64), queries.astype(np.float64)
    if METRICS[version] == "cosine":
        base, wanted = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (base, wanted))
    distances = ((wanted[:, None] - base) ** 2).sum(axis=2)
    distances[:, sorted(gone)] = np.inf
    ids = ids_of(version, 0, rows)
    nearest = distances.argmin(axis=1)
    return nearest if ids is None else ids[nearest]


def check(index: Path, version: int, rows: int, gone: set[int]) -> None:
    """Every answer re-ranked is that of brute force, and every byte and node is right."""
    assert verify_index(index, deep=True) == []
    queries = rows_of(version, 0, rows)[::7]
    with aggtree.open(index, vectors=rows_of(version, 0, rows)) as opened:
        assert len(opened) == rows - len(gone)
        found = opened.search(queries, 1, EVERYTHING, rerank=rows).ids[:, 0]
    # Rows that are equal, or of one direction, may answer for each other.
    assert (found == exact(version, queries, rows, gone)).mean() > 0.95


def test_it_is_read_grown_and_compacted(index: Path, version: int) -> None:
    rows, gone = rows_before(version), set(GONE) if version == 3 else set()
    check(index, version, rows, gone)
    new = {"ids": ids_of(version, rows, rows + NEW)} if version == 2 else {}
    added = aggtree.append(index, rows_of(version, rows, rows + NEW), workers=0, **new)
    assert (added.first_row, added.rows) == (rows, NEW)
    check(index, version, rows + NEW, gone)
    again = rows + 1
    ids = ids_of(version, again, again + 1)
    assert aggtree.delete(index, [again] if ids is None else ids).deleted == 1
    gone.add(again)
    check(index, version, rows + NEW, gone)
    aggtree.compact(index, workers=0)
    check(index, version, rows + NEW, gone)


def test_dictionaries_of_it_are_reused(index: Path, version: int, tmp_path: Path) -> None:
    rows = rows_of(version, ROWS, ROWS + 200)
    aggtree.build(rows, tmp_path / "new", dictionaries=index, metric=METRICS[version], workers=0)
    assert verify_index(tmp_path / "new", deep=True) == []
