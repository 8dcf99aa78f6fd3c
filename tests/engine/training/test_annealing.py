from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import naive
import numpy as np
import pytest
from helpers.sizes import sized
from helpers.training import correlated_rows, held_out_error, same_state

from aggtree.engine.coding.decoding_kernels import decode_rows
from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.training import least_squares_kernels
from aggtree.engine.training.annealing import DictionaryAnnealing
from aggtree.engine.training.least_squares import NormalEquations, solve

WORDS = sized(16, 4)


@pytest.mark.parametrize("sizes", [(5,), (4, 7, 3), (20, 256)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_least_squares_kernels(sizes, dtype):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (61, 5)).astype(dtype)
    codes = np.stack([rng.integers(0, size, 61) for size in sizes], axis=1).astype(np.uint8)
    first = (np.cumsum(sizes) - sizes).astype(np.int64)
    total = sum(sizes)
    counts, sums = np.zeros((total, total), np.int64), np.zeros((total, 5))
    least_squares_kernels.count_pairs(codes, first, counts)
    least_squares_kernels.add_by_word(rows, codes, first, sums, 0, 2)
    assert not sums[:, 2:].any()
    least_squares_kernels.add_by_word(rows, codes, first, sums, 2, 5)
    np.testing.assert_array_equal(counts, naive.count_pairs(codes, sizes))
    np.testing.assert_allclose(sums, naive.add_by_word(rows, codes, sizes, 0, 5))
    words = rng.normal(size=(total, 5)).astype(np.float32)
    decoded, errors = np.zeros((61, 5), np.float32), np.empty(61)
    decode_rows(codes, first, words, decoded)
    least_squares_kernels.squared_errors(rows, decoded, errors)
    np.testing.assert_allclose(decoded, naive.decode_rows(codes, sizes, words), atol=1e-4)
    np.testing.assert_allclose(errors, naive.squared_errors(rows, decoded))


def test_solve_reaches_the_least_squares_minimum_and_leaves_unused_words_alone():
    rng = np.random.default_rng(0)
    sizes = (7, 9, 5)
    rows = rng.normal(size=(400, 6)).astype(np.float32) * 10
    codes = np.stack([rng.integers(0, size - 1, 400) for size in sizes], axis=1).astype(np.uint8)
    equations = NormalEquations.empty(CodeLayout(sizes), 6)
    equations.add(rows, codes)
    start = rng.normal(size=(21, 6)).astype(np.float32)
    words = solve(equations, start, np.zeros(21), 100)
    hot = naive.one_hot(codes, sizes)
    best = hot @ np.linalg.lstsq(hot, rows.astype(np.float64))[0]
    reached = ((rows - hot @ words) ** 2).sum()
    np.testing.assert_allclose(reached, ((rows - best) ** 2).sum(), rtol=1e-4)
    for unused in (6, 15, 20):
        np.testing.assert_array_equal(words[unused], start[unused])
    held = solve(equations, start, np.full(21, 1e9), 5)
    np.testing.assert_allclose(held, start, atol=1e-3)


@pytest.mark.parametrize("cooling", ["joint", "kmeans"])
def test_fit_lowers_the_distortion_of_residual_quantization(cooling):
    rows = correlated_rows(sized(4000, 400))
    seen = []
    trainer = DictionaryAnnealing(4, WORDS, beam=6, rounds=6, tolerance=0, cooling=cooling)
    trainer.fit(rows, progress=lambda number, error: seen.append((number, error)))
    assert [number for number, _ in seen] == list(range(len(seen)))
    assert tuple(error for _, error in seen) == trainer.distortions
    assert trainer.distortions[-1] < 0.98 * trainer.distortions[0]
    np.testing.assert_allclose(held_out_error(trainer, rows), trainer.distortions[-1], rtol=1e-2)


def test_rounds_stop_when_they_gain_too_little():
    rows = correlated_rows(sized(2000, 350))
    start = DictionaryAnnealing(2, 8, beam=4, rounds=0).fit(rows)
    assert len(start.distortions) == 1
    trainer = DictionaryAnnealing(2, 8, beam=4, rounds=50, tolerance=0.01)
    trainer.fit(rows, start=start.dictionaries)
    gains = -np.diff(trainer.distortions) / trainer.distortions[:-1]
    assert len(gains) < 50
    assert gains[-1] <= 0.01
    assert (gains[:-1] > 0.01).all()


def test_fit_goes_on_from_existing_dictionaries():
    rows = correlated_rows(sized(3000, 350))
    short = DictionaryAnnealing(3, WORDS, beam=4, rounds=1).fit(rows)
    longer = DictionaryAnnealing(3, WORDS, beam=4, rounds=3, tolerance=0).fit(rows, start=short.dictionaries)
    np.testing.assert_allclose(longer.distortions[0], short.distortions[-1], rtol=3e-2)
    assert longer.distortions[-1] < short.distortions[-1]
    with pytest.raises(ValueError, match="sizes"):
        DictionaryAnnealing(3, 8).fit(rows, start=short.dictionaries)


def test_dictionaries_are_in_descending_variance():
    rows = correlated_rows(sized(4000, 400))
    trainer = DictionaryAnnealing(5, WORDS, beam=6, rounds=4).fit(rows)
    labels = trainer.encode(rows)
    variances = [trainer.dictionaries.part(m)[labels[:, m]].var(axis=0).sum() for m in range(5)]
    assert all(one > 0.9 * other for one, other in pairwise(variances))


def test_threads_and_seeds():
    rows = correlated_rows(sized(20_000, 400))
    alone = DictionaryAnnealing(3, WORDS, beam=4, rounds=2, seed=3).fit(rows)
    with ThreadPoolExecutor(3) as pool:
        pooled = DictionaryAnnealing(3, WORDS, beam=4, rounds=2, seed=3).fit(rows, map=pool.map)
        pooled.partial_fit(rows, map=pool.map)
    alone.partial_fit(rows)
    assert same_state(alone, pooled)
    other = DictionaryAnnealing(3, WORDS, beam=4, rounds=2, seed=4).fit(rows)
    assert not np.array_equal(other.dictionaries.words, alone.dictionaries.words)


@pytest.mark.parametrize("words", [(WORDS,) * 3, (300, WORDS, sized(8, 4))])
def test_state_resumes_bit_for_bit(words):
    batches = [correlated_rows(sized(2000, 350), seed=seed) for seed in range(5)]
    whole = DictionaryAnnealing(words=words, beam=4, seed=1)
    parts = DictionaryAnnealing.from_state(whole.state())
    for batch in batches:
        whole.partial_fit(batch)
        parts = DictionaryAnnealing.from_state(parts.partial_fit(batch).state())
    assert same_state(whole, parts)
    np.testing.assert_array_equal(whole.encode(batches[0]), parts.encode(batches[0]))
    with pytest.raises(ValueError, match="missing"):
        DictionaryAnnealing.from_state({"words": np.zeros(3)})


def test_a_batch_of_few_rows_seen_again_and_again_is_not_learned_by_heart():
    """Six rows for each word: fitted to them, words would describe their noise."""
    rows, held_out = (
        correlated_rows(sized(1500, 150), dimension=40),
        correlated_rows(sized(500, 200), dimension=40, seed=1),
    )
    trainer = DictionaryAnnealing(4, sized(64, 6), beam=4)
    errors = [held_out_error(trainer.partial_fit(rows), held_out) for _ in range(8)]
    assert all(after <= 1.005 * before for before, after in pairwise(errors))
    assert errors[-1] < errors[0]


def test_online_error_falls_and_never_jumps():
    held_out = correlated_rows(sized(3000, 350), seed=99)
    trainer = DictionaryAnnealing(4, WORDS, beam=6)
    errors = []
    for seed in range(sized(20, 10)):
        trainer.partial_fit(correlated_rows(sized(3000, 350), seed=seed))
        errors.append(held_out_error(trainer, held_out))
    assert errors[9] < 0.97 * errors[0]
    # Few rows measure an error only so well.
    rise = sized(5, 20) / 1000
    assert (np.diff(errors) <= rise * np.array(errors[:-1])).all()


def odd_batches():
    rng = np.random.default_rng(0)
    many = sized(3000, 350)
    zeros = np.zeros((many, 16), np.uint8)
    return {
        "zeros": zeros,
        "ones": zeros + 255,
        "noise": rng.integers(0, 256, (many, 16)).astype(np.uint8),
        "one row": np.repeat(correlated_rows(1), many, axis=0),
        "few": correlated_rows(3, seed=5),
        "huge": rng.normal(size=(many, 16)) * 1e6,
    }


@pytest.mark.parametrize("name", odd_batches())
@pytest.mark.parametrize("before", [1, 6])
def test_an_odd_batch_destroys_nothing(name, before):
    held_out = correlated_rows(sized(3000, 350), seed=99)
    trainer = DictionaryAnnealing(4, WORDS, beam=6)
    for seed in range(before):
        trainer.partial_fit(correlated_rows(sized(3000, 350), seed=seed))
    error = held_out_error(trainer, held_out)
    trainer.partial_fit(odd_batches()[name])
    assert held_out_error(trainer, held_out) <= 1.005 * error
    trainer.partial_fit(correlated_rows(sized(3000, 350), seed=50))
    assert held_out_error(trainer, held_out) <= 1.005 * error


def test_a_stream_that_changes_for_good_is_learned():
    trainer = DictionaryAnnealing(3, WORDS, beam=4)
    for seed in range(3):
        trainer.partial_fit(correlated_rows(sized(2000, 350), seed=seed))
    changed = [255 - correlated_rows(sized(2000, 350), seed=seed)[:, ::-1] for seed in range(12)]
    before = held_out_error(trainer, changed[0])
    for batch in changed[1:]:
        trainer.partial_fit(batch)
    assert held_out_error(trainer, changed[0]) < 0.7 * before


def test_wide_first_dictionary():
    rows = correlated_rows(sized(6000, 800))
    narrow = DictionaryAnnealing(words=(sized(256, 64), WORDS, WORDS), beam=6, rounds=3).fit(rows)
    wide = DictionaryAnnealing(words=(600, WORDS, WORDS), beam=6, rounds=3).fit(rows)
    codes = wide.encode(rows)
    assert codes.shape == (len(rows), 4)
    labels = codes[:, 0].astype(int) * 256 + codes[:, 1]
    assert labels.max() < 600
    nearest = ((rows[:50, None].astype(float) - wide.dictionaries.part(0)) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(labels[:50], nearest)
    assert wide.distortions[-1] < 1.1 * narrow.distortions[-1]
    assert wide.norm_ranges.shape == (4, 2)


def test_only_a_wide_dictionary():
    rows = correlated_rows(sized(2000, 350))
    trainer = DictionaryAnnealing(words=(300,), rounds=3).fit(rows)
    assert trainer.encode(rows).shape == (len(rows), 2)
    assert len(trainer.distortions) == 1
    trainer.partial_fit(rows)


def test_norm_ranges_bracket_the_sample():
    rows = correlated_rows(sized(3000, 350))
    trainer = DictionaryAnnealing(3, WORDS, beam=4, rounds=2).fit(rows)
    ranges = trainer.norm_ranges
    assert ranges.dtype == np.float32
    assert ranges.shape == (4, 2)
    labels = trainer.encode(rows)
    prefix, norms = np.zeros(rows.shape), [np.zeros(len(rows))]
    for m in range(3):
        prefix = prefix + trainer.dictionaries.part(m)[labels[:, m]]
        norms.append((prefix**2).sum(axis=1))
    for level in range(4):
        rest = norms[-1] - norms[level]
        assert ((rest >= ranges[level, 0] - 1) & (rest <= ranges[level, 1] + 1)).all()


@pytest.mark.parametrize("cooling", ["joint", "kmeans"])
def test_hard_data_gives_finite_words(cooling):
    rng = np.random.default_rng(0)
    few = np.repeat(rng.integers(0, 256, (5, 6)), 20, axis=0).astype(np.uint8)
    constant = rng.integers(0, 256, (100, 6)).astype(np.float32)
    constant[:, 1:4] = 3
    for rows in (few, constant, np.zeros((100, 6)), np.full((100, 1), 9.0)):
        trainer = DictionaryAnnealing(3, 16, beam=4, rounds=3, cooling=cooling).fit(rows)
        assert np.isfinite(trainer.dictionaries.words).all()
        assert np.isfinite(trainer.norm_ranges).all()
    trainer = DictionaryAnnealing(3, 16, beam=4, rounds=3, cooling=cooling).fit(few)
    assert trainer.distortions[-1] < 1e-2


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="10 vectors cannot train 16 words"):
        DictionaryAnnealing(2, 16).fit(np.zeros((10, 3)))
    with pytest.raises(ValueError, match="10 vectors cannot train 16 words"):
        DictionaryAnnealing(2, 16).partial_fit(np.zeros((10, 3)))
    rows = np.zeros((50, 3))
    rows[17, 1] = np.nan
    with pytest.raises(ValueError, match="row 17"):
        DictionaryAnnealing(2, 16).fit(rows)
    with pytest.raises(ValueError, match="no dimensions"):
        DictionaryAnnealing(2, 16).fit(np.zeros((50, 0)))
    with pytest.raises(ValueError, match="no dictionaries yet"):
        DictionaryAnnealing(2, 16).encode(rows)
    trainer = DictionaryAnnealing(2, 16).fit(np.zeros((50, 3)))
    with pytest.raises(ValueError, match=r"expected \(n, 3\)"):
        trainer.partial_fit(np.zeros((50, 4)))


def test_online_learning_cools_as_asked():
    batches = [correlated_rows(sized(6000, 800), seed=seed) for seed in range(4)]
    joint, kmeans = (DictionaryAnnealing(3, WORDS, beam=4, cooling=way) for way in ("joint", "kmeans"))
    held_out = correlated_rows(sized(3000, 350), seed=99)
    errors = []
    for batch in batches:
        joint.partial_fit(batch)
        errors.append(held_out_error(kmeans.partial_fit(batch), held_out))
    assert errors[-1] < 0.99 * errors[0]
    assert not np.array_equal(joint.dictionaries.words, kmeans.dictionaries.words)
