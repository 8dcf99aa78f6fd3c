"""Exact search equals sorting all distances, however the rows are cut into blocks."""

from itertools import pairwise

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggtree.engine.exact.neighbours import ExactSearch
from aggtree.engine.exact.neighbours_kernels import exact_distance, replace_farthest


def random_rows(kind: type, shape: tuple[int, int], spread: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    if np.dtype(kind).kind == "f":
        return random.normal(size=shape).astype(kind)
    limits = np.iinfo(kind)
    return random.integers(max(limits.min, -spread), min(limits.max, spread), shape, endpoint=True).astype(
        kind
    )


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([np.uint8, np.int8, np.float32, np.int16]),
    st.integers(1, 90),
    st.sampled_from([1, 3, 130, 700]),
    st.sampled_from([1, 2, 255]),
    st.sampled_from([1, 7, 100]),
    st.lists(st.integers(0, 90), max_size=3),
)
def test_equals_sorting_all_distances(
    kind: type, rows: int, dimension: int, spread: int, k: int, cuts: list[int]
) -> None:
    base, queries = (
        random_rows(kind, (count, dimension), spread, seed) for count, seed in ((rows, 1), (3, 2))
    )
    search = ExactSearch(queries, k)
    ends = [0, *sorted(min(cut, rows) for cut in cuts), rows]
    for start, stop in pairwise(ends):
        search.add(base[start:stop], start)
    ids, distances = search.result()
    for i, expected in enumerate(naive.merge_rows(queries, base, k)):
        pad = [-1] * (k - len(expected))
        assert ids[i].tolist() == [number for _, number in expected] + pad
        wanted = [d for d, _ in expected] + [np.inf] * len(pad)
        np.testing.assert_allclose(distances[i], wanted, rtol=1e-6)


def test_blocks_in_any_order_give_the_same_bytes() -> None:
    base = random_rows(np.float32, (1000, 17), 0, 3)
    queries = random_rows(np.float32, (9, 17), 0, 4)
    results = []
    for step in (1000, 333, 64):
        search = ExactSearch(queries, 20)
        for start in reversed(range(0, 1000, step)):
            search.add(base[start : start + step], start)
        results.append(search.result())
    for ids, distances in results[1:]:
        assert np.array_equal(ids, results[0][0])
        assert np.array_equal(distances, results[0][1])


def test_numbers_near_the_end_of_float32() -> None:
    base = (random_rows(np.float32, (50, 5), 0, 5) * np.float32(1e25)).astype(np.float32)
    search = ExactSearch(base[:2], 3)
    search.add(base, 0)
    assert search.result()[0][:, 0].tolist() == [0, 1]


def test_ids_go_beyond_32_bits() -> None:
    search = ExactSearch(np.zeros((1, 2), np.uint8), 2)
    search.add(np.array([[1, 1], [0, 1]], np.uint8), 2**40)
    assert search.result()[0].tolist() == [[2**40 + 1, 2**40]]


def test_bad_input_is_refused() -> None:
    for queries, k in ((np.zeros((0, 3)), 1), (np.zeros((2, 2, 2)), 1), (np.zeros((2, 3)), 0), (["x"], 1)):
        with pytest.raises(ValueError, match="expected"):
            ExactSearch(queries, k)
    with pytest.raises(ValueError, match="query 1 holds NaN"):
        ExactSearch(np.array([[0.0], [np.nan]]), 1)
    search = ExactSearch(np.zeros(3, np.float32), 1)
    with pytest.raises(ValueError, match="expected"):
        search.add(np.zeros((2, 4), np.float32), 0)
    with pytest.raises(ValueError, match="row 11 holds NaN"):
        search.add(np.array([[0, 0, 0], [0, np.inf, 0]], np.float32), 10)


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("dimension", [1, 2, 7, 64])
def test_one_exact_distance(kind: int, dimension: int) -> None:
    query, row = (random_rows(np.float32, (1, dimension), 1, seed)[0] for seed in (1, 2))
    found = exact_distance(query, row, kind)
    assert found == pytest.approx(naive.exact_distance(query, row, kind), rel=1e-12, abs=1e-12)


def test_a_heap_keeps_the_nearest() -> None:
    random = np.random.default_rng(3)
    distances, ids = np.full(7, np.inf), np.full(7, -1)
    expected = [(np.inf, -1)] * 7
    for number in range(40):
        distance = float(random.integers(0, 9))
        if (distance, number) < max(expected):
            replace_farthest(distances, ids, distance, number)
            expected = naive.replace_farthest(expected, distance, number)
        assert sorted(zip(distances.tolist(), ids.tolist(), strict=True)) == expected
        assert (distances[0], ids[0]) == expected[-1]
