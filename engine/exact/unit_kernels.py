"""Kernel that scales rows to length 1, the same bits whatever block a row is in."""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.simd.compiled import kernel


@kernel
def scale_to_unit(rows: NDArray[np.generic], out: NDArray[np.float32]) -> None:
    """Set out[i] to rows[i] / ‖rows[i]‖; a row of zeros has no direction and becomes NaN.

    rows : (n, d) of any number type, out : (n, d) float32
    """
    for i in range(len(rows)):
        square = np.float64(0)
        for j in range(rows.shape[1]):
            square += np.float64(rows[i, j]) * np.float64(rows[i, j])
        factor = np.float64(1) / np.sqrt(square) if square > 0 else np.float64(np.nan)
        for j in range(rows.shape[1]):
            out[i, j] = np.float32(np.float64(rows[i, j]) * factor)
