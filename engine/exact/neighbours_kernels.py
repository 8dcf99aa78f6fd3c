"""Kernels of exact search: products select the rows that may be near, exact distances decide."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.simd.compiled import kernel

LANES = 4
# Distances: squared Euclidean, minus the inner product, 1 - cosine.
L2, INNER, COSINE = 0, 1, 2


class Nearest(NamedTuple):
    """The k nearest rows so far of each query, each a heap with the farthest, by (distance, id), first.

    distances : (q, k) float64, inf where there is no row yet
    ids : (q, k) int64, -1 where there is no row yet
    """

    distances: NDArray[np.float64]
    ids: NDArray[np.int64]


class FlatVectors(NamedTuple):
    """Vectors somewhere in one flat array, such as a mapped file with headers between the rows.

    values : (v,) uint8, int8, float32, or the bits of float16 as uint16 and of bfloat16 as int16;
        row i is values[first + i * step :][:dimension]
    """

    values: NDArray[np.generic]
    first: int
    step: int
    rows: int
    dimension: int


class Products(NamedTuple):
    """Approximate inner products of queries with a block of rows.

    values : (q, r) float32
    query_squares, row_squares : (q,) and (r,) float32
    slack : largest error of a distance from these, relative to the sum of both squares
    kind : of the distance. For COSINE these are products and squares of rows scaled to length 1.
    """

    values: NDArray[np.float32]
    query_squares: NDArray[np.float32]
    row_squares: NDArray[np.float32]
    slack: np.float32
    kind: int


@kernel
def _squared_distance(query: NDArray[np.generic], row: NDArray[np.generic]) -> np.float64:
    """Always the same additions in the same order; exact for integers of up to 16 bits."""
    a = b = c = d = np.float64(0)
    whole = len(query) // LANES * LANES
    for j in range(0, whole, LANES):
        a += (np.float64(query[j]) - np.float64(row[j])) ** 2
        b += (np.float64(query[j + 1]) - np.float64(row[j + 1])) ** 2
        c += (np.float64(query[j + 2]) - np.float64(row[j + 2])) ** 2
        d += (np.float64(query[j + 3]) - np.float64(row[j + 3])) ** 2
    for j in range(whole, len(query)):
        a += (np.float64(query[j]) - np.float64(row[j])) ** 2
    return (a + b) + (c + d)


@kernel
def _products(query: NDArray[np.generic], row: NDArray[np.generic]) -> tuple[Any, Any]:
    """q·x and ‖x‖², always the same additions in the same order; exact for integers of up to 16 bits."""
    a = b = c = d = np.float64(0)
    for j in range(0, len(query) - 1, 2):
        a += np.float64(query[j]) * np.float64(row[j])
        b += np.float64(query[j + 1]) * np.float64(row[j + 1])
        c += np.float64(row[j]) * np.float64(row[j])
        d += np.float64(row[j + 1]) * np.float64(row[j + 1])
    if len(query) % 2 == 1:
        a += np.float64(query[-1]) * np.float64(row[-1])
        c += np.float64(row[-1]) * np.float64(row[-1])
    return a + b, c + d


@kernel
def exact_distance(query: NDArray[np.generic], row: NDArray[np.generic], kind: int) -> Any:
    """The distance of a kind; NaN for the cosine of a row of zeros."""
    if kind == L2:
        return _squared_distance(query, row)
    product, square = _products(query, row)
    if kind == INNER:
        return -product
    return np.float64(1) - product / np.sqrt(square * _products(query, query)[1])


@kernel
def replace_farthest(
    distances: NDArray[np.float64], ids: NDArray[np.int64], distance: np.float64, number: int
) -> None:
    """Replace the root of the heap by a row and sift it down."""
    place = 0
    while 2 * place + 1 < len(ids):
        child = 2 * place + 1
        if child + 1 < len(ids) and (
            distances[child + 1] > distances[child]
            or (distances[child + 1] == distances[child] and ids[child + 1] > ids[child])
        ):
            child += 1
        if distances[child] < distance or (distances[child] == distance and ids[child] < number):
            break
        distances[place], ids[place] = distances[child], ids[child]
        place = child
    distances[place], ids[place] = distance, number


@kernel
def merge_rows(
    queries: NDArray[np.generic],
    rows: NDArray[np.generic],
    products: Products,
    first_id: int,
    nearest: Nearest,
) -> None:
    """Merge rows (r, d), numbered from first_id, into the nearest of each query (q, d).

    A row is passed over only if its approximate distance less the slack is above the farthest kept, so
    the answer does not depend on how the products were rounded.
    """
    for i in range(len(queries)):
        distances, ids = nearest.distances[i], nearest.ids[i]
        square = products.query_squares[i]
        for j in range(len(rows)):
            squares = square + products.row_squares[j]
            product = products.values[i, j]
            if products.kind == L2:
                near = squares - np.float32(2) * product
            else:
                near = np.float32(1 if products.kind == COSINE else 0) - product
            # Written so that a product that overflowed counts as near.
            if not near - products.slack * squares > distances[0]:
                distance = exact_distance(queries[i], rows[j], products.kind)
                number = first_id + j
                if distance < distances[0] or (distance == distances[0] and number < ids[0]):
                    replace_farthest(distances, ids, distance, number)


@kernel
def touch_rows(vectors: FlatVectors, rows: NDArray[np.int64], page: int) -> Any:
    """Read a value of every page of the given rows, so that the system fetches them; returns their sum.

    page : values of a page
    """
    total = np.float64(0)
    for row in rows:
        if 0 <= row < vectors.rows:
            start = vectors.first + row * vectors.step
            for place in range(start, start + vectors.dimension, page):
                total += vectors.values[place]
            total += vectors.values[start + vectors.dimension - 1]
    return total
