"""Kernels of decoding: sums of the words of a code, and their norms."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.simd.compiled import inlined, kernel


@kernel
def decode_rows(
    codes: NDArray[np.uint8], first: NDArray[np.int64], words: NDArray[np.float32], out: NDArray[np.float32]
) -> None:
    """out[r] += Σ_m word codes[r, m] of dictionary m, in the order of the dictionaries."""
    for r in range(codes.shape[0]):
        for m in range(codes.shape[1]):
            word = words[first[m] + codes[r, m]]
            for j in range(words.shape[1]):
                out[r, j] += word[j]


@inlined
def _squared_norm(vector: NDArray[np.float32]) -> Any:
    """‖vector‖² in four sums."""
    a = b = c = d = np.float32(0)
    whole = len(vector) // 4 * 4
    for j in range(0, whole, 4):
        a += vector[j] * vector[j]
        b += vector[j + 1] * vector[j + 1]
        c += vector[j + 2] * vector[j + 2]
        d += vector[j + 3] * vector[j + 3]
    for j in range(whole, len(vector)):
        a += vector[j] * vector[j]
    return (a + b) + (c + d)


@kernel
def norm_growth(
    rows: NDArray[np.float32],
    codes: NDArray[np.uint8],
    first: NDArray[np.int64],
    words: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """out[r] = ‖rows[r] + Σ_m word codes[r, m] of dictionary m‖² - ‖rows[r]‖²; the sums are left in rows."""
    for r in range(codes.shape[0]):
        row = rows[r]
        before = _squared_norm(row)
        for m in range(codes.shape[1]):
            word = words[first[m] + codes[r, m]]
            for j in range(len(row)):
                row[j] += word[j]
        out[r] = _squared_norm(row) - before
