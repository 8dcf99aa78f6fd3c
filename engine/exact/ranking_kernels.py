"""Kernels that rank the candidates of a query by exact distance.

Byte vectors and byte queries have exact sums of integers. Other distances are first estimated in float32, in
lanes; only candidates that may be among the k nearest by their estimate and its largest error are compared
exactly, in a fixed order of additions.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.exact.neighbours_kernels import (
    COSINE,
    L2,
    FlatVectors,
    Nearest,
    exact_distance,
    replace_farthest,
)
from aggtree.engine.simd.compiled import kernel
from aggtree.engine.simd.instructions.rows import (
    bfloat16_value,
    float16_value,
    sum_products,
    sum_squares,
)
from aggtree.engine.simd.intrinsics import prefetch
from aggtree.engine.simd.vector_code import LANES

# Components whose squared differences, of bytes, add up in 32 bits.
INTEGERS = 1 << 14
# Candidates whose vectors are prefetched, and bytes of each.
AHEAD = 8
PREFETCH = 1024
# How vectors are stored that are compared as floats: as integers or float32, or as the bits of half floats.
PLAIN, FLOAT16, BFLOAT16 = 0, 1, 2


class FloatQueries(NamedTuple):
    """Queries that are compared as floats, and memory of one thread.

    exact : (q, d) float32 or float64; rounded : (q, d) float32; squares : (q,) float32, ‖q‖²
    slack : how wrong a sum of d products in float32 may be, relative to the sum of their magnitudes
    stored : PLAIN, FLOAT16 or BFLOAT16
    near : (c,) float32, the least distance of each candidate of a query; sums : (2,) float32
    """

    exact: NDArray[np.floating]
    rounded: NDArray[np.float32]
    squares: NDArray[np.float32]
    slack: np.float32
    stored: int
    near: NDArray[np.float32]
    sums: NDArray[np.float32]


@kernel
def _byte_distance(query: NDArray[np.int16], row: NDArray[np.generic]) -> np.float64:
    """Squared distance of integers within the range of bytes, by 32-bit integers."""
    total = np.int64(0)
    for first in range(0, len(query), INTEGERS):
        one, other = query[first : first + INTEGERS], row[first : first + INTEGERS]
        part = np.int32(0)
        for j in range(len(one)):
            difference = np.int32(np.int32(one[j]) - np.int32(other[j]))
            part = np.int32(part + np.int32(difference * difference))
        total += part
    return np.float64(total)


@kernel
def _sort_heap(distances: NDArray[np.float64], ids: NDArray[np.int64]) -> None:
    """Sort a max-heap by (distance, id)."""
    for last in range(len(ids) - 1, 0, -1):
        distance, number = distances[last], ids[last]
        distances[last], ids[last] = distances[0], ids[0]
        replace_farthest(distances[:last], ids[:last], distance, number)


@kernel
def _prefetch_row(vectors: FlatVectors, row: Any) -> None:
    """Prefetch the beginning of a row; of any number, a row or not."""
    size = vectors.values.itemsize
    start = (vectors.first + row * vectors.step) * size
    last = min(PREFETCH, vectors.dimension * size)
    for place in range(start, start + last + 63, 64):
        prefetch(vectors.values, min(place, start + last - 1))


@kernel
def _copy_row(vectors: FlatVectors, start: Any, stored: int, row: NDArray[np.float32]) -> None:
    """Copy a row that is not stored as float32."""
    values = vectors.values[start : start + vectors.dimension]
    if stored == FLOAT16:
        for j in range(len(values)):
            row[j] = float16_value(values[j])
    elif stored == BFLOAT16:
        for j in range(len(values)):
            row[j] = bfloat16_value(values[j])
    else:
        for j in range(len(values)):
            row[j] = np.float32(values[j])


@kernel
def _estimate(floats: FloatQueries, i: int, values: NDArray[Any], start: Any, kind: int) -> tuple[Any, Any]:
    """Distance of query i and of values[start:], which are float32, and how wrong it may be."""
    query, sums = floats.rounded[i], floats.sums
    square, slack = floats.squares[i], floats.slack
    dimension = len(query)
    whole = dimension // LANES * LANES
    if kind == L2:
        sum_squares(query, values, start, whole, sums)
        distance = sums[0]
        for j in range(whole, dimension):
            distance += (query[j] - values[start + j]) ** 2
        return distance, slack * (distance + square)
    sum_products(query, values, start, whole, sums)
    product, length = sums[0], sums[1]
    for j in range(whole, dimension):
        product += query[j] * values[start + j]
        length += values[start + j] * values[start + j]
    scale = np.sqrt(square) * np.sqrt(length)
    if kind == COSINE:
        return np.float32(1) - product / scale, np.float32(3) * slack
    return -product, slack * scale


@kernel
def _rank_floats(
    floats: FloatQueries,
    i: int,
    vectors: FlatVectors,
    row: Any,
    candidates: NDArray[np.int64],
    places: NDArray[np.int64],
    kind: int,
    distances: NDArray[np.float64],
    ids: NDArray[np.int64],
) -> None:
    """Fill the heap of query i: estimates first, then exact distances of those that may be near.

    row : (d,) float32, memory for a row that is not stored as float32; None if rows are
    """
    near = floats.near
    for j in range(len(places)):
        if j + AHEAD < len(places):
            _prefetch_row(vectors, places[j + AHEAD])
        near[j] = np.inf
        if not 0 <= places[j] < vectors.rows:
            continue
        start = vectors.first + places[j] * vectors.step
        if row is None:
            distance, slack = _estimate(floats, i, vectors.values, start, kind)
        else:
            _copy_row(vectors, start, floats.stored, row)
            distance, slack = _estimate(floats, i, row, 0, kind)
        near[j] = distance - slack
        if distance + slack < distances[0]:
            replace_farthest(distances, ids, np.float64(distance + slack), j)
    # k candidates are at most this far. An estimate that overflowed is no number or infinite: it is compared.
    farthest = distances[0]
    distances[:], ids[:] = np.inf, -1
    for j in range(len(places)):
        if near[j] > farthest or not 0 <= places[j] < vectors.rows:
            continue
        start = vectors.first + places[j] * vectors.step
        if row is None:
            values = vectors.values[start : start + vectors.dimension]
            distance = exact_distance(floats.exact[i], values, kind)
        else:
            _copy_row(vectors, start, floats.stored, row)
            distance = exact_distance(floats.exact[i], row, kind)
        if distance < distances[0] or (distance == distances[0] and candidates[j] < ids[0]):
            replace_farthest(distances, ids, distance, candidates[j])


@kernel
def _rank_bytes(
    query: NDArray[np.int16],
    vectors: FlatVectors,
    candidates: NDArray[np.int64],
    places: NDArray[np.int64],
    kind: int,
    distances: NDArray[np.float64],
    ids: NDArray[np.int64],
) -> None:
    """Fill the heap of a query of small integers among vectors of bytes."""
    for j in range(len(places)):
        if j + AHEAD < len(places):
            _prefetch_row(vectors, places[j + AHEAD])
        if not 0 <= places[j] < vectors.rows:
            continue
        start = vectors.first + places[j] * vectors.step
        values = vectors.values[start : start + vectors.dimension]
        distance = _byte_distance(query, values) if kind == L2 else exact_distance(query, values, kind)
        if distance < distances[0] or (distance == distances[0] and candidates[j] < ids[0]):
            replace_farthest(distances, ids, distance, candidates[j])


@kernel
def rank_candidates(
    whole: Any,
    floats: Any,
    vectors: FlatVectors,
    row: Any,
    candidates: NDArray[np.int64],
    places: NDArray[np.int64],
    kind: int,
    nearest: Nearest,
) -> None:
    """The nearest of each query's own candidates, sorted by (distance, id).

    whole : (q, d) int16, queries of integers within the range of the vectors' bytes, or None
    floats : FloatQueries, or None; one of both is there
    row : (d,) float32, memory for a row whose values are not float32, or None where they are
    candidates, places : (q, c), ids and the rows that hold their vectors; invalid rows are skipped
    kind : of the distance
    nearest : (q, k), out; inf and -1 where there are fewer
    """
    for i in range(len(candidates)):
        distances, ids = nearest.distances[i], nearest.ids[i]
        distances[:], ids[:] = np.inf, -1
        for j in range(min(AHEAD, len(places[i]))):
            _prefetch_row(vectors, places[i, j])
        # A branch about an argument that is None is left out when the kernel is compiled.
        if floats is not None:
            _rank_floats(floats, i, vectors, row, candidates[i], places[i], kind, distances, ids)
        if whole is not None:
            _rank_bytes(whole[i], vectors, candidates[i], places[i], kind, distances, ids)
        _sort_heap(distances, ids)
