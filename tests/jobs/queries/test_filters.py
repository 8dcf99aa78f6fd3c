"""Filtered answers come from the allowed rows only, and all that are allowed can be found."""

from pathlib import Path

import naive
import numpy as np
import pytest
from helpers.random_trees import make
from helpers.random_trees import vectors as reconstructions
from helpers.small_builds import ROWS, SMALL, make_ids, vectors
from helpers.trees import LAYOUTS, random_queries, whole_ranges
from hypothesis import given, settings
from hypothesis import strategies as st

import aggtree
from aggtree.engine.params import SearchParams
from aggtree.engine.scan.filter_kernels import allowed_leaves, is_allowed
from aggtree.engine.search import nearest
from aggtree.engine.search.filters import Filter, row_bits, widened, widening
from aggtree.engine.search.reconstruction import find_leaves, leaf_vectors
from aggtree.engine.search.searcher import Searcher
from aggtree.storage.errors import SourceError

EVERYTHING = SearchParams.unlimited()


@settings(deadline=None)
@given(st.integers(1, 70), st.integers(0, 5), st.integers(0, 30), st.integers(1, 40))
def test_kernels_equal_their_twins(rows: int, seed: int, first: int, room: int) -> None:
    random = np.random.default_rng(seed)
    mask = random.random(rows) < 0.3
    given_rows = Filter.of_rows(random.permutation(np.flatnonzero(mask)), rows)
    made = Filter.of_mask(mask)
    np.testing.assert_array_equal(made.bits, given_rows.bits)
    np.testing.assert_array_equal(made.allowed, np.flatnonzero(mask))
    assert made.count == mask.sum()
    ids = random.permutation(rows + 20).astype(np.uint32)
    for within in (made.row_bits, row_bits(made.bits)._replace(first=np.uint64(13))):
        for number in range(rows + 20):
            assert is_allowed(within, np.uint32(number)) == naive.is_allowed(within, number)
    out = np.empty(room, np.int64)
    place, found = allowed_leaves(ids, made.row_bits, min(first, len(ids)), out)
    expected = naive.allowed_leaves(ids, made.row_bits, min(first, len(ids)), room)
    assert (place, out[:found].tolist()) == expected


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(LAYOUTS),
    st.integers(1, 150),
    st.sampled_from([(1, 1, 4), (5, 2, 4), (64, 8, 1)]),
    st.lists(st.sampled_from([0, 1, 2, 7]), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
def test_filtered_search_equals_its_twin(
    words: tuple[int, ...], rows: int, kind: tuple[int, int, int], limits: list[int], share: float
) -> None:
    bucket, direct_leaves, size = kind
    codes, ids, dictionaries, tree, params = make(
        words, rows, 3, 0, bucket=bucket, direct_leaves=direct_leaves, norm_bytes=size
    )
    mask = np.random.default_rng(rows).random(2 * rows) < share
    levels = naive.fill_partition(codes, ids, dictionaries.layout, bucket, direct_leaves)
    search = SearchParams(limits=tuple(limits))
    queries = random_queries(3)
    bits = Filter.of_mask(mask).row_bits
    answer, counts = Searcher(tree, dictionaries).search_with_counts(queries, 7, search, 1, bits)
    allowed = set(np.flatnonzero(mask).tolist())
    for i, query in enumerate(queries):
        found, nodes, leaves = naive.search_tree(
            levels,
            query,
            7,
            search.per_level(len(words)),
            dictionaries,
            params,
            whole_ranges(len(words)),
            allowed,
        )
        assert answer.ids[i].tolist() == [number for _, number in found] + [-1] * (7 - len(found))
        assert (counts.nodes[i], counts.leaves[i]) == (nodes, leaves)


@pytest.mark.parametrize("words", LAYOUTS)
@pytest.mark.parametrize("bucket", [1, 16])
def test_leaves_give_their_reconstructions(words: tuple[int, ...], bucket: int) -> None:
    codes, ids, dictionaries, tree, _ = make(words, 700, bucket=bucket, norm_bytes=2)
    allowed = ids[::3].astype(np.int64)
    made = Filter.of_rows(allowed, 1400)
    leaves = find_leaves(tree, made.row_bits, made.count)
    np.testing.assert_array_equal(np.sort(tree.ids[leaves]), np.sort(allowed))
    rows = np.argsort(ids)[np.searchsorted(np.sort(ids), tree.ids[leaves])]
    shuffled = np.random.default_rng(0).permutation(len(leaves))
    found = leaf_vectors(tree, dictionaries, 2, leaves[shuffled])
    np.testing.assert_array_equal(found, reconstructions(codes, dictionaries)[rows[shuffled]])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two indexes of the same vectors, one with own ids."""
    place = tmp_path_factory.mktemp("filters")
    np.save(place / "base.npy", vectors())
    aggtree.build(place / "base.npy", place / "rows", workers=0, **SMALL)
    aggtree.build(place / "base.npy", place / "own", ids=make_ids(), workers=0, **SMALL)
    return place


def best_of(queries: np.ndarray, allowed: np.ndarray, k: int) -> np.ndarray:
    """The exact k nearest allowed rows."""
    answers = naive.merge_rows(queries, vectors()[allowed], k)
    found = [[allowed[place] for _, place in row] + [-1] * (k - len(row)) for row in answers]
    return np.array(found)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 0.9])
@pytest.mark.parametrize("scanned", [0, ROWS])
def test_any_selectivity_gives_the_exact_answer(
    place: Path, share: float, scanned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearest, "SCAN_ROWS", scanned)
    mask = np.random.default_rng(3).random(ROWS) < share
    queries, allowed = vectors(9, seed=1), np.flatnonzero(mask)
    expected = best_of(queries, allowed, 10)
    with aggtree.open(place / "rows") as index:
        every = index.search(queries, 10, EVERYTHING, rerank=ROWS, within=mask)
        np.testing.assert_array_equal(every.ids, expected)
        # However narrow the search, as many answers as there can be, all of them allowed.
        narrow = index.search(queries, 10, SearchParams(limits=(1,)), within=mask, threads=2)
        assert ((narrow.ids >= 0).sum(axis=1) == min(10, len(allowed))).all()
        assert np.isin(narrow.ids, [*allowed, -1]).all()
        one = index.search(queries[0], 10, EVERYTHING, rerank=ROWS, within=mask)
        assert one.ids[0].tolist() == expected[0].tolist()


def test_rows_far_from_the_query_are_reached(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "SCAN_ROWS", 0)
    queries = vectors(5, seed=1)
    with aggtree.open(place / "rows") as index:
        far = index.search(queries[0], ROWS, EVERYTHING, rerank=0).ids[0, -60:]
        answer, counts = index.search_with_counts(
            queries[:1], 50, SearchParams(limits=(1,)), rerank=0, within=far
        )
    assert (answer.ids >= 0).all() and np.isin(answer.ids, far).all()
    assert counts.leaves[0] > 60


def test_without_vectors_reconstructions_are_compared(tmp_path: Path) -> None:
    aggtree.build(vectors(), tmp_path / "i", workers=0, **SMALL)
    mask = np.random.default_rng(3).random(ROWS) < 0.05
    queries = vectors(9, seed=1)
    with aggtree.open(tmp_path / "i") as index:
        answer = index.search(queries, 20, within=mask)
        every = index.search(queries, ROWS, EVERYTHING)
        with pytest.raises(SourceError, match="built from an array"):
            index.search(queries, 20, rerank=20, within=mask)
    for found, distances, all_ids, all_distances in zip(*answer, *every, strict=True):
        near = dict(zip(all_ids.tolist(), all_distances.tolist(), strict=True))
        expected = sorted(near[row] for row in np.flatnonzero(mask))[:20]
        # Norms in the tree are quantized; reconstructions are exact.
        np.testing.assert_allclose(distances, expected, rtol=0.05, atol=200)
        assert mask[found].all()


def test_every_way_to_name_rows(place: Path, tmp_path: Path) -> None:
    rows, ids = np.arange(500, 900), make_ids()
    mask = np.zeros(ROWS, np.bool_)
    mask[rows] = True
    np.save(tmp_path / "mask.npy", mask)
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "own.npy", np.sort(ids[rows]))
    queries = vectors(4, seed=1)
    expected = best_of(queries, rows, 5)
    with aggtree.open(place / "rows") as index, aggtree.open(place / "own") as own:
        ways = [mask, rows, rows[::-1], rows.tolist(), range(500, 900), index.filter(rows)]
        for way in [*ways, tmp_path / "mask.npy", str(tmp_path / "rows.npy")]:
            answer = index.search(queries, 5, EVERYTHING, rerank=ROWS, within=way)
            np.testing.assert_array_equal(answer.ids, expected)
        for way in (mask, ids[rows], tmp_path / "own.npy", own.filter(mask)):
            answer = own.search(queries, 5, EVERYTHING, rerank=ROWS, within=way)
            np.testing.assert_array_equal(answer.ids, ids[expected])
        positive = own.search(queries, 5, EVERYTHING, rerank=ROWS, within=range(2**62))
        np.testing.assert_array_equal(positive.ids, ids[best_of(queries, np.flatnonzero(ids >= 0), 5)])


def test_wrong_filters_are_reported(place: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "floats.npy", np.zeros(3))
    wrong = {
        "row 3100 is not in the index, which has rows 0 to 3099": [5, 3100],
        "row -1 is not": [-1],
        r"booleans of shape \(5,\): expected \(3100,\)": np.ones(5, np.bool_),
        "float64 of shape": np.zeros(3),
        "step 1": range(0, 10, 2),
        "a filter of 5 rows": Filter.of_mask(np.ones(5, np.bool_)),
        "floats.npy: holds float64": tmp_path / "floats.npy",
    }
    with aggtree.open(place / "rows") as index:
        for message, within in wrong.items():
            with pytest.raises(ValueError, match=message):
                index.search(vectors(1), 5, within=within)
    with aggtree.open(place / "own") as own, pytest.raises(ValueError, match="id 7 is not in the index"):
        own.search(vectors(1), 5, within=[int(make_ids()[0]), 7])


def test_limits_widen_and_no_limit_stays_none() -> None:
    assert widened(SearchParams(limits=(32, 0)), widening(1 / 16)).limits == (64, 0)
