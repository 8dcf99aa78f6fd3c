"""Kernels of filters: a bit for each row says whether it may be an answer."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.compiled import kernel


@kernel
def is_allowed(bits: NDArray[np.uint8], number: Any) -> Any:
    """Whether the bit of a row is set; rows beyond the bits are not allowed."""
    byte = np.int64(number >> np.uint64(3))
    return 0 <= byte < len(bits) and ((bits[byte] >> np.uint8(number & np.uint64(7))) & 1) != 0


@kernel
def allowed_leaves(
    ids: NDArray[np.unsignedinteger], bits: NDArray[np.uint8], first: int, out: NDArray[np.int64]
) -> Any:
    """List the places first, first + 1, ... of the ids that are allowed, as far as `out` reaches.

    Returns the place of the first id that was not looked at, and how many are listed.
    """
    found, place = 0, first
    while place < len(ids) and found < len(out):
        out[found] = place
        found += is_allowed(bits, ids[place])
        place += 1
    return place, found
