"""What the kernels of the sieve are given: see `sieve_kernels`."""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.scan.sieve_kernels import LABELS, SIEVE_PIECE, Sieve
from aggtree.engine.simd.sieve_instructions import PLANES, SIEVE_BYTES, SIEVED, second_load
from aggtree.engine.simd.vector_code import LANES


def sieve_index(record_sizes: NDArray[np.int64]) -> NDArray[np.uint8]:
    """How `sieve_64` finds the bytes of 8 records of each size, (sizes, 64) uint8; zeros for longer ones."""
    index = np.zeros((len(record_sizes), SIEVED), np.uint8)
    for row, size in zip(index, record_sizes.tolist(), strict=True):
        if size <= SIEVE_BYTES:
            places = (np.arange(PLANES)[:, None] + size * np.arange(PLANES)).ravel()
            row[:] = np.where(places < SIEVED, places, SIEVED + places - second_load(size))
    return index


def empty_sieve(record_size: int) -> Sieve:
    """Tables for records of up to so many bytes."""
    planes = -(-record_size // PLANES) * PLANES
    return Sieve(
        tables=aligned((planes, LABELS)),
        lows=np.zeros(planes, np.float32),
        fit=np.array([0, np.inf, 0, np.inf], np.float32),
        minima=np.empty(LANES, np.float32),
        masks=np.empty(SIEVE_PIECE // SIEVED, np.uint64),
    )


def aligned(shape: tuple[int, int]) -> NDArray[np.uint8]:
    """Zeros that begin with a line of the cache, so that no load of 64 bytes reads two."""
    rows, columns = shape
    memory = np.zeros(rows * columns + SIEVED, np.uint8)
    start = -memory.ctypes.data % SIEVED
    return memory[start : start + rows * columns].reshape(shape)
