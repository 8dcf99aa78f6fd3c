"""The word of a wide first dictionary: the nearest one, or nearly so, found without comparing all."""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.distances import NearestWord
from aggtree.engine.distances_kernels import Rows
from aggtree.engine.kmeans import choose_rows, kmeans

ITERATIONS = 10


class FirstWord:
    """Chooses the first word of each row."""

    def __init__(self, words: NDArray[np.float32]) -> None:
        self._nearest = NearestWord(words)

    def assign(self, rows: Rows) -> NDArray[np.int64]:
        """Labels (n,) int64 of contiguous rows (n, d) uint8 or float32."""
        return self._nearest.assign(rows)[0]


def learn_first_dictionary(rows: Rows, size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Words (size, d) of a wide first dictionary: k-means over rows (n, d)."""
    data = rows.astype(np.float32)
    return kmeans(data, choose_rows(data, size, rng), ITERATIONS, rng)
