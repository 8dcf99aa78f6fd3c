"""Small random dictionaries, codes and queries of integers, on which float32 arithmetic is exact."""

import numpy as np

from aggtree.engine.dictionaries import CodeLayout, Dictionaries

# Shapes that stress the tree: equal, deep, flat, narrow and wide dictionaries.
LAYOUTS = [(3,) * 4, (5,), (2,) * 16, (300, 4, 3), (7, 2, 5), (256,) * 3, (1, 1)]
DIMENSION = 11


def random_dictionaries(words: tuple[int, ...], seed: int = 0) -> Dictionaries:
    random = np.random.default_rng(seed)
    values = random.integers(-3, 4, (sum(words), DIMENSION))
    return Dictionaries(values.astype(np.float32), CodeLayout(words))


def random_codes(words: tuple[int, ...], rows: int, alphabet: int, seed: int = 0) -> np.ndarray:
    """Codes that use at most `alphabet` labels of each dictionary, so that few prefixes hold many rows."""
    random = np.random.default_rng(seed)
    columns = [random.integers(0, size, alphabet)[random.integers(0, alphabet, rows)] for size in words]
    return CodeLayout(words).pack(np.stack(columns, axis=1))


def whole_ranges(levels: int, norm_bytes: int = 1) -> np.ndarray:
    """Norm ranges whose step is an integer for norms of one byte, or of two."""
    low, high = (-1000, 64535) if norm_bytes == 2 else (-100, 410)
    return np.tile(np.array([[low, high]], np.float32), (levels + 1, 1))


def random_queries(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-6, 7, (count, DIMENSION)).astype(np.float32)
