"""Kernel of the information measures: counts of pairs of labels."""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.simd.compiled import kernel


@kernel
def count_labels_together(
    one: NDArray[np.uint16], other: NDArray[np.uint16], counts: NDArray[np.int64]
) -> None:
    """counts[one[r], other[r]] += 1 for every row r."""
    for r in range(one.shape[0]):
        counts[one[r], other[r]] += 1
