"""Kernel of exact search: products say which rows may be near, exact distances decide."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.compiled import kernel

LANES = 4


class Nearest(NamedTuple):
    """The k nearest rows so far of each query, each a heap with the farthest, by (distance, id), first.

    distances : (q, k) float64, inf where there is no row yet
    ids : (q, k) int64, -1 where there is no row yet
    """

    distances: NDArray[np.float64]
    ids: NDArray[np.int64]


class Products(NamedTuple):
    """Approximate inner products of queries with a block of rows.

    values : (q, r) float32
    query_squares, row_squares : (q,) and (r,) float32
    slack : relative to the sum of both squares, how wrong a squared distance from these may be
    """

    values: NDArray[np.float32]
    query_squares: NDArray[np.float32]
    row_squares: NDArray[np.float32]
    slack: np.float32


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
def _replace_farthest(
    distances: NDArray[np.float64], ids: NDArray[np.int64], distance: np.float64, number: int
) -> None:
    """Put a row in the place of the heap's first and let it sink."""
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
            least = squares - np.float32(2) * products.values[i, j] - products.slack * squares
            # Written so that a product that overflowed counts as near.
            if not least > distances[0]:
                distance = _squared_distance(queries[i], rows[j])
                number = first_id + j
                if distance < distances[0] or (distance == distances[0] and number < ids[0]):
                    _replace_farthest(distances, ids, distance, number)
