"""Inputs at the edge, from vectors to answers: equal vectors, one dictionary, sixteen, no shared prefix."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.sizes import sized

import aggtree
from aggtree.storage.verify.index import verify_index

UNLIMITED = aggtree.SearchParams.unlimited()
DIMENSION = 8


def spread(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, DIMENSION), np.uint8)


def built(base: np.ndarray, path: Path, **recipe: Any) -> aggtree.Index:
    """A verified index of these rows, opened."""
    recipe = {"beam": 2, "memory": "1GiB", "workers": 0} | recipe
    assert aggtree.build(base, path, **recipe).rows == len(base)
    assert verify_index(path) == []
    return aggtree.open(path)


def check_equal_among_others(path: Path, equal: int, others: int, shard_rows: int) -> None:
    """Many equal vectors between others: one bucket holds them, and both kinds are found."""
    base = spread(equal + others)
    alike = np.random.default_rng(1).permutation(len(base))[:equal]
    base[alike] = 9
    with built(base, path, words=(16,) * 3, train_rows=min(2000, len(base)), shard_rows=shard_rows) as index:
        answer = index.search(base[alike[0]], 100, UNLIMITED)
        own = index.dictionaries.decode(index_codes(index, alike[:1]))
        assert (answer.distances == answer.distances[0, 0]).all()
        assert answer.distances[0, 0] == pytest.approx(((own - 9.0) ** 2).sum(), abs=2000)
        assert np.isin(answer.ids[0], alike).all()
        assert answer.ids[0].tolist() == np.sort(alike)[:100].tolist()
        other = np.setdiff1d(np.arange(0, len(base), max(1, len(base) // 50)), alike)[0]
        assert other in index.search(base[other], 2000, UNLIMITED).ids[0]


def index_codes(index: aggtree.Index, rows: np.ndarray) -> np.ndarray:
    from aggtree.storage.index.code_store import CodeStore

    store = CodeStore.open(index.path / index.manifest.first_segment.directory / "codes.zarr")
    return np.concatenate([store.read(int(row), int(row) + 1) for row in rows])


def test_equal_vectors_among_others(tmp_path: Path) -> None:
    check_equal_among_others(tmp_path / "index", sized(20_000, 600), sized(3000, 300), sized(7000, 400))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_million_equal_vectors_among_others(tmp_path: Path) -> None:
    check_equal_among_others(tmp_path / "index", 10_000_000, 500_000, 1_000_000)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (1, (256,) * 8),
        (sized(2000, 300), (256,)),
        (sized(2000, 500), (sized(1000, 400),)),
        (sized(1500, 60), (16,) * 16),
        (sized(1500, 60), (4,) * 16),
        (sized(2000, 200), (7, 5, 3)),
        (sized(900, 200), (1, 1)),
        (sized(700, 300), (2, 256)),
    ],
    ids=["one row", "M = 1", "M = 1, wide", "M = 16", "M = 16, K = 4", "K < 256", "one word", "two words"],
)
def test_unlimited_search_ranks_all_reconstructions(
    tmp_path: Path, rows: int, words: tuple[int, ...]
) -> None:
    base = spread(rows)
    words = tuple(min(size, rows) for size in words)
    with built(base, tmp_path / "index", words=words, norm_bytes=4, bucket=4, direct_leaves=2) as index:
        made = index.dictionaries.decode(index_codes(index, np.arange(rows))).astype(np.float64)
        queries = spread(5, seed=7)
        answer = index.search(queries, rows + 3, UNLIMITED)
        expected = ((queries[:, None].astype(np.float64) - made[None]) ** 2).sum(axis=2)
        assert (np.sort(answer.ids[:, :rows], axis=1) == np.arange(rows)).all()
        assert (answer.ids[:, rows:] == -1).all() and np.isinf(answer.distances[:, rows:]).all()
        np.testing.assert_allclose(answer.distances[:, :rows], np.sort(expected, axis=1), rtol=1e-4, atol=2)


def test_no_two_rows_share_a_prefix(tmp_path: Path) -> None:
    base = np.random.default_rng(3).permutation(256)[:200, None].repeat(DIMENSION, 1).astype(np.uint8)
    with built(base, tmp_path / "index", words=(200, 16, 16), bucket=1, direct_leaves=1) as index:
        counts = index.manifest.first_segment.counts
        assert counts.level_nodes[1] > 150 and counts.level_leaves[1] > 100
        assert (index.search(base, 1, UNLIMITED).ids[:, 0] == np.arange(200)).mean() > 0.95


def test_every_row_has_the_same_prefix_but_for_its_last_label() -> None:
    from helpers.trees import random_dictionaries, whole_ranges

    from aggtree.engine.params import TreeParams
    from aggtree.engine.search.searcher import Searcher
    from aggtree.engine.tree.layout import build_tree

    codes = np.zeros((256, 16), np.uint8)
    codes[:, -1] = np.arange(256)
    dictionaries = random_dictionaries((256,) * 16)
    ids = np.arange(256, dtype=np.uint32)
    tree = build_tree(codes, ids, dictionaries, TreeParams(bucket=1), whole_ranges(16))
    assert np.diff(tree.level_start).tolist() == [1] * 16 + [0]
    assert np.diff(tree.level_leaf)[15] == 256
    answer = Searcher(tree, dictionaries).search(
        np.zeros(11, np.float32), 256, aggtree.SearchParams(limits=(1,))
    )
    assert sorted(answer.ids[0].tolist()) == list(range(256))
