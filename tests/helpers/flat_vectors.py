"""Vectors as a mapped file holds them."""

import numpy as np

from aggtree.engine.exact.neighbours_kernels import FlatVectors


def flat(rows: np.ndarray, gap: int = 3) -> FlatVectors:
    """Rows with a header and gaps between them, as a file may have."""
    count, dimension = rows.shape
    values = np.full(5 + count * (dimension + gap), 99, rows.dtype)
    values[5:].reshape(count, -1)[:, :dimension] = rows
    if rows.dtype == np.float16:
        values = values.view(np.uint16)
    return FlatVectors(values, 5, dimension + gap, count, dimension)
