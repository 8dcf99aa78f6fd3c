"""Kernels of short lists of the best: of nodes, by distance to a query, and of answers.

A list is filled beyond what it must keep and cut only when full. Distances are kept as *ranks*, the
bits of a float32 that is not negative, which order as integers do: counting the ranks within a bound
is a vector loop, so the bound of a cut is found by bisection faster than by moving any element.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.scan.records import Best
from aggtree.engine.simd.compiled import kernel
from aggtree.engine.tree.sort_kernels import sort_numbers

# The rank of infinity: above that of every number.
NO_BOUND = np.int32(0x7F800000)
# Entries of one bin beyond which sorting expects many equal ranks.
CROWDED = 64
# Entries whose mean distance limits how far the others may be.
NEAREST = 10


@kernel
def rank_of(distance: Any) -> Any:
    """The rank of a distance; below zero, by rounding, counts as zero."""
    return np.float32(distance if distance > 0 else 0).view(np.int32)


@kernel
def distance_of(rank: Any) -> Any:
    return np.int32(rank).view(np.float32)


@kernel
def _count_within(ranks: NDArray[np.int32], count: int, bound: Any) -> Any:
    found = np.int32(0)
    for i in range(count):
        found += np.int32(ranks[i] <= bound)
    return np.int64(found)


@kernel
def rank_bound(ranks: NDArray[np.int32], count: int, keep: int, spare: int) -> tuple[Any, Any]:
    """A rank that keep..keep + spare of the first `count` ranks do not exceed, and how many do not.

    More than that only if they are equal: then the bound is the keep-th rank itself.
    """
    low, high = ranks[0], ranks[0]
    for i in range(count):
        low, high = min(low, ranks[i]), max(high, ranks[i])
    # Fewer than `keep` are within `below`; at least `keep` are within `bound`.
    below, bound, within = np.int64(low) - 1, np.int64(high), count
    middle = below + (bound - below) * keep // count
    while bound - below > 1 and within > keep + spare:
        middle = min(max(middle, below + 1), bound - 1)
        found = _count_within(ranks, count, np.int32(middle))
        if found >= keep:
            bound, within = middle, found
        else:
            below = middle
        middle = (below + bound) // 2
    return np.int32(bound), within


@kernel
def _keep_low_numbers(best: Best, count: int, bound: Any, names: NDArray[np.unsignedinteger]) -> None:
    """Of `count` entries within a bound, move those below it first, then those at it in order."""
    less = 0
    for i in range(count):
        if best.ranks[i] < bound:
            best.ranks[i], best.ranks[less] = best.ranks[less], best.ranks[i]
            best.numbers[i], best.numbers[less] = best.numbers[less], best.numbers[i]
            less += 1
    sort_numbers(best.numbers[less:count], names)


@kernel
def cut_best(
    best: Best, count: int, keep: int, spare: int, names: NDArray[np.unsignedinteger]
) -> tuple[Any, Any]:
    """Cut a list to its `keep` best and at most `spare` more; return how many are left, and their bound.

    Equal ranks are ordered by names[number], or by number if there are no names. Names are only read then:
    the ids of leaves are far apart in memory, and almost all leaves are cut without a look at theirs.
    """
    if count <= keep:
        return count, NO_BOUND
    bound, within = rank_bound(best.ranks, count, keep, spare)
    ranks, numbers = best.ranks, best.numbers
    found = 0
    for i in range(count):
        rank = ranks[i]
        ranks[found], numbers[found] = rank, numbers[i]
        found += rank <= bound
    if within > keep + spare:
        _keep_low_numbers(best, within, bound, names)
        within = keep
    return within, bound


@kernel
def add_best(
    best: Best,
    count: int,
    bound: Any,
    rank: Any,
    number: Any,
    keep: int,
    names: NDArray[np.unsignedinteger],
) -> tuple[Any, Any]:
    """Add an entry within the bound; a list that is full is cut, which lowers the bound."""
    if rank <= bound:
        best.ranks[count], best.numbers[count] = rank, number
        count += 1
        if count == len(best.ranks):
            count, bound = cut_best(best, count, keep, keep // 4, names)
    return count, bound


@kernel
def pruning_bound(ranks: NDArray[np.int32], count: int, pruning_ratio: Any, minima: NDArray[np.int32]) -> Any:
    """A rank that none of the first `count` exceeds that `cut_beyond` would keep, and few others do not.

    minima : (m,) int32, scratch: the least of every m-th rank. The tenth of them is hardly more than the
    tenth rank, and finding it is one pass over the ranks instead of many.
    """
    columns = len(minima)
    if count < columns or pruning_ratio == np.inf:
        return NO_BOUND
    whole = count // columns * columns
    for j in range(columns):
        minima[j] = ranks[j]
    for start in range(columns, whole, columns):
        here = ranks[start : start + columns]
        for j in range(columns):
            minima[j] = min(minima[j], here[j])
    for i in range(whole, count):
        minima[i - whole] = min(minima[i - whole], ranks[i])
    return rank_of(pruning_ratio * distance_of(rank_bound(minima, columns, NEAREST, 0)[0]))


@kernel
def cut_beyond(best: Best, count: int, pruning_ratio: Any) -> Any:
    """Prune a list beyond `pruning_ratio` times the mean distance of its NEAREST; return how many are left.

    Those as near as the last of the nearest count among them. The order of the list stays.
    """
    if count == 0 or pruning_ratio == np.inf:
        return count
    bound = rank_bound(best.ranks, count, min(NEAREST, count), 0)[0]
    total, near, last = np.float32(0), 0, np.int32(0)
    for i in range(count):
        if best.ranks[i] <= bound:
            total += distance_of(best.ranks[i])
            near, last = near + 1, max(last, best.ranks[i])
    # A sum of many may be rounded up, but no mean is more than the largest.
    mean = min(total / np.float32(near), distance_of(last))
    farthest, found = rank_of(pruning_ratio * mean), 0
    for i in range(count):
        rank = best.ranks[i]
        best.ranks[found], best.numbers[found] = rank, best.numbers[i]
        found += rank <= farthest
    return found


@kernel
def copy_best(source: Best, target: Best, count: int) -> None:
    """Copy the first `count` entries."""
    for i in range(count):
        target.ranks[i] = source.ranks[i]
    for i in range(count):
        target.numbers[i] = source.numbers[i]


@kernel
def _bin(rise: Any, scale: Any, count: int) -> Any:
    return min(np.int64(np.float32(rise) * scale), count - 1)


@kernel
def sort_best(best: Best, count: int, bins: NDArray[np.int32], spare: Best) -> None:
    """Sort the first `count` entries by (rank, number).

    Entries go to bins by rank, which leaves almost nothing to do. bins : (> count,), spare : scratch.
    """
    if count < 2:
        return
    low, high = best.ranks[0], best.ranks[0]
    for i in range(count):
        low, high = min(low, best.ranks[i]), max(high, best.ranks[i])
    scale = np.float32(count - 1) / (np.float32(high - low) + np.float32(1))
    bins[: count + 1] = 0
    for i in range(count):
        bins[_bin(best.ranks[i] - low, scale, count) + 1] += 1
    crowd = np.int32(0)
    for i in range(count):
        crowd = max(crowd, bins[i + 1])
        bins[i + 1] += bins[i]
    for i in range(count):
        place = _bin(best.ranks[i] - low, scale, count)
        spare.ranks[bins[place]], spare.numbers[bins[place]] = best.ranks[i], best.numbers[i]
        bins[place] += 1
    gap = 1
    while crowd > CROWDED and gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        _sort_gap(spare, count, gap)
        gap //= 3
    copy_best(spare, best, count)


@kernel
def _sort_gap(best: Best, count: int, gap: int) -> None:
    """One pass of Shell's sort; with gap 1, insertion sort."""
    ranks, numbers = best.ranks, best.numbers
    for i in range(gap, count):
        rank, number = ranks[i], numbers[i]
        j = i
        while j >= gap and (ranks[j - gap] > rank or (ranks[j - gap] == rank and numbers[j - gap] > number)):
            ranks[j], numbers[j] = ranks[j - gap], numbers[j - gap]
            j -= gap
        ranks[j], numbers[j] = rank, number
