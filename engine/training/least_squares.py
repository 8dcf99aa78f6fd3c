"""Joint least squares: the best words of all dictionaries at once, for given codes.

Minimizing Σ ‖x − Σ_m c_m(i_m)‖² over all words has the normal equations (BᵀB) C = BᵀX, B the
one-hot codes. They are solved by block Gauss-Seidel: one dictionary after the other is set to its
exact minimum with the others fixed, which is the paper's "cool" for fixed codes, in sweeps until all
agree. BᵀB is counts, so the words of one dictionary do not couple: no factorization is needed, and
unused words do not change.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.clustering.distances import Map, panel_layout
from aggtree.engine.clustering.distances_kernels import Rows, multiply_rows
from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.simd.instructions.products import TILE_ROWS
from aggtree.engine.simd.vector_code import LANES
from aggtree.engine.training.least_squares_kernels import add_by_word, count_pairs

COLUMNS = 64
"""Dimensions that one task works on: each is a problem of its own. A multiple of LANES."""


@dataclass(frozen=True)
class NormalEquations:
    """BᵀB (S, S) int64, lower triangle, and BᵀX (S, d) float64 of the rows seen so far."""

    layout: CodeLayout
    counts: NDArray[np.int64]
    sums: NDArray[np.float64]

    @classmethod
    def empty(cls, layout: CodeLayout, dimension: int) -> "NormalEquations":
        size = sum(layout.words)
        return cls(layout, np.zeros((size, size), np.int64), np.zeros((size, dimension)))

    @property
    def first(self) -> NDArray[np.int64]:
        """(M + 1,) first word of each dictionary."""
        return np.concatenate(([0], np.cumsum(self.layout.words))).astype(np.int64)

    def add(self, rows: Rows, codes: NDArray[np.uint8], map_: Map = map) -> None:
        """Add rows (n, d) and their codes (n, M); `map_` runs over blocks of dimensions."""
        dimension = self.sums.shape[1]

        def add_columns(start: int) -> None:
            if start < 0:
                count_pairs(codes, self.first, self.counts)
            else:
                add_by_word(rows, codes, self.first, self.sums, start, min(start + COLUMNS, dimension))

        for _ in map_(add_columns, [-1, *range(0, dimension, COLUMNS)]):
            pass

    def uses(self) -> NDArray[np.int64]:
        """Number of rows that use each word, (S,)."""
        return self.counts.diagonal()


def solve(
    equations: NormalEquations,
    words: NDArray[np.float32],
    weights: NDArray[np.float64],
    sweeps: int,
    map_: Map = map,
) -> NDArray[np.float32]:
    """Words (S, d) after `sweeps` of block Gauss-Seidel, starting from `words`.

    weights : (S,) pull of each word towards its present value, in rows. A positive weight keeps a
    rarely used word from chasing its few rows. `map_` runs over blocks of dimensions.
    """
    couplings, result = _couplings(equations), np.empty_like(words)

    def solve_columns(start: int) -> None:
        here = slice(start, start + COLUMNS)
        part = NormalEquations(equations.layout, equations.counts, equations.sums[:, here])
        result[:, here] = _solved(part, couplings, np.ascontiguousarray(words[:, here]), weights, sweeps)

    for _ in map_(solve_columns, range(0, words.shape[1], COLUMNS)):
        pass
    return result


def _solved(
    equations: NormalEquations,
    others: list[NDArray[np.float32]],
    words: NDArray[np.float32],
    weights: NDArray[np.float64],
    sweeps: int,
) -> NDArray[np.float32]:
    """The words after some sweeps, in some dimensions."""
    dimension = words.shape[1]
    padded = -(-dimension // LANES) * LANES
    first = equations.first
    # Products want the words transposed: "word" k of these panels is dimension k of all words.
    panels = panel_layout(np.ascontiguousarray(words.T), padded)
    uses = equations.uses() + weights
    target = equations.sums + weights[:, None] * words
    start = np.zeros(padded, np.float32)
    result = words.copy()
    for _ in range(sweeps):
        for m, coupling in enumerate(others):
            own = slice(first[m], first[m + 1])
            explained = np.empty((len(coupling), padded), np.float32)
            multiply_rows(coupling, panels, start, explained)
            size = first[m + 1] - first[m]
            free = uses[own] > 0
            best = (target[own] - explained[:size, :dimension])[free] / uses[own][free, None]
            result[own][free] = best
            full = np.zeros((size, padded), np.float32)
            full[:, :dimension] = result[own]
            panels[:, own] = full.reshape(size, -1, LANES).transpose(1, 0, 2)
    return result


def _couplings(equations: NormalEquations) -> list[NDArray[np.float32]]:
    """BᵀB between each dictionary and all words of the others, (K_m padded to tiles, S) float32."""
    first = equations.first
    lower = equations.counts
    couplings = []
    for m, size in enumerate(equations.layout.words):
        own = slice(first[m], first[m + 1])
        block = np.zeros((-(-size // TILE_ROWS) * TILE_ROWS, len(lower)), np.float32)
        block[:size, : first[m]] = lower[own, : first[m]]
        block[:size, first[m + 1] :] = lower[first[m + 1] :, own].T
        couplings.append(block)
    return couplings
