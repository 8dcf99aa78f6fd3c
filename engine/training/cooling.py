"""One round of Dictionary Annealing: fit the words to the rows, starting from the present words.

Two ways to cool. `joint_round` fits all dictionaries at once by least squares for the present codes.
`kmeans_round` is the paper's: dictionary after dictionary, *heat* x' = e + c_m(i_m), *cool* C_m by the
improved k-means on {x'}, re-encode. From scratch both start as residual quantization, because the
intermediate data set of an all-zero dictionary is the residue (`residual_start`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.clustering.distances import Map, NearestWord
from aggtree.engine.clustering.distances_kernels import Rows
from aggtree.engine.clustering.kmeans import choose_rows, improved_kmeans
from aggtree.engine.coding.decoding_kernels import decode_rows
from aggtree.engine.coding.encoding import CHUNK_ROWS, Encoder
from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.params import AnnealingParams
from aggtree.engine.training.least_squares import NormalEquations, solve
from aggtree.engine.training.least_squares_kernels import squared_errors

SWEEPS = 4
"""Gauss-Seidel sweeps per round; two already reach the minimum within 0.01 % on SIFT."""

START_ROWS_PER_WORD = 128
LEAST_START_ROWS_PER_WORD = 32

JOINT_ROWS_PER_WORD = 20
"""With fewer rows for each word of all dictionaries joint least squares fits noise: at 5 rows, training
error falls by 13 % while the error of other rows rises by 6 %. Rows are then mixed, see `mixing`."""

HEAT = 0.4
"""First temperature of offline annealing: noise on words, as a fraction of their dictionary's spread."""

COLD_SHARE = 0.1
"""The last share of the rounds that runs without noise."""


@dataclass(frozen=True)
class Narrow:
    """The dictionaries that are annealed: all, or all but a wide first one.

    words : (S, d) float32. layout : their sizes, each at most 256.
    """

    words: NDArray[np.float32]
    layout: CodeLayout

    @property
    def first(self) -> NDArray[np.int64]:
        """(M,) first word of each dictionary."""
        return (np.cumsum(self.layout.words) - self.layout.words).astype(np.int64)

    def part(self, number: int) -> slice:
        """Rows of `words` that are dictionary `number` (from 0)."""
        start = int(self.first[number])
        return slice(start, start + self.layout.words[number])

    def with_words(self, words: NDArray[np.float32]) -> "Narrow":
        return Narrow(words, self.layout)


Encode = Callable[[Narrow, Rows], NDArray[np.uint8]]


def encode_blocks(narrow: Narrow, rows: Rows, beam: int, map_: Map) -> NDArray[np.uint8]:
    """Codes (n, M) of rows (n, d); `map_` runs over fixed blocks of rows."""
    encoder = Encoder(Dictionaries(narrow.words, narrow.layout), beam)
    starts = range(0, len(rows), CHUNK_ROWS)
    blocks = list(map_(encoder.encode, [rows[start : start + CHUNK_ROWS] for start in starts]))
    return np.concatenate(blocks)


def decode(narrow: Narrow, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Reconstructions (n, d) float32."""
    decoded = np.zeros((len(codes), narrow.words.shape[1]), np.float32)
    decode_rows(codes, narrow.first, narrow.words, decoded)
    return decoded


def distortion(narrow: Narrow, rows: Rows, codes: NDArray[np.uint8], map_: Map = map) -> float:
    """E, the mean squared error of rows (n, d) encoded as codes (n, M)."""
    errors = np.empty(len(rows))

    def measure(start: int) -> None:
        here = slice(start, start + CHUNK_ROWS)
        squared_errors(rows[here], decode(narrow, codes[here]), errors[here])

    for _ in map_(measure, range(0, len(rows), CHUNK_ROWS)):
        pass
    return float(errors.mean())


def is_early(params: AnnealingParams, number: int) -> bool:
    """Whether round `number` (from 0) has noise, and may take fewer rows and paths than the last ones."""
    joint = params.cooling == "joint"
    return joint and number < params.rounds and temperature(number, params.rounds) > 0


def thinning(params: AnnealingParams, rows: int, words: int, *, early: bool) -> int:
    """Every how-many-th of `rows` rows a round takes to anneal `words` words."""
    per_word = params.early_rows if early else params.late_rows
    if per_word == 0 or params.cooling != "joint":
        return 1
    return max(1, round(rows / (max(per_word, JOINT_ROWS_PER_WORD) * max(1, words))))


def thinned(rows: Rows, step: int, turn: int = 0) -> Rows:
    """Every `step`-th of rows (n, d), side by side; other rows in each of `step` turns."""
    return rows if step == 1 else rows[turn % step :: step].copy()


def start_rows(params: AnnealingParams, scarce: bool = False) -> int:
    """Rows of each word that dictionaries start from: a few where rounds with noise take few.

    scarce : whether rounds are mixed, which keep more of the start.
    """
    few = max(params.early_rows, LEAST_START_ROWS_PER_WORD)
    return few if params.early_rows and not scarce else START_ROWS_PER_WORD


def residual_start(
    rows: Rows,
    layout: CodeLayout,
    rng: np.random.Generator,
    map_: Map = map,
    per_word: int = START_ROWS_PER_WORD,
) -> Narrow:
    """Dictionaries learned one after the other on the residues of the earlier ones.

    per_word : rows of each word that k-means takes.
    """
    residue = rows.astype(np.float32)
    parts: list[NDArray[np.float32]] = []

    def subtract(start: int) -> None:
        here = residue[start : start + CHUNK_ROWS]
        here -= parts[-1][NearestWord(parts[-1]).assign(here)[0]]

    for size in layout.words:
        sample = choose_rows(residue, min(len(rows), per_word * size), rng)
        nothing = np.zeros((size, rows.shape[1]), np.float32)
        parts.append(improved_kmeans(sample, nothing, rng, shrink=True, map_=map_))
        for _ in map_(subtract, range(0, len(rows), CHUNK_ROWS)):
            pass
    return Narrow(np.concatenate([np.zeros((0, rows.shape[1]), np.float32), *parts]), layout)


def joint_round(
    narrow: Narrow,
    rows: Rows,
    codes: NDArray[np.uint8],
    weights: NDArray[np.float64],
    rng: np.random.Generator,
    map_: Map = map,
) -> Narrow:
    """Cool all dictionaries at once for the given codes; `weights` (S,) hold words where they are."""
    equations = NormalEquations.empty(narrow.layout, rows.shape[1])
    equations.add(rows, codes, map_)
    words = solve(equations, narrow.words, weights, SWEEPS, map_)
    empty = np.flatnonzero((equations.uses() == 0) & (weights <= 1))
    return narrow.with_words(_reseed(narrow.with_words(words), rows, codes, empty, rng))


def _reseed(
    narrow: Narrow, rows: Rows, codes: NDArray[np.uint8], empty: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Move unused words to heated rows x' = e + c_m(i_m)."""
    words = narrow.words.copy()
    if len(empty) == 0:
        return words
    chosen = rng.integers(len(rows), size=len(empty))
    residue = rows[chosen].astype(np.float32) - decode(narrow, codes[chosen])
    dictionary = np.searchsorted(narrow.first, empty, side="right") - 1
    words[empty] = residue + narrow.words[narrow.first[dictionary] + codes[chosen, dictionary]]
    return words


def temperature(number: int, rounds: int) -> float:
    """Noise of round `number` (from 0): falls linearly to zero before the last rounds."""
    return HEAT * max(0.0, 1 - (number + 1) / (rounds * (1 - COLD_SHARE)))


def heat(narrow: Narrow, degree: float, rng: np.random.Generator) -> Narrow:
    """Shake every word by `degree` times the spread of its dictionary, dimension by dimension.

    Codes found with shaken words leave the nearest local minimum; cooling follows from the words
    as they were. The paper heats with the residue, one dictionary at a time; shaking all at once is
    what joint cooling can use.
    """
    if degree == 0:
        return narrow
    words = narrow.words.copy()
    for number in range(narrow.layout.levels):
        part = narrow.part(number)
        spread = narrow.words[part].std(axis=0, dtype=np.float64)
        words[part] += (degree * spread * rng.standard_normal(words[part].shape)).astype(np.float32)
    return narrow.with_words(words)


def kmeans_round(
    narrow: Narrow, rows: Rows, codes: NDArray[np.uint8], rng: np.random.Generator, encode: Encode
) -> tuple[Narrow, NDArray[np.uint8]]:
    """Heat and cool one dictionary after the other; `encode` finds all codes again in between."""
    for number in range(narrow.layout.levels):
        part = narrow.part(number)
        heated = rows - decode(narrow, codes) + narrow.words[part][codes[:, number]]
        words = narrow.words.copy()
        words[part] = improved_kmeans(heated, words[part], rng)
        narrow = narrow.with_words(words)
        codes = encode(narrow, rows)
    return narrow, codes


def descending_variance(narrow: Narrow, codes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Order of the dictionaries by descending variance of the used words, (M,) int64.

    Sizes belong to positions, so only dictionaries of equal size change places.
    """
    variances = np.empty(narrow.layout.levels)
    for number, size in enumerate(narrow.layout.words):
        share = np.bincount(codes[:, number], minlength=size) / len(codes)
        words = narrow.words[narrow.part(number)].astype(np.float64)
        variances[number] = (share[:, None] * (words - share @ words) ** 2).sum()
    order = np.arange(narrow.layout.levels)
    for size in set(narrow.layout.words):
        places = np.flatnonzero(np.asarray(narrow.layout.words) == size)
        order[places] = places[np.argsort(-variances[places], kind="stable")]
    return order


def sorted_by_variance(narrow: Narrow, codes: NDArray[np.uint8]) -> tuple[Narrow, NDArray[np.uint8]]:
    """The dictionaries by descending variance, and their codes (n, M) in the same order."""
    order = descending_variance(narrow, codes)
    rows = np.concatenate([np.arange(len(narrow.words))[narrow.part(number)] for number in order])
    return narrow.with_words(np.ascontiguousarray(narrow.words[rows])), np.ascontiguousarray(codes[:, order])
