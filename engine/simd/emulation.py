"""Each primitive in numpy, under its name: called by kernels if the JIT is off; twins for tests.

Products and sums of floats are rounded one by one, where machine code rounds a multiply-add once: the results
agree in all but the last bits, and exactly where all sums are integers below 2**24.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.simd.vector_code import LANES

TILE_ROWS = 6
"""Rows multiplied at once."""
QUAD = 4
"""Dimensions whose bytes lie side by side, multiplied in one step."""
ZERO = 128
"""The byte of a difference of zero: the instruction takes one side without sign."""
SIEVED = 64
"""Leaves sieved at once."""
NO_KEY = 2**31 - 1
LARGEST_GAP = 2**21 - 1
"""Above the least score, in a key: what is beyond counts as this."""


def score_row(
    table: NDArray[np.int16],
    offsets: NDArray[np.int64],
    count: int,
    own: NDArray[np.int32],
    first: int,
    base: int,
    words: int,
    scores: NDArray[np.int32],
    place: int,
    minima: NDArray[np.int32],
    lane: int,
) -> None:
    found = scores[place : place + words]
    found[:] = own.ravel()[first : first + words] + np.int32(base)
    for offset in offsets[:count]:
        found += table[offset : offset + words]
    minima[lane : lane + LANES] = found.reshape(-1, LANES).min(axis=0)


def row_minima(values: NDArray[np.float32], row: int, words: int, minima: NDArray[np.float32]) -> None:
    # A number is not compared with what is none: such entries are passed over.
    minima[:LANES] = np.fmin.reduce(values[row, :words].reshape(-1, LANES), axis=0, initial=np.inf)


def count_at_most(values: NDArray[np.int32], count: int, limit: int) -> int:
    return int(np.count_nonzero(values[:count] <= limit))


def lanes_at_most(values: NDArray[Any], place: int, limit: Any) -> int:
    within = values[place : place + LANES] <= limit
    return int.from_bytes(np.packbits(within, bitorder="little").tobytes(), "little")


def lowest_bit(mask: int) -> int:
    return (int(mask) & -int(mask)).bit_length() - 1


def score_short_paths(
    table: NDArray[np.int16],
    first: int,
    paths: NDArray[np.uint8],
    path: int,
    count: int,
    own: NDArray[np.int32],
    column: int,
    base: NDArray[np.int32],
    live: int,
    scores: NDArray[np.int32],
) -> int:
    found = scores[: live * LANES].reshape(live, LANES)
    found[:] = base[:live, None] + own.ravel()[column : column + LANES]
    rows = paths[path : path + live * LANES].reshape(live, LANES)[:, :count].astype(np.int64)
    places = first + rows[:, :, None] * LANES + np.arange(LANES)
    found += table[places].sum(axis=1, dtype=np.int32)
    return int(found.min())


def collect_keys(
    scores: NDArray[np.int32], live: int, limit: int, least: int, keys: NDArray[np.int32]
) -> int:
    places = np.flatnonzero(scores[: live * LANES] <= limit)
    gaps = np.minimum(scores[places].astype(np.int64) - least, LARGEST_GAP)
    keys[: len(places)] = gaps << 10 | places
    keys[len(places) : len(places) + LANES] = NO_KEY
    return len(places)


def rank_of_key(keys: NDArray[np.int32], count: int, key: int) -> int:
    return int(np.count_nonzero(keys[:count] < key))


def copy_path(paths: NDArray[np.uint8], source: int, target: int) -> None:
    paths[target : target + LANES] = paths[source : source + LANES]


def add_squares(
    start: NDArray[np.float32],
    words: NDArray[np.float32],
    rows: NDArray[np.int64],
    first: int,
    last: int,
    sums: NDArray[np.float32],
) -> None:
    vector = start.copy()
    for row in rows[first:last]:
        vector += words[row]
    sums[:] = 0
    for eight in vector[: len(vector) // 8 * 8].reshape(-1, 8):
        sums += eight * eight


def multiply_tile(
    rows: NDArray[np.float32],
    row: int,
    panel: NDArray[np.float32],
    start: NDArray[np.float32],
    out: NDArray[Any],
    column: int,
) -> None:
    columns = slice(column, column + LANES)
    terms = np.empty((TILE_ROWS, 1 + len(panel), LANES), np.float32)
    terms[:, 0] = start[columns]
    terms[:, 1:] = rows[row : row + TILE_ROWS, :, None] * panel
    # Dimension after dimension, as the kernels that compute one product at a time do.
    out[row : row + TILE_ROWS, columns] = np.add.accumulate(terms, axis=1)[:, -1]


def score_bytes(
    row: NDArray[np.int8],
    row_sum: int,
    quads: NDArray[np.uint8],
    column: int,
    vectors: int,
    offsets: NDArray[np.float32],
    base: np.float32,
    step: np.float32,
    unit: np.float32,
    ranks: NDArray[np.int32],
    place: int,
) -> None:
    stop = column + vectors * LANES
    differences = quads[:, column:stop].astype(np.int32) - ZERO
    products = np.einsum("qkj,qj->k", differences, row.reshape(-1, QUAD).astype(np.int32))
    scores = base + step * (offsets[column:stop] + unit * products.astype(np.float32))
    ranks[place : place + stop - column] = np.maximum(scores, np.float32(0)).view(np.int32)


def multiply_bytes(
    row: NDArray[np.int8],
    row_sum: int,
    quads: NDArray[np.uint8],
    panel: int,
    units: NDArray[np.float32],
    unit: np.float32,
    start: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    differences = quads[panel].astype(np.int32) - ZERO
    products = np.einsum("qkj,qj->k", differences, row.reshape(-1, QUAD).astype(np.int32))
    here = slice(panel * len(products), (panel + 1) * len(products))
    out[here] = start[here] + np.float32(unit) * units[here] * products.astype(np.float32)


def sieve_64(
    records: NDArray[np.uint8],
    place: int,
    size: int,
    index: NDArray[np.uint8],
    tables: NDArray[np.uint8],
    whole: int,
    planes: int,
    most: int,
) -> np.uint64:
    sieved = records[place : place + SIEVED * size].reshape(SIEVED, size)[:, :planes]
    sums = tables[np.arange(planes), sieved].sum(axis=1, dtype=np.int64)
    bits: NDArray[np.uint64] = np.packbits(np.minimum(sums, 255) <= most, bitorder="little").view(np.uint64)
    return np.uint64(bits[0])


def sieve_64_of_nine(
    records: NDArray[np.uint8], place: int, tables: NDArray[np.uint8], most: int
) -> np.uint64:
    return sieve_64(records, place, 9, tables[0], tables, 8, 9, most)


def load_8_bytes(array: NDArray[Any], offset: int) -> np.uint64:
    return np.uint64(int.from_bytes(array.view(np.uint8)[offset : offset + 8].tobytes(), "little"))


def prefetch(array: NDArray[Any], offset: int) -> None:
    """Nothing: memory is read when it is read."""


def scan_block(
    planes: NDArray[np.uint8],
    place: int,
    count: int,
    weighted: int,
    tables: NDArray[np.uint8],
    limit: int,
    sums: NDArray[np.uint16],
) -> int:
    block = planes[place : place + 32 * count].reshape(count, 32)
    sums[:] = 0
    for number, plane in enumerate(block):
        row = number + (weighted if number else 0)
        entries = tables[0, row][plane & 15].astype(np.uint16) + tables[1, row][plane >> 4]
        sums[:] += entries << (3 if weighted and number == 0 else 0)
    return int.from_bytes(np.packbits(sums <= limit, bitorder="little").tobytes(), "little")


def sum_products(
    query: NDArray[np.float32], values: NDArray[np.float32], first: int, whole: int, sums: NDArray[np.float32]
) -> None:
    asked, row = query[:whole], values[first : first + whole]
    sums[0], sums[1] = (asked * row).sum(), (row * row).sum()


def sum_squares(
    query: NDArray[np.float32], values: NDArray[np.float32], first: int, whole: int, sums: NDArray[np.float32]
) -> None:
    differences = query[:whole] - values[first : first + whole]
    sums[0] = (differences * differences).sum()


def float16_value(bits: int) -> np.float32:
    return np.float32(np.array(bits, np.uint16).view(np.float16)[()])


def bfloat16_value(bits: int) -> np.float32:
    return np.float32((np.array(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)[()])
