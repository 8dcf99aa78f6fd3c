import naive
import numpy as np
import pytest

from aggtree.engine.clustering import kmeans_kernels
from aggtree.engine.clustering.kmeans import growing_dimensions, improved_kmeans, kmeans, principal_axes


def error(rows, words):
    return ((rows[:, None] - words[None]) ** 2).sum(axis=2).min(axis=1).mean()


def clusters(centres, per_cluster, dimension, seed=0):
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(centres, dimension)) * 100
    rows = np.repeat(middle, per_cluster, axis=0) + rng.normal(size=(centres * per_cluster, dimension))
    return rng.permutation(rows).astype(np.float32)


def test_add_rows():
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(37, 5)).astype(np.float32), rng.integers(0, 7, 37)
    sums, counts = np.zeros((7, 5)), np.zeros(7, np.int64)
    kmeans_kernels.add_rows(rows, labels, sums, counts)
    expected_sums, expected_counts = naive.add_rows(rows, labels, 7)
    np.testing.assert_allclose(sums, expected_sums, atol=1e-9)
    np.testing.assert_array_equal(counts, expected_counts)


def test_kmeans_lowers_the_error_and_empty_words_move():
    rows = clusters(20, 30, 6)
    start = np.concatenate((rows[:10], np.full((15, 6), 1e6, np.float32)))
    words = kmeans(rows, start, 30, np.random.default_rng(0))
    assert error(rows, words) < 0.2 * error(rows, start)
    assert np.abs(words).max() < 1e4


@pytest.mark.parametrize("dimension", [1, 3, 40])
def test_improved_kmeans_beats_a_few_plain_iterations(dimension):
    rows = clusters(30, 40, dimension)
    rng = np.random.default_rng(0)
    improved = improved_kmeans(rows, np.zeros((30, dimension), np.float32), rng)
    assert error(rows, improved) <= error(rows, rows[:30])


def test_principal_axes_are_orthonormal_and_sorted():
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(500, 5)) * [1, 9, 0, 4, 2]).astype(np.float32)
    axes = principal_axes(rows)
    np.testing.assert_allclose(axes @ axes.T, np.eye(5), atol=1e-5)
    spread = (rows @ axes.T).var(axis=0)
    assert (np.diff(spread) <= 1e-3).all()


def test_growing_dimensions():
    assert growing_dimensions(1) == [1]
    assert growing_dimensions(128)[-1] == 128
    assert growing_dimensions(128) == sorted(set(growing_dimensions(128)))


@pytest.mark.parametrize("distinct", [1, 3])
def test_more_words_than_distinct_rows(distinct):
    rows = np.repeat(np.arange(distinct * 4, dtype=np.float32).reshape(distinct, 4), 20, axis=0)
    words = improved_kmeans(rows, np.zeros((9, 4), np.float32), np.random.default_rng(0))
    assert np.isfinite(words).all()
    assert error(rows, words) < 1e-3


def test_constant_dimensions():
    rows = clusters(5, 30, 4)
    rows[:, 2] = 7
    words = improved_kmeans(rows, np.zeros((5, 4), np.float32), np.random.default_rng(0))
    np.testing.assert_allclose(words[:, 2], 7, atol=1e-2)


def test_shrunk_words_are_nearer_to_rows_not_seen():
    rng = np.random.default_rng(0)
    spread = 0.7 ** np.arange(60)
    train, other = (rng.normal(size=(n, 60)) * (spread + 0.05) for n in (300, 2000))
    train, other = train.astype(np.float32), other.astype(np.float32)
    plain = improved_kmeans(train, np.zeros((50, 60), np.float32), np.random.default_rng(1))
    drawn = improved_kmeans(train, np.zeros((50, 60), np.float32), np.random.default_rng(1), shrink=True)
    assert error(other, drawn) < 0.97 * error(other, plain)
