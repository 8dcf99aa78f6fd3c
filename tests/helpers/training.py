"""Rows to train on, and what training came to."""

import numpy as np


def correlated_rows(n, dimension=16, seed=0):
    """Rows with a fast decaying spectrum and clusters, as uint8."""
    rng = np.random.default_rng(7)
    mixing = rng.normal(size=(dimension, dimension)) * 0.8 ** np.arange(dimension)[:, None]
    centres = rng.normal(size=(40, dimension)) * 2
    rng = np.random.default_rng((7, seed))
    latent = rng.normal(size=(n, dimension)) + centres[rng.integers(40, size=n)]
    return np.clip(latent @ mixing * 14 + 128, 0, 255).astype(np.uint8)


def held_out_error(trainer, rows):
    return ((rows - trainer.decode(trainer.encode(rows))) ** 2).sum(axis=1).mean()


def same_state(one, other):
    first, second = one.state(), other.state()
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype and np.array_equal(first[name], second[name])
        for name in first
    )
