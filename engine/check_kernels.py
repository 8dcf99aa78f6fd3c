"""Kernels of the checks that read a whole index."""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.compiled import kernel


@kernel
def mark_ids(ids: NDArray[np.unsignedinteger], limit: int, seen: NDArray[np.uint8]) -> int:
    """Mark ids (n,) in the bits `seen`; return the place of the first too large or seen before, or -1.

    seen : (ceil(limit / 8),) uint8, changed up to that place
    """
    for place in range(len(ids)):
        number = np.uint64(ids[place])
        if number >= np.uint64(limit):
            return place
        bit = np.uint8(1) << np.uint8(number & np.uint64(7))
        byte = number >> np.uint64(3)
        if seen[byte] & bit:
            return place
        seen[byte] |= bit
    return -1
