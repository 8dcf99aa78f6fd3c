"""Kernels of the distance tables (ADC tables): products of queries and words, in floats or in bytes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.scan.records import ByteWords, TableWords
from aggtree.engine.simd.compiled import kernel
from aggtree.engine.simd.instructions.byte_products import multiply_bytes
from aggtree.engine.simd.instructions.products import TILE_ROWS, multiply_tile
from aggtree.engine.simd.vector_code import LANES

DIMENSION_STEP = 8
# Columns of one sweep over the dimensions: their sums stay in the first-level cache.
SWEEP = 512
# A query's values, in bytes, range from minus this to this.
QUERY_STEPS = 127
# So few queries are multiplied one by one.
FEW = 2


@kernel
def multiply_columns(
    query: NDArray[np.float32],
    rows: NDArray[np.float32],
    start: NDArray[np.float32],
    table: NDArray[np.float32],
) -> None:
    """Set table[j] to start[j] + query · rows[:, j]; query (d,), rows (d, columns), d a multiple of 8.

    The same additions in the same order as `multiply_tile`, so that the bits are the same.
    """
    for first in range(0, len(table), SWEEP):
        last = min(len(table), first + SWEEP)
        out = table[first:last]
        for j in range(len(out)):
            out[j] = start[first + j]
        for t in range(0, len(query), DIMENSION_STEP):
            a, b, c, d = query[t], query[t + 1], query[t + 2], query[t + 3]
            e, f, g, h = query[t + 4], query[t + 5], query[t + 6], query[t + 7]
            row_a, row_b = rows[t][first:last], rows[t + 1][first:last]
            row_c, row_d = rows[t + 2][first:last], rows[t + 3][first:last]
            row_e, row_f = rows[t + 4][first:last], rows[t + 5][first:last]
            row_g, row_h = rows[t + 6][first:last], rows[t + 7][first:last]
            for j in range(len(out)):
                value = out[j]
                value += a * row_a[j]
                value += b * row_b[j]
                value += c * row_c[j]
                value += d * row_d[j]
                value += e * row_e[j]
                value += f * row_f[j]
                value += g * row_g[j]
                value += h * row_h[j]
                out[j] = value


@kernel
def _square(query: NDArray[np.float32]) -> Any:
    square = np.float64(0)
    for t in range(len(query)):
        square += np.float64(query[t]) * np.float64(query[t])
    return square


@kernel
def distance_tables(
    queries: NDArray[np.float32],
    words: TableWords,
    tables: NDArray[np.float32],
    squares: NDArray[np.float32],
) -> Any:
    """Set tables[i, j] to start[j] + queries[i] · word j, and squares[i] to ‖queries[i]‖².

    queries : (q, d) float32, where q is at most FEW or a multiple of TILE_ROWS
    """
    if len(queries) <= FEW:
        for i in range(len(queries)):
            multiply_columns(queries[i], words.rows, words.start, tables[i])
    else:
        for panel in range(len(words.panels)):
            for row in range(0, len(queries), TILE_ROWS):
                multiply_tile(queries, row, words.panels[panel], words.start, tables, panel * LANES)
    for i in range(len(queries)):
        squares[i] = _square(queries[i])


@kernel
def query_bytes(query: NDArray[np.float32], out: NDArray[np.int8]) -> tuple[Any, Any]:
    """Set out (d,) to the query's values as -127..127, rounded; returns their unit, and their sum."""
    most = np.float32(0)
    for t in range(len(query)):
        most = max(most, abs(query[t]))
    unit = most / np.float32(QUERY_STEPS)
    if unit == 0:
        unit = np.float32(1)
    total = np.int32(0)
    for t in range(len(query)):
        out[t] = np.int8(np.rint(query[t] / unit))
        total += np.int32(out[t])
    return unit, total


@kernel
def byte_tables(
    queries: NDArray[np.float32],
    words: ByteWords,
    values: NDArray[np.int8],
    tables: NDArray[np.float32],
    squares: NDArray[np.float32],
) -> None:
    """As `distance_tables`, from words and queries in bytes; values : (d,) int8, scratch."""
    for i in range(len(queries)):
        unit, total = query_bytes(queries[i], values)
        for panel in range(len(words.quads)):
            multiply_bytes(values, total, words.quads, panel, words.units, unit, words.start, tables[i])
        squares[i] = _square(queries[i])
