"""A wide first dictionary learned from a stream."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers.sizes import sized
from helpers.training import correlated_rows

from aggtree.engine.clustering.kmeans import kmeans
from aggtree.engine.coding.wide_dictionary import TwoStage
from aggtree.engine.training.annealing import DictionaryAnnealing
from aggtree.engine.training.wide_dictionary_trainer import FirstDictionaryTrainer, RowSample


def error(rows, words):
    distances = (words.astype(float) ** 2).sum(axis=1) - 2.0 * rows.astype(float) @ words.T.astype(float)
    return ((rows.astype(float) ** 2).sum(axis=1) + distances.min(axis=1)).mean()


def learn(batches, size, map=map, **options):
    trainer = FirstDictionaryTrainer(size, **options)
    while not trainer.done:
        for batch in batches:
            trainer.add(batch, map=map)
        trainer.end_pass()
    return trainer


ROWS = sized(2000, 700)


def batches(count=5, rows=ROWS, dtype=np.uint8):
    return [correlated_rows(rows, seed=seed).astype(dtype) for seed in range(count)]


@pytest.mark.parametrize("size", [300, 1500])
def test_passes_are_k_means_over_all_batches(size):
    stream = batches()
    trainer = learn(stream, size, passes=3, tolerance=-1)
    start = learn(stream, size, passes=0)
    everything = np.concatenate(stream)
    assert len(np.unique(start.words, axis=0)) > 0.9 * size
    assert {tuple(word) for word in start.words} <= {tuple(row) for row in everything.astype(np.float32)}
    assert trainer.errors == sorted(trainer.errors, reverse=True)
    assert error(everything, trainer.words) < 0.8 * error(everything, start.words)
    if size <= 1024:
        plain = kmeans(everything.astype(np.float32), start.words, 3, np.random.default_rng(0))
        np.testing.assert_allclose(error(everything, trainer.words), error(everything, plain), rtol=0.02)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, np.int16])
def test_threads_change_nothing(dtype):
    stream = batches(3, sized(20_000, 3000), dtype)
    alone = learn(stream, 1200, passes=2)
    with ThreadPoolExecutor(3) as pool:
        pooled = learn(stream, 1200, map=pool.map, passes=2)
    np.testing.assert_array_equal(alone.words, pooled.words)
    assert alone.errors == pooled.errors
    assert not np.array_equal(alone.words, learn(stream, 1200, seed=1, passes=2).words)


def test_state_resumes_bit_for_bit():
    stream = batches()
    whole = learn(stream, 400)
    parts = FirstDictionaryTrainer.from_state(FirstDictionaryTrainer(400).state())
    while not parts.done:
        for batch in stream:
            parts.add(batch)
        with pytest.raises(ValueError, match="between passes"):
            parts.state()
        parts.end_pass()
        parts = FirstDictionaryTrainer.from_state(parts.state())
    first, second = whole.state(), parts.state()
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    with pytest.raises(ValueError, match="missing"):
        FirstDictionaryTrainer.from_state({"first_words": np.zeros((2, 2))})


def test_empty_words_move_to_where_the_error_is():
    """Most rows are equal, so most words drawn from them are empty at first."""
    rng = np.random.default_rng(0)
    same = np.full((4000, 8), 50, np.uint8)
    other = rng.integers(0, 256, (400, 8)).astype(np.uint8)
    stream = [np.concatenate((same, other[part::2])) for part in range(2)]
    begun = learn(stream, 300, passes=0)
    trainer = learn(stream, 300, passes=20, tolerance=-1)
    assert len(np.unique(begun.words, axis=0)) < 60
    assert len(np.unique(trainer.words, axis=0)) > 250
    assert error(other, trainer.words) < 0.4 * error(other, begun.words)


@pytest.mark.parametrize("distinct", [1, 7])
def test_few_distinct_rows(distinct):
    rows = np.repeat(np.random.default_rng(0).integers(0, 256, (distinct, 6)), 400, axis=0).astype(np.uint8)
    trainer = learn([rows, rows], 300)
    assert np.isfinite(trainer.words).all()
    assert trainer.errors[-1] == 0
    assert error(rows, trainer.words) < 1e-6


def test_the_sample_follows_the_weights():
    rows = np.arange(4000, dtype=np.float32)[:, None]
    weights = np.where(rows[:, 0] % 2 == 0, 0.0, np.where(rows[:, 0] < 1000, 30.0, 1.0))
    sample = RowSample(100)
    rng = np.random.default_rng(0)
    for first in range(0, 4000, 700):
        sample.add(rows[first : first + 700], weights[first : first + 700], rng)
    drawn = sample.rows[:, 0]
    assert len(np.unique(drawn)) == 100
    assert (drawn % 2 == 1).all()
    assert (drawn < 1000).sum() > 80
    scarce = RowSample(100)
    scarce.add(rows[:9], weights[:9], rng)
    assert len(scarce.rows) == 4


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="100 vectors cannot train 300 words"):
        learn([np.zeros((50, 3), np.uint8)] * 2, 300)
    rows = np.zeros((400, 3))
    rows[17, 1] = np.nan
    with pytest.raises(ValueError, match="row 17"):
        learn([rows], 300)
    trainer = learn([np.zeros((400, 3))], 300, passes=0)
    with pytest.raises(ValueError, match="without batches"):
        trainer.end_pass()
    with pytest.raises(ValueError, match="no words yet"):
        _ = FirstDictionaryTrainer(300).words
    with pytest.raises(ValueError, match="expected 1 word or more"):
        FirstDictionaryTrainer(0)


def test_annealing_takes_words_learned_before():
    stream = batches()
    words = learn(stream, 600).words
    trainer = DictionaryAnnealing(words=(600, 16, 16), beam=4, rounds=3).fit(stream[0][:500], first=words)
    np.testing.assert_array_equal(trainer.dictionaries.part(0), words)
    labels = trainer.encode(stream[1])[:, :2].astype(int) @ [256, 1]
    np.testing.assert_array_equal(labels[:50], TwoStage(words, probes=99).assign(stream[1][:50])[0])
    again = trainer.fit(stream[0])
    assert not np.array_equal(again.dictionaries.part(0), words)
    with pytest.raises(ValueError, match="expected 600 words"):
        trainer.fit(stream[0], first=words[:-1])
    with pytest.raises(ValueError, match="no wide first"):
        DictionaryAnnealing(words=(16, 16)).fit(stream[0], first=words[:16])


@pytest.mark.parametrize("cooling", ["joint", "kmeans"])
@pytest.mark.parametrize("words", [(sized(16, 4),) * 3, (300, sized(16, 4), sized(8, 4))])
def test_a_fit_cut_short_goes_on(cooling, words):
    rows = correlated_rows(sized(4000, 450))
    options = {"words": words, "beam": 4, "rounds": 5, "tolerance": 0, "cooling": cooling}
    states = []
    whole = DictionaryAnnealing(**options)
    whole.fit(rows, progress=lambda *_: states.append(whole.state()))
    for state in states:
        resumed = DictionaryAnnealing.from_state(state).fit(rows, resume=True)
        for name, array in whole.state().items():
            np.testing.assert_array_equal(resumed.state()[name], array)
    with pytest.raises(ValueError, match="nothing to resume"):
        whole.fit(rows, resume=True)
    with pytest.raises(ValueError, match=f"had {len(rows)}"):
        DictionaryAnnealing.from_state(states[0]).fit(rows[:100], resume=True)
