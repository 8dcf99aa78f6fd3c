"""What rows are freed of before they are quantized, and which of them are far."""

import naive
import numpy as np
import pytest

from aggtree.engine.coding.decoding_kernels import norm_growth
from aggtree.engine.training.annealing_state import norm_ranges
from aggtree.engine.transform import FAR, Transform, find_transform


def cloud(rows: int = 500, dimension: int = 7) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, dimension)).astype(np.float32)


def test_usual_rows_stay_as_they_are() -> None:
    for rows in (cloud(), np.random.default_rng(1).integers(0, 256, (500, 7)).astype(np.uint8)):
        transform = find_transform(rows)
        moved, far = transform.apply(rows)
        assert transform.plain and len(far) == 0
        assert moved.dtype == rows.dtype and (moved == rows).all()


def test_a_mean_and_a_unit_are_found_whatever_a_few_rows_are_like() -> None:
    rows = cloud() * np.float32(2.0**-40) + np.float32(2.0**-36)
    rows[:4] *= np.float32(1e30)
    transform = find_transform(rows)
    assert transform.mean is not None
    np.testing.assert_allclose(transform.mean, rows[4:].mean(axis=0), rtol=1e-6)
    moved, far = transform.apply(rows.copy())
    assert far.tolist() == [0, 1, 2, 3]
    lengths = np.sqrt((moved[4:].astype(np.float64) ** 2).sum(axis=1))
    assert 1 <= np.sqrt((lengths**2).mean()) < 2
    assert lengths.max() == pytest.approx(transform.reach)
    np.testing.assert_allclose((moved[:4] ** 2).sum(axis=1), transform.reach**2, rtol=1e-5)
    assert len(transform.apply_to_near(rows.copy())) == 496
    np.testing.assert_allclose(transform.restore(moved)[4:], rows[4:], rtol=1e-5)


def test_rows_of_inner_products_keep_their_length() -> None:
    rows = cloud()
    rows[0] *= 1000
    moved, far = find_transform(rows, products=True).apply(rows.copy())
    assert far.tolist() == [0] and (moved == rows).all()


@pytest.mark.parametrize("rows", [np.zeros((0, 3)), np.zeros((9, 3)), np.full((9, 3), 1e30), np.eye(3)])
def test_degenerate_samples(rows: np.ndarray) -> None:
    rows = rows.astype(np.float32)
    transform = find_transform(rows)
    moved, far = transform.apply(rows.copy())
    assert len(far) == 0 and np.isfinite(moved).all()
    np.testing.assert_array_equal(transform.restore(moved.astype(np.float32)), rows)


def test_a_row_that_most_rows_repeat_makes_no_other_far() -> None:
    rows = np.zeros((1000, 3), np.float32)
    rows[:5] = 7
    assert find_transform(rows).reach == np.inf


def test_far_queries_are_pulled_in_and_keep_their_direction() -> None:
    transform = Transform(mean=np.full(3, 10.0), reach=2.0, limit=2.0)
    queries = np.array([[11, 10, 10], [10, 10 + 1e6, 10]], np.float32)
    cut = transform.apply_to_queries(queries)
    assert cut is not None and cut[0] == 0 and cut[1] == pytest.approx(1e6 - 128)
    np.testing.assert_allclose(queries, [[1, 0, 0], [0, 128, 0]])
    assert Transform(reach=2.0).apply_to_queries(np.ones((1, 3), np.float32)) is None


def test_a_row_just_beyond_the_training_rows_is_not_far() -> None:
    transform = Transform(reach=1.0, limit=1.0)
    rows = np.array([[FAR * 0.99, 0], [FAR * 1.01, 0]], np.float32)
    assert transform.apply(rows)[1].tolist() == [1]


@pytest.mark.parametrize("dimension", [1, 4, 11])
def test_the_growth_of_norms_is_that_of_its_twin(dimension: int) -> None:
    random = np.random.default_rng(0)
    sizes = np.array([5, 9, 2])
    first = np.cumsum(sizes) - sizes
    words = random.normal(size=(sizes.sum(), dimension)).astype(np.float32)
    codes = (random.random((20, 3)) * sizes).astype(np.uint8)
    start = random.normal(size=(20, dimension)).astype(np.float32)
    growth, expected = np.empty(20, np.float32), naive.norm_growth(start, codes, first, words)
    norm_growth(start, codes, first, words, growth)
    np.testing.assert_allclose(growth, expected, rtol=1e-4, atol=1e-4)


def test_a_few_norms_do_not_widen_the_range_of_all() -> None:
    from aggtree.engine.dictionaries import CodeLayout, Dictionaries

    words = np.concatenate((np.eye(4), [[1e3, 0, 0, 0]], 0.1 * np.eye(4))).astype(np.float32)
    dictionaries = Dictionaries(words, CodeLayout((4, 5)))
    random = np.random.default_rng(0)
    codes = random.integers(0, [4, 4], (4000, 2)).astype(np.uint8) + np.uint8([0, 1])
    plain = norm_ranges(dictionaries, codes)
    codes[0, 1] = 0
    assert norm_ranges(dictionaries, codes)[1, 1] < 10 * np.abs(plain[1]).max() + 10
