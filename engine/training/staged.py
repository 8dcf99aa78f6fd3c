"""Annealing of long codes: stages of dictionaries, each learned on the residues of the stages before it.

A stage is encoded by a beam of its own and locked before the next begins, so training and encoding take time
in proportion to the length of a code. On sentence embeddings four stages of 16 dictionaries of 16 words have
.99 of the error of one beam over all 64.
"""

from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.clustering.distances import Map, as_rows
from aggtree.engine.coding.encoding import CHUNK_ROWS, Encoder
from aggtree.engine.coding.stages import stages
from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.params import AnnealingParams
from aggtree.engine.training.annealing import DictionaryAnnealing, Progress
from aggtree.engine.training.annealing_state import norm_ranges
from aggtree.engine.training.cooling import thinned, thinning

State = dict[str, NDArray[np.generic]]
STAGES = "stages"


class StagedAnnealing:
    """Learns the dictionaries of all stages; the interface of `DictionaryAnnealing`.

    The first stage learns a wide first dictionary too.
    """

    def __init__(self, params: AnnealingParams) -> None:
        self.params = params
        self._layout = CodeLayout(params.words)
        self._trainers = [
            DictionaryAnnealing.of(replace(params, words=words)) for words in _stage_words(params)
        ]
        self._encoder: Encoder | None = None

    @property
    def dictionaries(self) -> Dictionaries:
        """The dictionaries learned so far."""
        words = [trainer.dictionaries.words for trainer in self._trainers]
        return Dictionaries(np.concatenate(words), self._layout)

    @property
    def norm_ranges(self) -> NDArray[np.float32]:
        """As of `DictionaryAnnealing`, from the rows the first stage remembers."""
        return norm_ranges(self.dictionaries, self.encode(as_rows(self._trainers[0].state()["sample"])))

    @property
    def distortions(self) -> tuple[float, ...]:
        """E of all rounds of the first stage, then of the second, ..."""
        return tuple(error for trainer in self._trainers for error in trainer.distortions)

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
        """Learn stage after stage from vectors x (n, d); see `DictionaryAnnealing.fit`."""
        starts = [None] * len(self._trainers) if start is None else _stage_dictionaries(start, self.params)
        rows, rounds = np.asanyarray(x), 0
        for number, (trainer, known) in enumerate(zip(self._trainers, starts, strict=True)):
            if not (resume and _is_fitted(trainer)):

                def report(done: int, error: float, before: int = rounds) -> None:
                    if progress is not None:
                        progress(before + done, error)

                again = resume and len(trainer.distortions) > 0
                words = first if number == 0 else None
                trainer.fit(rows, start=known, first=words, resume=again, map=map, progress=report)
            rounds += len(trainer.distortions)
            if number + 1 < len(self._trainers):
                if number == 0:
                    # Only a wide first dictionary learns from more rows than the last rounds anneal.
                    rows = thinned(as_rows(rows), self._thinning(len(rows)))
                rows = _residue(trainer, rows, map)
        self._encoder = None
        return self

    def _thinning(self, rows: int) -> int:
        """Every how-many-th row is annealed by the last rounds of the first stage, which is the largest."""
        words = self._trainers[0].params.words[int(self._layout.wide) :]
        return thinning(self.params, rows, sum(words), early=False)

    def partial_fit(self, batch: NDArray[np.generic], *, map: Map = map) -> Self:
        """Continue learning from one batch (n, d), stage after stage."""
        rows = np.asanyarray(batch)
        for number, trainer in enumerate(self._trainers):
            trainer.partial_fit(rows, map=map)
            if number + 1 < len(self._trainers):
                rows = _residue(trainer, rows, map)
        self._encoder = None
        return self

    def encode(self, y: NDArray[np.generic]) -> NDArray[np.uint8]:
        """Codes (n, width) uint8 of vectors y (n, d)."""
        if self._encoder is None:
            self._encoder = Encoder(self.dictionaries, self.params.beam, self.params.stage)
        return self._encoder.encode(y)

    def decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Reconstructions (n, d) float32 of codes (n, width)."""
        return self.dictionaries.decode(codes)

    def state(self) -> State:
        """Everything that `from_state` needs to continue bit for bit, as named arrays."""
        state: State = {STAGES: np.asarray([len(self._trainers), self.params.stage], np.int64)}
        state["sizes"] = np.asarray(self.params.words, np.int64)
        state["distortions"] = np.asarray(self.distortions, np.float64)
        for number, trainer in enumerate(self._trainers):
            state |= {f"stage{number}_{name}": array for name, array in trainer.state().items()}
        return state

    @classmethod
    def from_state(cls, state: State) -> "StagedAnnealing":
        """The trainer that `state` was taken from."""
        trainers = []
        count, stage = (int(value) for value in state[STAGES])
        for number in range(count):
            prefix = f"stage{number}_"
            own = {
                name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)
            }
            trainers.append(DictionaryAnnealing.from_state(own))
        words = tuple(int(size) for size in state["sizes"])
        trainer = cls(replace(trainers[0].params, words=words, stage=stage))
        trainer._trainers = trainers
        return trainer


Trainer = DictionaryAnnealing | StagedAnnealing


def make_trainer(params: AnnealingParams) -> Trainer:
    """The trainer of dictionaries: of one stage, or of several."""
    return DictionaryAnnealing.of(params) if len(_stage_words(params)) == 1 else StagedAnnealing(params)


def trainer_from_state(state: State) -> Trainer:
    """The trainer that a checkpoint was taken from."""
    return StagedAnnealing.from_state(state) if STAGES in state else DictionaryAnnealing.from_state(state)


def _stage_words(params: AnnealingParams) -> list[tuple[int, ...]]:
    """Sizes of the dictionaries of each stage, a wide first one with those of the first stage."""
    bounds = stages(CodeLayout(params.words), params.stage) or [(0, 1)]
    return [params.words[start if number else 0 : stop] for number, (start, stop) in enumerate(bounds)]


def _stage_dictionaries(start: Dictionaries, params: AnnealingParams) -> list[Dictionaries]:
    """The dictionaries of each stage."""
    split, first = [], 0
    for words in _stage_words(params):
        last = first + sum(words)
        split.append(Dictionaries(start.words[first:last], CodeLayout(words)))
        first = last
    return split


def _is_fitted(trainer: DictionaryAnnealing) -> bool:
    """Whether a `fit` is finished: an unfinished one keeps the codes of its rows."""
    state = trainer.state()
    return "words" in state and "codes" not in state


def _residue(trainer: DictionaryAnnealing, rows: NDArray[np.generic], map_: Map) -> NDArray[np.float32]:
    """Residues of a stage for rows (n, d)."""
    residue = np.empty(rows.shape, np.float32)

    def subtract(start: int) -> None:
        here = slice(start, start + CHUNK_ROWS)
        residue[here] = numbers[here] - trainer.decode(trainer.encode(numbers[here]))

    numbers = as_rows(rows)
    trainer.encode(numbers[:1])  # makes the encoder that all blocks share
    for _ in map_(subtract, range(0, len(rows), CHUNK_ROWS)):
        pass
    return residue
