"""Kernel of k-means: sums of the rows of each cluster."""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.clustering.distances_kernels import Rows
from aggtree.engine.simd.compiled import kernel


@kernel
def add_rows(
    rows: Rows, labels: NDArray[np.int64], sums: NDArray[np.float64], counts: NDArray[np.int64]
) -> None:
    """sums[labels[r]] += rows[r] and counts[labels[r]] += 1, in the order of the rows."""
    for r in range(rows.shape[0]):
        label = labels[r]
        counts[label] += 1
        for j in range(rows.shape[1]):
            sums[label, j] += rows[r, j]
