"""A wide first dictionary from a stream: k-means in passes over batches that are never in memory together.

    trainer = FirstDictionaryTrainer(65_536, seed=0)
    while not trainer.done:
        for batch in batches:          # the same batches in the same order, pass after pass
            trainer.add(batch)
        trainer.end_pass()
    words = trainer.words

The first pass draws rows as words; each further one is a pass of Lloyd's algorithm, the last of them with
words assigned as encoding will. A word without rows moves to a row drawn with a probability proportional to
its squared error, as in k-means++ seeding.
"""

from collections.abc import Mapping
from typing import cast

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.clustering.distances import ASSIGNED_ROWS, Map, as_rows, check_rows
from aggtree.engine.clustering.distances_kernels import Rows
from aggtree.engine.clustering.kmeans import WordSums, errors_left
from aggtree.engine.coding.wide_dictionary import PROBES, word_chooser

PASSES = 6
"""Most passes of Lloyd's algorithm."""

EARLY_PROBES = 4
"""Groups of words that passes look at while words are far from their places.

With 16,384 words and 30 rows each this halves the time of all passes, and E of other rows is 0.04 % higher.
"""

LAST_PASSES = 2
"""Passes that assign words as encoding will."""

TOLERANCE = 1e-3
"""Passes end when one lowers E by less than this fraction."""

SPARE_SHARE = 1 / 16
"""Words that can be moved after one pass, of all; the others wait for the next."""

STREAM = 0x666972737464
"""Keeps these random numbers apart from those of annealing with the same seed."""


class RowSample:
    """Rows drawn from a stream without replacement, with chances in proportion to their weights.

    Each row gets the key Exp(1) / weight; the rows of the least keys are the sample (Efraimidis and
    Spirakis). At most `size` rows are kept at any time.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._keys = np.empty(0)
        self.rows: Rows = np.empty((0, 0), np.uint8)

    def add(self, rows: Rows, weights: NDArray[np.float64], rng: np.random.Generator) -> None:
        """Offer rows (n, d); those of weight 0 are never taken."""
        draws = rng.standard_exponential(len(rows))
        keys = np.divide(draws, weights, out=np.full(len(rows), np.inf), where=weights > 0)
        limit = self._keys[-1] if len(self._keys) == self._size else np.inf
        offered = np.flatnonzero(keys < limit)
        offered = offered[np.argsort(keys[offered], kind="stable")[: self._size]]
        if len(offered) == 0:
            return
        if len(self._keys) == 0:
            self._keys, self.rows = keys[offered], rows[offered]
            return
        order = np.argsort(np.concatenate((self._keys, keys[offered])), kind="stable")[: self._size]
        self.rows = cast(Rows, np.concatenate((self.rows, rows[offered]))[order])
        self._keys = np.concatenate((self._keys, keys[offered]))[order]


class LloydPass:
    """One pass over the rows with fixed words (K, d), which accumulates the next words."""

    def __init__(self, words: NDArray[np.float32], probes: int) -> None:
        self._chooser = word_chooser(words, probes)
        self._sums = WordSums(words)
        self._dimension = words.shape[1]
        self._far = RowSample(max(1, round(SPARE_SHARE * len(words))))
        self._error = 0.0

    def add(self, batch: NDArray[np.generic], rng: np.random.Generator, map_: Map) -> None:
        """Take rows (n, d); `map_` runs over fixed blocks of them."""

        def assign(start: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
            rows = as_rows(batch[start : start + ASSIGNED_ROWS])
            lengths = check_rows(rows, self._dimension, start)
            labels, scores = self._chooser.assign(rows)
            return labels, errors_left(lengths, scores)

        starts = range(0, len(batch), ASSIGNED_ROWS)
        for start, (labels, errors) in zip(starts, map_(assign, starts), strict=True):
            # In the order of the rows, whoever assigned them: sums of floats depend on it.
            rows = as_rows(batch[start : start + ASSIGNED_ROWS])
            self._sums.add(rows, labels)
            self._far.add(rows, errors, rng)
            self._error += float(errors.sum())

    @property
    def error(self) -> float:
        """E of the rows of this pass."""
        return self._error / max(1, int(self._sums.counts.sum()))

    def moved_words(self) -> NDArray[np.float32]:
        """The mean of each word's rows; words without any move to rows with an error, or stay."""
        words = self._sums.means()
        empty = self._sums.empty[: len(self._far.rows)]
        if len(empty):
            words[empty] = self._far.rows[: len(empty)]
        return words


class FirstDictionaryTrainer:
    """Learns the words of a wide first dictionary in passes over a stream of batches.

    The result is a function of the batches, their order and the parameters; `map` changes the time only.
    `state` between two passes resumes bit for bit.

    errors : E of the rows of each pass after the first, with the words at its beginning.
    """

    def __init__(
        self,
        size: int,
        seed: int = 0,
        *,
        passes: int = PASSES,
        tolerance: float = TOLERANCE,
    ) -> None:
        if size < 1 or passes < 0:
            raise ValueError(f"{size} words in {passes} passes: expected 1 word or more, 0 passes or more")
        self.size = size
        self.seed = seed
        self.passes = passes
        self.tolerance = tolerance
        self.errors: list[float] = []
        self._words: NDArray[np.float32] | None = None
        self._drawn = RowSample(size)
        self._pass: LloydPass | None = None
        self._batch = 0

    @property
    def words(self) -> NDArray[np.float32]:
        """Words (size, d) float32 after the passes so far."""
        if self._words is None:
            raise ValueError("no words yet: end a first pass over the batches")
        return self._words

    @property
    def passes_made(self) -> int:
        """Passes that were ended, the one that draws words included."""
        return 0 if self._words is None else 1 + len(self.errors)

    @property
    def done(self) -> bool:
        """Whether all passes were made, or another would gain too little."""
        if self._words is None:
            return False
        settled = len(self.errors) > 1 and self.errors[-1] >= (1 - self.tolerance) * self.errors[-2]
        return settled or len(self.errors) >= self.passes

    def add(self, batch: NDArray[np.generic], *, map: Map = map) -> None:
        """Take the next batch (n, d) of the present pass."""
        batch = np.asanyarray(batch)
        number, self._batch = self._batch, self._batch + 1
        rng = np.random.default_rng((self.seed, STREAM, number, self.passes_made))
        if self._words is None:
            rows = as_rows(batch)
            check_rows(rows, rows.shape[1])
            self._drawn.add(rows, np.ones(len(rows)), rng)
            return
        if self._pass is None:
            early = len(self.errors) < self.passes - LAST_PASSES
            self._pass = LloydPass(self._words, EARLY_PROBES if early else PROBES)
        self._pass.add(batch, rng, map)

    def end_pass(self) -> None:
        """Move the words to the means of their rows in this pass."""
        if self._pass is not None:
            self._words = self._pass.moved_words()
            self.errors.append(self._pass.error)
        elif self._words is None:
            rows, size = self._drawn.rows, self.size
            if len(rows) < size:
                raise ValueError(f"{len(rows)} vectors cannot train {size} words: add vectors or use fewer")
            self._words, self._drawn = rows.astype(np.float32), RowSample(0)
        else:
            raise ValueError("a pass without batches: add them first")
        self._pass = None
        self._batch = 0

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Everything that `from_state` needs to continue bit for bit; ValueError in the middle of a pass."""
        if self._batch:
            raise ValueError("the state is taken between passes: call end_pass first")
        state: dict[str, NDArray[np.generic]] = {
            "first_settings": np.asarray([self.size, self.seed, self.passes], np.int64),
            "first_tolerance": np.asarray([self.tolerance], np.float64),
            "first_errors": np.asarray(self.errors, np.float64),
        }
        if self._words is not None:
            state["first_words"] = self._words
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, NDArray[np.generic]]) -> "FirstDictionaryTrainer":
        """The trainer that `state` was taken from."""
        missing = {"first_settings", "first_tolerance", "first_errors"} - state.keys()
        if missing:
            raise ValueError(f"not a state of a first dictionary: {', '.join(sorted(missing))} missing")
        size, seed, passes = (int(value) for value in state["first_settings"])
        trainer = cls(size, seed, passes=passes, tolerance=float(state["first_tolerance"][0]))
        trainer.errors = [float(error) for error in state["first_errors"]]
        if "first_words" in state:
            trainer._words = np.array(state["first_words"], np.float32)
        return trainer
