"""Kernels: products of rows and words, and the nearest word of each row."""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.simd.compiled import kernel
from aggtree.engine.simd.instructions.products import TILE_ROWS, multiply_tile
from aggtree.engine.simd.instructions.vectors import row_minima
from aggtree.engine.simd.vector_code import LANES

Rows = NDArray[np.uint8] | NDArray[np.float32]


@kernel
def multiply_rows(
    rows: NDArray[np.float32],
    panels: NDArray[np.float32],
    start: NDArray[np.float32],
    out: NDArray[np.generic],
) -> None:
    """out[r, k] = start[k] + rows[r] · word k, for words in panels (S / LANES, d, LANES).

    rows : (n, d) float32, n a multiple of TILE_ROWS. out : (n, S) float32, or int32 (truncated).
    """
    for panel in range(panels.shape[0]):
        for row in range(0, rows.shape[0], TILE_ROWS):
            multiply_tile(rows, row, panels[panel], start, out, panel * LANES)


@kernel
def copy_rows(rows: Rows, first: int, out: NDArray[np.float32]) -> int:
    """Copy rows[first:] as far as `out` reaches, as float32; clear the rest of `out`; return the count."""
    count: int = min(out.shape[0], rows.shape[0] - first)
    for r in range(count):
        for j in range(out.shape[1]):
            out[r, j] = rows[first + r, j]
    for r in range(count, out.shape[0]):
        out[r] = 0
    return count


@kernel
def squared_lengths(rows: Rows, out: NDArray[np.float64]) -> None:
    """out[r] = ‖rows[r]‖² in float64, summed in four parts; not finite when the row is not."""
    whole = rows.shape[1] // 4 * 4
    for r in range(rows.shape[0]):
        a = b = c = d = 0.0
        for j in range(0, whole, 4):
            a += np.float64(rows[r, j]) * np.float64(rows[r, j])
            b += np.float64(rows[r, j + 1]) * np.float64(rows[r, j + 1])
            c += np.float64(rows[r, j + 2]) * np.float64(rows[r, j + 2])
            d += np.float64(rows[r, j + 3]) * np.float64(rows[r, j + 3])
        for j in range(whole, rows.shape[1]):
            a += np.float64(rows[r, j]) * np.float64(rows[r, j])
        out[r] = (a + b) + (c + d)


@kernel
def merge_nearest(
    scores: NDArray[np.float32],
    count: int,
    first: int,
    words: int,
    minima: NDArray[np.float32],
    best: NDArray[np.float32],
    labels: NDArray[np.int64],
) -> None:
    """Lower best[r] to the least of scores[r, :words], whose first word is number `first`.

    Where it falls, labels[r] becomes that word, the lowest of equals. minima : (LANES,) scratch;
    the columns behind `words` up to the next multiple of LANES must not be smaller.
    """
    padded = (words + LANES - 1) // LANES * LANES
    for r in range(count):
        row_minima(scores, r, padded, minima)
        least = minima[0]
        for i in range(1, LANES):
            least = min(least, minima[i])
        if least < best[r]:
            best[r] = least
            k = 0
            while scores[r, k] != least:
                k += 1
            labels[r] = first + k
