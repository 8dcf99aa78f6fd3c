"""The state of online annealing between batches, and the trainer's state as named arrays."""

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.clustering.distances_kernels import Rows
from aggtree.engine.dictionaries import Dictionaries
from aggtree.engine.params import AnnealingParams, Cooling
from aggtree.engine.training.cooling import Narrow

SAMPLE_ROWS = 8192
PATIENCE = 3
"""After so many odd batches in a row their rows are remembered too: the stream has changed for good."""

NORM_MARGIN = 0.05
RARE = 0.01
"""Share of the rows, at either end, whose norms may widen the range of the others by WIDER on that side."""
WIDER = 2.0
"""In ranges of the other rows. A fivefold range costs two of eight bits."""


@dataclass(frozen=True)
class OnlineState:
    """A uniform sample of the rows of trusted batches, and counts of batches and rows.

    sample : (r, d) uint8 or float32, r at most SAMPLE_ROWS.
    batches : batches seen. trusted : rows the sample stands for. odd : odd batches in a row.
    """

    sample: Rows
    batches: int
    trusted: int
    odd: int

    @classmethod
    def empty(cls) -> "OnlineState":
        return cls(np.empty((0, 0), np.uint8), 0, 0, 0)

    def remember(self, rows: Rows, rng: np.random.Generator) -> "OnlineState":
        """The sample after `rows` joined those it stands for, each with equal chance."""
        total = self.trusted + len(rows)
        size = min(SAMPLE_ROWS, total)
        fresh = min(len(rows), size, max(size - len(self.sample), round(size * len(rows) / total)))
        kept = rng.permutation(len(self.sample))[: size - fresh]
        chosen = np.sort(rng.permutation(len(rows))[:fresh])
        if len(kept) == 0:
            return replace(self, sample=rows[chosen], trusted=total)
        # Bytes and floats together become floats; bytes alone stay bytes.
        sample = np.concatenate((self.sample[np.sort(kept)], rows[chosen]))
        return replace(self, sample=cast(Rows, sample), trusted=total)

    def after_batch(self, rows: Rows, accepted: bool, rng: np.random.Generator) -> "OnlineState":
        """The state after a batch; rows of an odd batch are not remembered before PATIENCE is over."""
        odd = 0 if accepted else self.odd + 1
        state = self.remember(rows, rng) if accepted or odd >= PATIENCE else self
        return replace(state, batches=self.batches + 1, odd=odd)


def norm_ranges(dictionaries: Dictionaries, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(M + 1, 2) float32: for each level l the range of ‖x̂‖² − ‖Σ_{m≤l} c_m(i_m)‖² over codes, widened."""
    layout = dictionaries.layout
    wide = int(layout.wide)
    labels = codes[:, wide:].astype(np.int64)
    if wide:
        labels[:, 0] |= codes[:, 0].astype(np.int64) << 8
    prefix = np.zeros((len(codes), dictionaries.dimension), np.float32)
    norms = np.zeros((layout.levels + 1, len(codes)))
    for level in range(layout.levels):
        prefix += dictionaries.part(level)[labels[:, level]]
        norms[level + 1] = np.einsum("nd,nd->n", prefix, prefix)
    rest = norms[-1] - norms
    low, high = rest.min(axis=1), rest.max(axis=1)
    least, most = np.quantile(rest, (RARE, 1 - RARE), axis=1)
    spread = WIDER * np.where(most > least, most - least, np.inf)
    low, high = np.maximum(low, least - spread), np.minimum(high, most + spread)
    margin = NORM_MARGIN * (high - low)
    return np.stack((low - margin, high + margin), axis=1).astype(np.float32)


def pack_state(
    params: AnnealingParams,
    first: NDArray[np.float32] | None,
    narrow: Narrow | None,
    online: OnlineState,
    history: list[float],
    codes: NDArray[np.uint8] | None,
) -> dict[str, NDArray[np.generic]]:
    """The trainer as named arrays; `codes` are those of an unfinished fit."""
    state: dict[str, NDArray[np.generic]] = {
        "sizes": np.asarray(params.words, np.int64),
        "settings": np.asarray(
            [
                params.beam,
                params.seed,
                params.rounds,
                params.cooling == "kmeans",
                params.early_rows,
                params.late_rows,
                params.early_beam,
            ],
            np.int64,
        ),
        "tolerance": np.asarray([params.tolerance], np.float64),
        "counts": np.asarray([online.batches, online.trusted, online.odd], np.int64),
        "sample": online.sample,
        "distortions": np.asarray(history, np.float64),
    }
    if first is not None:
        state["first_words"] = first
    if narrow is not None:
        state["words"] = narrow.words
    if codes is not None:
        state["codes"] = codes
    return state


Unpacked = tuple[
    AnnealingParams,
    NDArray[np.float32] | None,
    NDArray[np.float32] | None,
    OnlineState,
    list[float],
    NDArray[np.uint8] | None,
]


def unpack_state(state: dict[str, NDArray[np.generic]]) -> Unpacked:
    """The inverse of `pack_state`, narrow dictionaries as plain words; ValueError when a part is missing."""
    missing = {"sizes", "settings", "tolerance", "counts", "sample", "distortions"} - state.keys()
    if missing:
        raise ValueError(f"not a state of dictionary annealing: {', '.join(sorted(missing))} missing")
    # States of older versions end before the last three.
    settings = [*(int(value) for value in state["settings"]), 0, 0, 0][:7]
    beam, seed, rounds, by_kmeans, early_rows, late_rows, early_beam = settings
    cooling: Cooling = "kmeans" if by_kmeans else "joint"
    params = AnnealingParams(
        words=tuple(int(size) for size in state["sizes"]),
        beam=beam,
        seed=seed,
        rounds=rounds,
        tolerance=float(state["tolerance"][0]),
        cooling=cooling,
        early_rows=early_rows,
        late_rows=late_rows,
        early_beam=early_beam,
    )
    batches, trusted, odd = (int(value) for value in state["counts"])
    online = OnlineState(cast(Rows, np.array(state["sample"])), batches, trusted, odd)
    first = np.array(state["first_words"], np.float32) if "first_words" in state else None
    words = np.array(state["words"], np.float32) if "words" in state else None
    codes = np.array(state["codes"], np.uint8) if "codes" in state else None
    return params, first, words, online, [float(value) for value in state["distortions"]], codes
