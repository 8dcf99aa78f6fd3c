"""Dictionary Annealing: learn dictionaries offline from a sample, or online from a stream.

Equation ↔ function: heat and cool are `cooling.kmeans_round`, cooling all dictionaries at once is
`cooling.joint_round`, multi-path encoding is `encoding.Encoder`. A wide first dictionary is learned first,
here or by a `FirstDictionaryTrainer`, and locked; the others are annealed on x − c_1(i_1).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.clustering.distances import Map, as_rows, check_rows
from aggtree.engine.clustering.distances_kernels import Rows
from aggtree.engine.coding.encoding import Encoder
from aggtree.engine.coding.wide_dictionary import FirstWords, check_first_words, learn_first_dictionary
from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.params import AnnealingParams, Cooling, dictionary_sizes
from aggtree.engine.training.annealing_state import OnlineState, norm_ranges, pack_state, unpack_state
from aggtree.engine.training.cooling import (
    JOINT_ROWS_PER_WORD,
    Narrow,
    distortion,
    encode_blocks,
    heat,
    is_early,
    joint_round,
    kmeans_round,
    residual_start,
    sorted_by_variance,
    start_rows,
    temperature,
    thinned,
    thinning,
)
from aggtree.engine.training.mixing import MIXED_ROWS_PER_WORD, leading_axes, mixed_batch, mixed_round

RIDGE = 1.0
"""Pull towards the present word, in rows, of every joint round."""

FAST_BATCHES = 20
"""Online batches before the past gets weight: old statistics would carry old assignments."""

MAX_RISE = 0.002
"""A batch may raise the error of remembered rows by this fraction; a step beyond it is cut."""

STEPS = (1.0, 0.5, 0.25, 0.125)
"""Fractions of a batch's step that are tried before it is given up."""

Progress = Callable[[int, float], None]


class DictionaryAnnealing:
    """Learns dictionaries, encodes and decodes with them.

    >>> trainer = DictionaryAnnealing(dictionaries=8, words=256, beam=10, seed=0).fit(x)
    >>> codes = trainer.encode(y)

    words : size of every dictionary, or a sequence of sizes. See `AnnealingParams` for the rest.
    Same rows, parameters and seed give the same bytes, whatever `map` runs the blocks.
    """

    def __init__(
        self,
        dictionaries: int | None = None,
        words: int | Sequence[int] = 256,
        beam: int = AnnealingParams.beam,
        seed: int = AnnealingParams.seed,
        *,
        rounds: int = AnnealingParams.rounds,
        tolerance: float = AnnealingParams.tolerance,
        cooling: Cooling = AnnealingParams.cooling,
    ) -> None:
        self.params = AnnealingParams(
            words=dictionary_sizes(dictionaries, words),
            beam=beam,
            seed=seed,
            rounds=rounds,
            tolerance=tolerance,
            cooling=cooling,
        )
        self._layout = CodeLayout(self.params.words)
        self._first: FirstWords | None = None
        self._narrow: Narrow | None = None
        self._codes: NDArray[np.uint8] | None = None
        self._online = OnlineState.empty()
        self._shakes = False
        self._encoder: Encoder | None = None
        self._history: list[float] = []

    @property
    def dictionaries(self) -> Dictionaries:
        """The dictionaries learned so far."""
        if self._narrow is None:
            raise ValueError("no dictionaries yet: call fit or partial_fit first")
        narrow = self._narrow.words
        words = narrow if self._first is None else np.concatenate((self._first.words, narrow))
        return Dictionaries(words, self._layout)

    @classmethod
    def of(cls, params: AnnealingParams) -> "DictionaryAnnealing":
        """A trainer with these parameters, of one stage."""
        (trainer := cls(words=params.words)).params = params
        return trainer

    @property
    def norm_ranges(self) -> NDArray[np.float32]:
        """(M + 1, 2) float32, least and largest ‖x̂‖² − ‖prefix of l words‖² of the training sample."""
        return norm_ranges(self.dictionaries, self.encode(self._online.sample))

    @property
    def distortions(self) -> tuple[float, ...]:
        """E of the training rows at the start and after every round; online, E of each batch on arrival."""
        return tuple(self._history)

    def fit(
        self,
        x: NDArray[np.generic],
        *,
        start: Dictionaries | None = None,
        first: NDArray[np.float32] | None = None,
        resume: bool = False,
        map: Map = map,
        progress: Progress | None = None,
    ) -> Self:
        """Learn from vectors x (n, d), from scratch or by annealing the dictionaries `start`.

        first : words (K_1, d) of a wide first dictionary learned elsewhere; otherwise it is learned from x.
        resume : continue after the last round of an interrupted fit, with the same arguments.
        progress : called with 0 and E at the start, then after every round with its number and E; the
            trainer's state at these moments can be resumed.
        Rounds end after `rounds`, or when one without noise lowers E by less than `tolerance`.
        """
        self._shakes = start is None
        if resume:
            rows, residue = self._go_on(x, map)
        else:
            self._history.clear()
            self._online = OnlineState.empty()
            if start is None:
                self._narrow, self._first = None, None if first is None else FirstWords(first)
                rows = self._check_batch(x, None if first is None else first.shape[1])
                residue = self._start(rows, map)
            else:
                rows = self._check_batch(x, start.dimension)
                residue = self._adopt(start, rows, map)
            here = self._rows_of_round(residue, 0)
            self._codes = self._encode_round(self._narrow_or_fail(), here, 0, map)
            self._record(here, self._codes, map, progress)
        self._anneal(residue, map, progress)
        self._online = self._online.remember(rows, self._rng(0))
        self._codes = None
        self._encoder = None
        return self

    def partial_fit(self, batch: NDArray[np.generic], *, map: Map = map) -> Self:
        """Continue learning from one batch (n, d) of a stream, about 100,000 vectors: one round of cooling.

        Rows of earlier batches are remembered in a small sample. A batch that would raise their
        error is taken in smaller steps, or not at all; one of few rows is mixed: neither spoils anything.
        """
        fresh = self._narrow is None
        rows = self._check_batch(batch, None if self._narrow is None else self._narrow.words.shape[1])
        rng = self._rng(1 + self._online.batches)
        residue = self._start(rows, map) if fresh else self._residue(rows, map)
        codes = self._encode_narrow(self._narrow_or_fail(), residue, map)
        self._record(residue, codes, map)
        if fresh and codes.shape[1] and not self._scarce(residue):
            self._update(residue, codes, rng, map)
        accepted = fresh or self._guarded_update(residue, codes, rng, map)
        self._online = self._online.after_batch(rows, accepted, rng)
        self._encoder = None
        return self

    def encode(self, y: NDArray[np.generic]) -> NDArray[np.uint8]:
        """Codes (n, width) uint8 of vectors y (n, d)."""
        if self._encoder is None:
            self._encoder = Encoder(self.dictionaries, self.params.beam)
        return self._encoder.encode(y)

    def decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Reconstructions (n, d) float32 of codes (n, width)."""
        return self.dictionaries.decode(codes)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Everything that `from_state` needs to continue bit for bit, as named arrays."""
        first = None if self._first is None else self._first.words
        return pack_state(self.params, first, self._narrow, self._online, self._history, self._codes)

    @classmethod
    def from_state(cls, state: dict[str, NDArray[np.generic]]) -> "DictionaryAnnealing":
        """The trainer that `state` was taken from."""
        params, first, words, online, history, codes = unpack_state(state)
        trainer = cls.of(params)
        trainer._first = None if first is None else FirstWords(first)
        trainer._narrow = None if words is None else Narrow(words, trainer._narrow_layout())
        trainer._online = online
        trainer._history = history
        trainer._codes = codes
        return trainer

    def _rng(self, stage: int) -> np.random.Generator:
        return np.random.default_rng((self.params.seed, stage))

    def _narrow_layout(self) -> CodeLayout:
        return CodeLayout(self.params.words[int(self._layout.wide) :])

    def _narrow_or_fail(self) -> Narrow:
        if self._narrow is None:
            raise ValueError("no dictionaries yet: call fit or partial_fit first")
        return self._narrow

    def _check_batch(self, x: NDArray[np.generic], dimension: int | None) -> Rows:
        """Contiguous rows of x; ValueError for invalid ones."""
        rows = as_rows(np.asanyarray(x))
        if rows.shape[1] == 0:
            raise ValueError("vectors have no dimensions")
        check_rows(rows, rows.shape[1] if dimension is None else dimension)
        largest = max(self.params.words[int(self._first is not None) :], default=0)
        if self._narrow is None and len(rows) < largest:
            raise ValueError(f"{len(rows)} vectors cannot train {largest} words: add vectors or use fewer")
        return rows

    def _go_on(self, x: NDArray[np.generic], map_: Map) -> tuple[Rows, Rows]:
        """The rows and the residue of an interrupted fit."""
        if self._codes is None:
            raise ValueError("no fit was cut short: nothing to resume")
        rows = self._check_batch(x, self._narrow_or_fail().words.shape[1])
        residue = self._annealed_residue(rows, map_)
        found = len(self._rows_of_round(residue, max(0, len(self._history) - 2)))
        if found != len(self._codes):
            raise ValueError(f"{found} vectors to anneal: the fit to resume had {len(self._codes)}")
        return rows, residue

    def _start(self, rows: Rows, map_: Map) -> Rows:
        """Learn first dictionaries from scratch; returns the rows the narrow ones are annealed on."""
        rng = self._rng(0)
        if self._first is not None:
            check_first_words(self._first.words, self._layout)
        if self._layout.wide and self._first is None:
            self._first = FirstWords(learn_first_dictionary(rows, self.params.words[0], rng, map_))
        residue = self._annealed_residue(rows, map_)
        here, per_word = self._rows_of_round(residue, 0), start_rows(self.params, self._scarce(residue))
        self._narrow = residual_start(here, self._narrow_layout(), rng, map_, per_word)
        return residue

    def _adopt(self, start: Dictionaries, rows: Rows, map_: Map) -> Rows:
        if start.layout.words != self.params.words:
            raise ValueError(
                f"start has dictionaries of sizes {start.layout.words}, expected {self.params.words}"
            )
        locked = int(self._layout.wide)
        self._first = FirstWords(start.part(0).copy()) if locked else None
        self._narrow = Narrow(start.words[start.starts[locked] :].copy(), self._narrow_layout())
        return self._annealed_residue(rows, map_)

    def _residue(self, rows: Rows, map_: Map) -> Rows:
        """Residues of a wide first dictionary; the rows themselves if there is none."""
        return rows if self._first is None else self._first.residue(rows, map_)

    def _annealed_residue(self, rows: Rows, map_: Map) -> Rows:
        """The residue of the rows that the last rounds anneal."""
        step = thinning(self.params, len(rows), sum(self._narrow_layout().words), early=False)
        return self._residue(thinned(rows, step), map_)

    def _is_early(self, number: int) -> bool:
        return self._shakes and is_early(self.params, number)

    def _rows_of_round(self, rows: Rows, number: int) -> Rows:
        """Those of the rows of the last rounds that round `number` anneals."""
        words = sum(self._narrow_layout().words)
        return thinned(rows, thinning(self.params, len(rows), words, early=self._is_early(number)), number)

    def _encode_narrow(self, narrow: Narrow, residue: Rows, map_: Map, beam: int = 0) -> NDArray[np.uint8]:
        if narrow.layout.levels == 0:
            return np.empty((len(residue), 0), np.uint8)
        return encode_blocks(narrow, residue, beam or self.params.beam, map_)

    def _encode_round(self, narrow: Narrow, rows: Rows, number: int, map_: Map) -> NDArray[np.uint8]:
        beam = self.params.early_beam if self._is_early(number) else 0
        return self._encode_narrow(narrow, rows, map_, beam)

    def _anneal(self, residue: Rows, map_: Map, progress: Progress | None) -> None:
        """Rounds of cooling until one gains too little; dictionaries from scratch are heated at first.

        Rows too few for joint cooling are mixed, or leave existing dictionaries as they are.
        """
        if self._scarce(residue):
            if self._shakes:
                self._anneal_mixed(residue, map_, progress)
            return
        rounds = self.params.rounds if self._narrow_or_fail().layout.levels else 0
        degrees = [temperature(number, rounds) if self._is_early(number) else 0.0 for number in range(rounds)]
        for number in range(len(self._history) - 1, rounds):
            if number and degrees[number - 1] == 0 and self._settled():
                return
            codes, rng, here = self._codes, self._rng(number), self._rows_of_round(residue, number)
            if codes is None or (number and self.params.cooling == "joint"):
                hot = heat(self._narrow_or_fail(), degrees[number], rng)
                codes = self._encode_round(hot, here, number, map_)
            self._codes = self._update(here, codes, rng, map_)
            self._record(here, self._codes, map_, progress)

    def _anneal_mixed(self, residue: Rows, map_: Map, progress: Progress | None) -> None:
        """Rounds of cooling on mixtures of too few rows, whose E counts but for the last one."""
        layout = self._narrow_or_fail().layout
        if len(residue) < MIXED_ROWS_PER_WORD * max(layout.words):
            return
        space = leading_axes(residue, float(np.log2(layout.words).sum()))
        flat = space.project(residue)
        for number in range(len(self._history) - 1, self.params.rounds):
            encode = partial(self._encode_round, number=number, map_=map_)
            mixed = mixed_round(self._narrow_or_fail(), flat, space, encode, self._rng(number), map_)
            self._narrow, self._codes = sorted_by_variance(mixed.narrow, mixed.codes)
            error = mixed.error
            if number + 1 == self.params.rounds:
                self._codes = self._encode_narrow(self._narrow, residue, map_)
                error = distortion(self._narrow, residue, self._codes, map_)
            self._note(error, progress)

    def _scarce(self, rows: Rows) -> bool:
        """Whether these rows are too few to cool all words jointly."""
        least = JOINT_ROWS_PER_WORD * sum(self._narrow_layout().words)
        return self.params.cooling == "joint" and len(rows) < least

    def _record(
        self, residue: Rows, codes: NDArray[np.uint8], map_: Map, progress: Progress | None = None
    ) -> None:
        self._note(distortion(self._narrow_or_fail(), residue, codes, map_), progress)

    def _note(self, error: float, progress: Progress | None) -> None:
        self._history.append(error)
        if progress is not None:
            progress(len(self._history) - 1, self._history[-1])

    def _settled(self) -> bool:
        return self._history[-2] - self._history[-1] <= self.params.tolerance * self._history[-2]

    def _update(
        self, residue: Rows, codes: NDArray[np.uint8], rng: np.random.Generator, map_: Map
    ) -> NDArray[np.uint8]:
        """One round of cooling; returns the codes in the new order of dictionaries."""
        self._narrow, codes = self._cool(residue, codes, RIDGE, rng, map_)
        return self._sort(codes)

    def _cool(
        self, residue: Rows, codes: NDArray[np.uint8], weight: float, rng: np.random.Generator, map_: Map
    ) -> tuple[Narrow, NDArray[np.uint8]]:
        """The narrow dictionaries after a round of cooling, and the codes they were fitted to.

        weight : pull of each word towards its present value in joint cooling, in rows.
        """
        narrow = self._narrow_or_fail()
        if self.params.cooling == "joint":
            pull = np.full(len(narrow.words), weight)
            return joint_round(narrow, residue, codes, pull, rng, map_), codes
        return kmeans_round(narrow, residue, codes, rng, partial(self._encode_narrow, map_=map_))

    def _sort(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Put dictionaries, and these codes, into descending variance: beam and tree depend on it."""
        self._narrow, codes = sorted_by_variance(self._narrow_or_fail(), codes)
        return codes

    def _guarded_update(
        self, residue: Rows, codes: NDArray[np.uint8], rng: np.random.Generator, map_: Map
    ) -> bool:
        """One round on a batch, undone as far as it raises the error of the sample of earlier rows.

        A batch of few rows is mixed: words fitted to the rows themselves would describe their noise.
        """
        before = self._narrow_or_fail()
        if before.layout.levels == 0:
            return True
        known = self._residue(self._online.sample, map_)

        def error(narrow: Narrow) -> float:
            return distortion(narrow, known, self._encode_narrow(narrow, known, map_), map_)

        allowed = (1 + MAX_RISE) * error(before)
        age = max(0, self._online.batches - FAST_BATCHES) / FAST_BATCHES
        past = age * len(residue) / max(self.params.words[-1], 1)
        if self._scarce(residue):
            target = mixed_batch(before, residue, partial(self._encode_narrow, map_=map_), rng, map_)
        else:
            target, codes = self._cool(residue, codes, RIDGE + past, rng, map_)
        # k-means knows no pull of the past: its step is cut as much as the past weighs.
        most = 1.0 if self.params.cooling == "joint" else 1 / (1 + age)
        for step in STEPS:
            change = np.float32(step * most) * (target.words - before.words)
            self._narrow = before.with_words(before.words + change)
            self._sort(codes)
            if error(self._narrow_or_fail()) <= allowed:
                return step == STEPS[0]
        self._narrow = before
        return False
