"""Cooling with few rows: dictionaries fitted to mixtures of the rows, on the axes a code can describe.

Words fitted to few rows overfit, and codes chosen with such words make it worse. There are two remedies. Each
round generates new rows with the mean and covariance of the given ones, so that no noise is seen twice. And
words are zero on the weak axes, where they could only describe noise. Both were chosen by the
error of a tenth of 10,000 GIST vectors (960 dimensions) held out of training; `python -m bench training
few_rows` compares the choices.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.clustering.distances import Map, products
from aggtree.engine.clustering.distances_kernels import Rows
from aggtree.engine.clustering.kmeans import principal_axes
from aggtree.engine.coding.encoding import CHUNK_ROWS
from aggtree.engine.training.cooling import JOINT_ROWS_PER_WORD, SWEEPS, Encode, Narrow, distortion
from aggtree.engine.training.least_squares import NormalEquations, solve

MIXED_ROWS_PER_WORD = 16
"""With fewer rows for each word of the largest dictionary there is nothing to mix."""

MIX = 0.5
"""Part of the second row in a mixed row: for rows held out less is worse and more is no better."""

SPARE_AXES = 2
"""Axes kept for each one an ideal code describes: for rows held out fewer are worse, more change little."""


@dataclass(frozen=True)
class LeadingAxes:
    """The mean (d,) float32 of some rows, their leading principal axes (P, d) float32, and E beside these."""

    centre: NDArray[np.float32]
    axes: NDArray[np.float32]
    beside: float

    def project(self, rows: Rows) -> NDArray[np.float32]:
        """Coordinates (n, P) of rows (n, d) on the axes, seen from the mean."""
        flat = np.empty((len(rows), len(self.axes)), np.float32)
        for start in range(0, len(rows), CHUNK_ROWS):
            here = slice(start, start + CHUNK_ROWS)
            flat[here] = products(rows[here] - self.centre, self.axes)
        return flat

    def flatten(self, narrow: Narrow) -> Narrow:
        """The words on the axes; the mean is subtracted from the first dictionary."""
        words = products(narrow.words, self.axes)
        words[narrow.part(0)] -= products(self.centre[None], self.axes)
        return narrow.with_words(words)

    def raise_up(self, flat: Narrow) -> Narrow:
        """The inverse of `flatten`."""
        words = products(flat.words, np.ascontiguousarray(self.axes.T))
        words[flat.part(0)] += self.centre
        return flat.with_words(words)


def leading_axes(rows: Rows, bits: float) -> LeadingAxes:
    """The principal axes of rows (n, d) that a code of the given number of bits can describe, and some more.

    An ideal code of Gaussian rows leaves the same error t on every axis it describes, and describes those
    whose variance exceeds t (reverse water-filling).
    """
    centre = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    everything = LeadingAxes(centre, principal_axes(rows.astype(np.float32)), 0.0)
    spread = np.zeros(rows.shape[1])
    for start in range(0, len(rows), CHUNK_ROWS):
        flat = everything.project(rows[start : start + CHUNK_ROWS])
        spread += (flat.astype(np.float64) ** 2).sum(axis=0)
    spread = np.maximum(np.sort(spread / len(rows))[::-1], 1e-12 * spread.max() / len(rows) + 1e-30)
    # log2 t when the first 1, 2, ... axes are described.
    error = (np.cumsum(np.log2(spread)) - 2 * bits) / np.arange(1, len(spread) + 1)
    described = np.count_nonzero(np.log2(spread) > error)
    kept = max(1, SPARE_AXES * described)
    beside = float(spread[kept:].sum())
    return LeadingAxes(centre, np.ascontiguousarray(everything.axes[:kept]), beside)


class MixedRound(NamedTuple):
    """What a round on mixtures gives: dictionaries, and codes and E of the mixtures of its last pass."""

    narrow: Narrow
    codes: NDArray[np.uint8]
    error: float


def mixed_round(
    narrow: Narrow,
    rows: NDArray[np.float32],
    space: LeadingAxes,
    encode: Encode,
    rng: np.random.Generator,
    map_: Map = map,
) -> MixedRound:
    """Cool all dictionaries at once on mixtures of `rows` (n, P), which are projected on `space`.

    About JOINT_ROWS_PER_WORD rows for each word are made up, in whole passes. A pull on each word as strong
    as its rows takes the average over this round and the ones before.
    """
    flat = space.flatten(narrow)
    equations = NormalEquations.empty(flat.layout, rows.shape[1])
    passes = max(1, round(JOINT_ROWS_PER_WORD * len(flat.words) / len(rows)))
    for _ in range(passes):
        mixed = mixed_rows(rows, rng)
        codes = encode(flat, mixed)
        equations.add(mixed, codes, map_)
    pull = passes * len(rows) / np.repeat(flat.layout.words, flat.layout.words)
    cooled = flat.with_words(solve(equations, flat.words, pull, SWEEPS, map_))
    error = distortion(cooled, mixed, codes, map_) + space.beside
    return MixedRound(space.raise_up(cooled), codes, error)


def mixed_batch(
    narrow: Narrow, rows: Rows, encode: Encode, rng: np.random.Generator, map_: Map = map
) -> Narrow:
    """The dictionaries after a round on mixtures of a batch of few rows (n, d); of very few, unchanged."""
    if len(rows) < MIXED_ROWS_PER_WORD * max(narrow.layout.words):
        return narrow
    space = leading_axes(rows, float(np.log2(narrow.layout.words).sum()))
    return mixed_round(narrow, space.project(rows), space, encode, rng, map_).narrow


def mixed_rows(rows: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """√(1 − MIX²) x + MIX x' for every row x (n, P) of mean 0, x' another one: the covariance is kept."""
    own, other = np.float32(np.sqrt(1 - MIX**2)), np.float32(MIX)
    mixed: NDArray[np.float32] = other * rows[rng.permutation(len(rows))]
    mixed += own * rows
    return mixed
