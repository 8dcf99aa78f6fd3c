"""Kernel that joins the answers of several trees."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.simd.compiled import kernel


@kernel
def merge_answers(
    ids: NDArray[np.int64],
    distances: NDArray[np.floating[Any]],
    heads: NDArray[np.int64],
    out_ids: NDArray[np.int64],
    out_distances: NDArray[np.floating[Any]],
) -> None:
    """The nearest of several lists of each query, by (distance, id); -1 and inf where there are fewer.

    ids, distances : (segments, q, k), each list nearest first, equal ones by id, then -1
    heads : (segments,) scratch; out_ids, out_distances : (q, wanted)
    """
    for i in range(ids.shape[1]):
        heads[:] = 0
        for j in range(out_ids.shape[1]):
            best, near, number = -1, np.inf, np.int64(-1)
            for segment in range(ids.shape[0]):
                head = heads[segment]
                if head == ids.shape[2] or ids[segment, i, head] < 0:
                    continue
                here, who = distances[segment, i, head], ids[segment, i, head]
                if best < 0 or here < near or (here == near and who < number):
                    best, near, number = segment, here, who
            out_ids[i, j], out_distances[i, j] = number, near
            if best >= 0:
                heads[best] += 1
