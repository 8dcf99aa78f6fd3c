"""Kernel that derives new codes from real ones; `grown_codes` explains how and why."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.simd.compiled import kernel

STEP = np.uint64(0x9E3779B97F4A7C15)


class RealCodes(NamedTuple):
    """Codes of real vectors in code order.

    codes : (n, width) uint8
    common : (n + 1,) int8, labels each row shares with the row before; 0 at both ends
    label_start : (K_1 + 1,) int64, first row of each first label
    wide : bytes of a first label less one, levels : labels of a code
    """

    codes: NDArray[np.uint8]
    common: NDArray[np.int8]
    label_start: NDArray[np.int64]
    wide: int
    levels: int


@kernel
def _mixed(state: Any) -> Any:
    """The next number of a counter-based generator (splitmix64)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@kernel
def _below(number: Any, count: Any) -> Any:
    """A number below `count` < 2³² from the high half of a random one."""
    return np.int64(((number >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))


@kernel
def _share(codes: Any, row: Any, other: Any, size: Any) -> Any:
    """Whether two rows have the same first `size` bytes."""
    j = 0
    while j < size and codes[row, j] == codes[other, j]:
        j += 1
    return j == size


@kernel
def _furthest(codes: Any, row: Any, end: Any, direction: Any, size: Any) -> Any:
    """The last row, going from `row` towards `end` (not reached), with the same first `size` bytes."""
    inside, step = row, 1
    while (end - inside) * direction > step and _share(codes, row, inside + step * direction, size):
        inside += step * direction
        step *= 2
    outside = end if (end - inside) * direction <= step else inside + step * direction
    while (outside - inside) * direction > 1:
        middle = (outside + inside) // 2
        if _share(codes, row, middle, size):
            inside = middle
        else:
            outside = middle
    return inside


@kernel
def _donor(real: RealCodes, row: Any, level: Any, prior: Any, state: Any) -> tuple[Any, Any]:
    """A random row among those that share `level` labels with `row`; one label fewer where these are few."""
    codes, wide = real.codes, real.wide
    while level > 0:
        label = np.int64(codes[row, 0])
        if wide:
            label = (label << 8) | np.int64(codes[row, 1])
        start, stop = real.label_start[label], real.label_start[label + 1]
        if level > 1:
            start = _furthest(codes, row, start - 1, -1, level + wide)
            stop = _furthest(codes, row, stop, 1, level + wide) + 1
        state = _mixed(state + STEP)
        place = _below(state, stop - start + prior)
        if place < stop - start:
            return start + place, state
        level -= 1
    state = _mixed(state + STEP)
    return _below(state, len(codes)), state


@kernel
def grow_codes(real: RealCodes, first: int, stride: int, prior: int, out: NDArray[np.uint8]) -> None:
    """Derive the codes of rows first..first + len(out) from real ones.

    The real rows are passed in code order, which caches like, and what is derived goes `stride` rows
    on, cyclically, so that the rows of `out` are in no order. stride and len(out) share no factor.
    """
    codes, common, wide = real.codes, real.common, real.wide
    count, width = out.shape
    place = 0
    for number in range(count):
        state = _mixed(np.uint64(first + number) * STEP)
        row = (number * len(codes) + _below(state, len(codes))) // count
        kept = max(1, common[row], common[row + 1])
        place = (place + stride) % count
        j = kept + wide
        for i in range(min(j, width)):
            out[place, i] = codes[row, i]
        level, single = kept - 1, 2
        while j < width:
            donor, state = _donor(real, row, level, prior, state)
            last = j + 1 if single > 0 else width
            while j < last:
                out[place, j] = codes[donor, j]
                j += 1
            level = max(min(level, 1), level - 1)
            single -= 1
