"""Kernels of joint least squares: the normal equations of all dictionaries, and errors of codes.

`codes` (n, M) uint8 here are the labels of the dictionaries that take part, and word i of
dictionary m is row first[m] + i of `words` (S, d).
"""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.clustering.distances_kernels import Rows
from aggtree.engine.simd.compiled import kernel


@kernel
def count_pairs(codes: NDArray[np.uint8], first: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    """counts (S, S) += BᵀB of the one-hot codes B, on and below the diagonal."""
    for r in range(codes.shape[0]):
        for m in range(codes.shape[1]):
            row = counts[first[m] + codes[r, m]]
            for j in range(m + 1):
                row[first[j] + codes[r, j]] += 1


@kernel
def add_by_word(
    rows: Rows,
    codes: NDArray[np.uint8],
    first: NDArray[np.int64],
    sums: NDArray[np.float64],
    start: int,
    stop: int,
) -> None:
    """Columns start..stop of sums (S, d) += BᵀX: every row is added to each of its words."""
    for r in range(rows.shape[0]):
        for m in range(codes.shape[1]):
            total = sums[first[m] + codes[r, m]]
            for j in range(start, stop):
                total[j] += rows[r, j]


@kernel
def squared_errors(rows: Rows, decoded: NDArray[np.float32], out: NDArray[np.float64]) -> None:
    """out[r] = ‖rows[r] − decoded[r]‖² in float64, summed in two parts."""
    whole = rows.shape[1] // 2 * 2
    for r in range(rows.shape[0]):
        even = odd = 0.0
        for j in range(0, whole, 2):
            difference = np.float64(rows[r, j]) - np.float64(decoded[r, j])
            even += difference * difference
            difference = np.float64(rows[r, j + 1]) - np.float64(decoded[r, j + 1])
            odd += difference * difference
        for j in range(whole, rows.shape[1]):
            difference = np.float64(rows[r, j]) - np.float64(decoded[r, j])
            even += difference * difference
        out[r] = even + odd
