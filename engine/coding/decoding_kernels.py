"""Kernel of decoding: sums of the words of a code."""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.simd.compiled import kernel


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
