import naive
import numpy as np
import pytest

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.training import information_kernels
from aggtree.engine.training.information import (
    capacity,
    conditional_entropies,
    entropy,
    local_conditional_entropies,
    local_mutual_information,
    mutual_information,
    self_information,
)

LAYOUT = CodeLayout((4, 8, 5))


def random_codes(n, sizes, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, size, n) for size in sizes], axis=1).astype(np.uint8)


def test_count_labels_together():
    codes = random_codes(101, (7, 3)).astype(np.uint16)
    counts = np.zeros((7, 3), np.int64)
    information_kernels.count_labels_together(codes[:, 0].copy(), codes[:, 1].copy(), counts)
    np.testing.assert_array_equal(counts, naive.count_labels_together(codes[:, 0], codes[:, 1], (7, 3)))


def test_entropy_of_known_distributions():
    assert entropy(np.array([5, 5, 5, 5])) == pytest.approx(2)
    assert entropy(np.array([9, 0, 0])) == 0
    assert entropy(np.array([], np.int64)) == 0
    assert entropy(np.array([1, 1]), correction=True) == pytest.approx(1 + 1 / (4 * np.log(2)))


def test_independent_labels_share_nothing():
    codes = random_codes(200_000, LAYOUT.words)
    np.testing.assert_allclose(self_information(codes, LAYOUT), np.log2(LAYOUT.words), atol=1e-3)
    matrix = mutual_information(codes, LAYOUT, correction=True)
    np.testing.assert_allclose(matrix, np.diag(np.log2(LAYOUT.words)), atol=1e-3)
    np.testing.assert_allclose(conditional_entropies(codes, LAYOUT), np.log2(LAYOUT.words), atol=1e-2)
    assert capacity(codes, LAYOUT) == pytest.approx(np.log2(160), abs=1e-2)


def test_a_copied_label_is_known():
    codes = random_codes(5000, LAYOUT.words)
    codes[:, 1] = codes[:, 0]
    matrix = mutual_information(codes, LAYOUT)
    assert matrix[0, 1] == pytest.approx(matrix[0, 0])
    np.testing.assert_array_equal(matrix, matrix.T)
    assert conditional_entropies(codes, LAYOUT)[1] == pytest.approx(0, abs=1e-9)


def test_wide_first_dictionary():
    layout = CodeLayout((1000, 4))
    labels = np.stack((np.arange(1000), np.arange(1000) % 4), axis=1)
    codes = layout.pack(labels)
    np.testing.assert_allclose(self_information(codes, layout), [np.log2(1000), 2])
    assert mutual_information(codes, layout)[0, 1] == pytest.approx(2)
    np.testing.assert_allclose(conditional_entropies(codes, layout), [np.log2(1000), 0], atol=1e-9)


def test_local_measures_are_means_over_neighbourhoods():
    codes = random_codes(300, LAYOUT.words)
    neighbours = np.random.default_rng(1).integers(0, 300, (7, 20))
    parts = [mutual_information(codes[rows], LAYOUT) for rows in neighbours]
    np.testing.assert_allclose(local_mutual_information(codes, neighbours, LAYOUT), np.mean(parts, axis=0))
    steps = [conditional_entropies(codes[rows], LAYOUT) for rows in neighbours]
    np.testing.assert_allclose(local_conditional_entropies(codes, neighbours, LAYOUT), np.mean(steps, axis=0))


def test_bad_codes_are_named():
    with pytest.raises(ValueError, match="beyond"):
        self_information(np.full((3, 3), 200, np.uint8), LAYOUT)
    with pytest.raises(ValueError, match="expected uint8"):
        self_information(np.zeros((3, 2), np.uint8), LAYOUT)
    with pytest.raises(ValueError, match="no neighbourhoods"):
        local_mutual_information(random_codes(3, LAYOUT.words), np.empty((0, 5), np.int64), LAYOUT)
    with pytest.raises(ValueError, match="no neighbourhoods"):
        local_conditional_entropies(random_codes(3, LAYOUT.words), np.empty((0, 5), np.int64), LAYOUT)
