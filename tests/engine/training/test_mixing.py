"""Annealing with few rows: mixtures, leading axes, and words that serve rows never seen."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers.sizes import sized
from helpers.training import correlated_rows, held_out_error, same_state

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.training.annealing import DictionaryAnnealing
from aggtree.engine.training.cooling import Narrow
from aggtree.engine.training.mixing import leading_axes, mixed_rows

WORDS = sized(64, 8)


def test_mixed_rows_keep_mean_and_covariance_and_are_fresh():
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(20_000, 3)) * (5, 2, 1)).astype(np.float32)
    rows -= rows.mean(axis=0)
    mixed = mixed_rows(rows, rng)
    assert mixed.dtype == np.float32
    np.testing.assert_allclose(mixed.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(np.cov(mixed.T), np.cov(rows.T), atol=0.5)
    assert not np.isclose(mixed, mixed_rows(rows, rng)).all(axis=1).any()


@pytest.mark.parametrize(("bits", "described"), [(0, 0), (2, 2), (64, 6)])
def test_leading_axes_are_those_a_code_can_describe(bits, described):
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    # Two bits halve the deviation of each of two axes: 16 becomes 4, twice, and the others stay below.
    spread = np.array([4, 4, 1.5, 1, 0.1, 0.01])
    rows = (rng.normal(size=(5000, 6)) * spread) @ rotation + 30
    space = leading_axes(rows.astype(np.float32), bits)
    assert len(space.axes) == min(6, max(1, 2 * described))
    np.testing.assert_allclose(space.axes @ space.axes.T, np.eye(len(space.axes)), atol=1e-5)
    flat = space.project(rows.astype(np.float32))
    np.testing.assert_allclose(flat.mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(flat.std(axis=0)[:2], 4, rtol=0.05)


def test_words_come_back_from_the_axes():
    rng = np.random.default_rng(1)
    rows = (rng.normal(size=(300, 5)) + 7).astype(np.float32)
    space = leading_axes(rows, 1000)
    narrow = Narrow(rng.normal(size=(7, 5)).astype(np.float32), CodeLayout((4, 3)))
    np.testing.assert_allclose(space.raise_up(space.flatten(narrow)).words, narrow.words, atol=1e-5)
    shorter = leading_axes(rows, 0)
    assert len(shorter.axes) < 5
    words = shorter.raise_up(shorter.flatten(narrow)).words
    np.testing.assert_allclose(
        shorter.flatten(narrow.with_words(words)).words, shorter.flatten(narrow).words, atol=1e-5
    )


def test_constant_rows_have_axes():
    space = leading_axes(np.full((50, 4), 3, np.uint8), 16)
    assert np.isfinite(space.project(np.full((2, 4), 3, np.uint8))).all()


def test_few_rows_serve_rows_never_seen():
    rows, others = correlated_rows(sized(1500, 190)), correlated_rows(sized(4000, 500), seed=5)
    start = DictionaryAnnealing(4, WORDS, beam=6, rounds=0).fit(rows)
    seen = []
    trainer = DictionaryAnnealing(4, WORDS, beam=6, rounds=8, tolerance=1)
    trainer.fit(rows, progress=lambda number, error: seen.append(number))
    assert seen == list(range(9))
    assert held_out_error(trainer, others) < 0.97 * held_out_error(start, others)
    with ThreadPoolExecutor(3) as pool:
        pooled = DictionaryAnnealing(4, WORDS, beam=6, rounds=8, tolerance=1).fit(rows, map=pool.map)
    assert same_state(trainer, pooled)


def test_fewer_rows_leave_dictionaries_as_they_are():
    rows = correlated_rows(sized(700, 88))
    assert len(DictionaryAnnealing(4, WORDS, beam=4, rounds=5).fit(rows).distortions) == 1
    good = DictionaryAnnealing(4, WORDS, beam=4, rounds=2).fit(correlated_rows(sized(6000, 800))).dictionaries
    kept = DictionaryAnnealing(4, WORDS, beam=4, rounds=5).fit(correlated_rows(sized(1500, 190)), start=good)
    np.testing.assert_array_equal(kept.dictionaries.words, good.words)


def test_a_fit_on_few_rows_is_resumed_bit_for_bit():
    rows = correlated_rows(sized(1500, 190))
    states = []
    whole = DictionaryAnnealing(3, WORDS, beam=4, rounds=4)
    whole.fit(rows, progress=lambda number, error: states.append(whole.state()))
    resumed = DictionaryAnnealing.from_state(states[2]).fit(rows, resume=True)
    assert same_state(whole, resumed)
