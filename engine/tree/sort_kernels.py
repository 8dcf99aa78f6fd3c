"""Kernel that sorts a few numbers where they are: equal codes and equal distances are ordered by id."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.simd.compiled import kernel


@kernel
def _name(number: Any, names: NDArray[np.unsignedinteger]) -> Any:
    return np.uint64(number) if len(names) == 0 else np.uint64(names[np.int64(number)])


@kernel
def _sift_down(
    numbers: NDArray[np.unsignedinteger], root: int, stop: int, names: NDArray[np.unsignedinteger]
) -> None:
    """Move numbers[root] down the heap numbers[:stop] until no child is above it."""
    number = numbers[root]
    name = _name(number, names)
    child = 2 * root + 1
    while child < stop:
        if child + 1 < stop and _name(numbers[child + 1], names) > _name(numbers[child], names):
            child += 1
        if _name(numbers[child], names) <= name:
            break
        numbers[root] = numbers[child]
        root, child = child, 2 * child + 1
    numbers[root] = number


@kernel
def sort_numbers(numbers: NDArray[np.unsignedinteger], names: NDArray[np.unsignedinteger]) -> None:
    """Sort numbers by names[number], or by themselves if there are no names; a heap, so in place."""
    for root in range(len(numbers) // 2 - 1, -1, -1):
        _sift_down(numbers, root, len(numbers), names)
    for stop in range(len(numbers) - 1, 0, -1):
        numbers[0], numbers[stop] = numbers[stop], numbers[0]
        _sift_down(numbers, 0, stop, names)
