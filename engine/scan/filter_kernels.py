"""Kernels of filters: a bit for each row states whether it may be an answer."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.scan.records import RowBits
from aggtree.engine.simd.compiled import kernel


@kernel
def is_allowed(within: RowBits, number: Any) -> Any:
    """Whether the bit of a row is set; rows beyond the bits are not allowed."""
    place = np.uint64(number) + within.first
    byte = np.int64(place >> np.uint64(3))
    return 0 <= byte < len(within.bits) and ((within.bits[byte] >> np.uint8(place & np.uint64(7))) & 1) != 0


@kernel
def allowed_leaves(
    ids: NDArray[np.unsignedinteger], within: RowBits, first: int, out: NDArray[np.int64]
) -> Any:
    """List the places first, first + 1, ... of the ids that are allowed, as far as `out` reaches.

    Returns the place of the first id that was not looked at, and how many are listed.
    """
    found, place = 0, first
    while place < len(ids) and found < len(out):
        out[found] = place
        found += is_allowed(within, ids[place])
        place += 1
    return place, found
