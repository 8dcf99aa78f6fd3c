"""Each primitive does what its emulation does: to the bit on integers, nearly on floats."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.primitives_kernels import CALLS
from helpers.sizes import needs_jit

from aggtree.engine.scan.scratch import sieve_index
from aggtree.engine.simd import emulation
from aggtree.engine.simd.instructions.byte_products import PANEL, QUAD, VECTORS
from aggtree.engine.simd.instructions.planes import (
    BLOCK_LEAVES,
    LARGEST_ENTRY,
    SPARE_BYTES,
    TABLE_BYTES,
    table_row,
)
from aggtree.engine.simd.instructions.products import TILE_ROWS
from aggtree.engine.simd.instructions.sieve import CAN_SIEVE, PLANES, READ_AHEAD, SIEVE_BYTES, SIEVED
from aggtree.engine.simd.instructions.vectors import CHUNK
from aggtree.engine.simd.vector_code import LANES

pytestmark = needs_jit

Arguments = tuple[Any, ...]


def copies(arguments: Arguments) -> Arguments:
    return tuple(value.copy() if isinstance(value, np.ndarray) else value for value in arguments)


def check(name: str, arguments: Arguments, tolerance: float = 0) -> None:
    """Call both with copies of the arguments, compare what they return and all arrays after."""
    compiled, plain = copies(arguments), copies(arguments)
    emulated: Callable[..., Any] = getattr(emulation, name)
    assert CALLS[name](*compiled) == emulated(*plain)
    for found, expected in zip(compiled, plain, strict=True):
        if isinstance(found, np.ndarray):
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def integers(random: np.random.Generator, kind: type, *shape: int, most: int = 90) -> np.ndarray:
    return random.integers(-most, most, shape).astype(kind)


def test_every_emulation_is_compared() -> None:
    named = {name for name, _ in inspect.getmembers(emulation, inspect.isfunction)}
    assert named == set(CALLS) | {"prefetch"}


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("live", [1, 3, 64])
def test_score_short_paths(count: int, live: int) -> None:
    random = np.random.default_rng(count)
    table, own = integers(random, np.int16, 21 * LANES), integers(random, np.int32, 3 * LANES)
    paths = random.integers(0, 20, (live + 2) * LANES).astype(np.uint8)
    base, scores = integers(random, np.int32, live), np.zeros((live + 1) * LANES, np.int32)
    check("score_short_paths", (table, LANES, paths, 2 * LANES, count, own, 7, base, live, scores))


@pytest.mark.parametrize("live", [1, 3, 64])
@pytest.mark.parametrize("limit", [-95, -60, 0, 5_000_000, 2**30])
def test_collect_keys(live: int, limit: int) -> None:
    random = np.random.default_rng(live)
    scores, keys = integers(random, np.int32, live * LANES), np.zeros((live + 1) * LANES, np.int32)
    scores[random.integers(0, len(scores), 4)] = 4_000_000
    least = int(scores.min())
    compiled, plain = keys.copy(), keys.copy()
    found = CALLS["collect_keys"](scores, live, limit, least, compiled)
    assert found == emulation.collect_keys(scores, live, limit, least, plain)
    np.testing.assert_array_equal(compiled[: found + LANES], plain[: found + LANES])


def test_rank_of_key_and_copy_path() -> None:
    random = np.random.default_rng(0)
    keys = integers(random, np.int32, 3 * LANES)
    for key in (-91, 0, int(keys[5]), 90):
        check("rank_of_key", (keys, 2 * LANES, key))
    check("copy_path", (random.integers(0, 256, 5 * LANES).astype(np.uint8), LANES, 3 * LANES))


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("words", [CHUNK, 3 * CHUNK])
def test_score_row(count: int, words: int) -> None:
    random = np.random.default_rng(count)
    table, own = integers(random, np.int16, 7 * words), integers(random, np.int32, 2 * words)
    offsets = random.integers(0, 6, 5) * words
    scores, minima = np.full(2 * words, 7, np.int32), np.full(3 * LANES, 7, np.int32)
    check("score_row", (table, offsets, count, own, 9, np.int32(-4), words, scores, 3, minima, LANES))


@pytest.mark.parametrize("words", [LANES, 5 * LANES])
def test_row_minima(words: int) -> None:
    values = np.random.default_rng(words).normal(size=(3, 6 * LANES)).astype(np.float32)
    values[1, 3], values[1, 4::LANES] = np.nan, np.nan
    check("row_minima", (values, 1, words, np.zeros(LANES, np.float32)))


@pytest.mark.parametrize("limit", [-91, 0, 90])
def test_comparisons(limit: int) -> None:
    values = integers(np.random.default_rng(1), np.int32, 3 * LANES)
    check("count_at_most", (values, 2 * LANES, np.int32(limit)))
    for kind in (np.int32, np.float32):
        check("lanes_at_most", (values.astype(kind), 5, kind(limit)))


@pytest.mark.parametrize("bit", [0, 1, 31, 62, 63])
def test_lowest_bit(bit: int) -> None:
    check("lowest_bit", (np.int64(np.uint64(2**64 - 2**bit)),))


@pytest.mark.parametrize("dimension", [1, 8, 11, 40, 77])
@pytest.mark.parametrize(("first", "last"), [(0, 0), (1, 4), (0, 5)])
def test_add_squares(dimension: int, first: int, last: int) -> None:
    random = np.random.default_rng(dimension)
    start, words = (integers(random, np.float32, *shape) for shape in ((dimension,), (9, dimension)))
    check("add_squares", (start, words, random.integers(0, 9, 5), first, last, np.ones(8, np.float32)))


@pytest.mark.parametrize("whole", [0, LANES, 5 * LANES])
def test_sums_over_a_row(whole: int) -> None:
    random = np.random.default_rng(whole)
    query, values = (integers(random, np.float32, size) for size in (whole + 3, whole + 9))
    for name in ("sum_products", "sum_squares"):
        check(name, (query, values, 4, whole, np.zeros(2, np.float32)))


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -65504.0, 2.0**-24, -3 * 2.0**-16, 1 / 3])
def test_half_floats(value: float) -> None:
    bits = np.float16(value).view(np.uint16)
    check("float16_value", (bits,))
    assert CALLS["float16_value"](bits) == np.float16(value)
    brain = (np.float32(value).view(np.uint32) >> 16).astype(np.uint16).view(np.int16)
    check("bfloat16_value", (brain,))


@pytest.mark.parametrize("dimension", [1, 3, 20])
@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_multiply_tile(dimension: int, kind: type) -> None:
    random = np.random.default_rng(dimension)
    rows = integers(random, np.float32, 2 * TILE_ROWS, dimension)
    panel, start = integers(random, np.float32, dimension, LANES), integers(random, np.float32, 3 * LANES)
    out = np.zeros((2 * TILE_ROWS, 3 * LANES), kind)
    check("multiply_tile", (rows, 5, panel, start, out, LANES))
    check("multiply_tile", (rows / 7, 5, panel / 7, start, out, LANES), 1e-4 if kind is np.float32 else 1)


@pytest.mark.parametrize("vectors", range(1, VECTORS + 1))
@pytest.mark.parametrize("dimension", [4, 12])
def test_score_bytes(dimension: int, vectors: int) -> None:
    random = np.random.default_rng(vectors)
    row = integers(random, np.int8, dimension, most=127)
    columns = (VECTORS + 1) * LANES
    quads = random.integers(1, 256, (dimension // QUAD, columns, QUAD)).astype(np.uint8)
    offsets, ranks = integers(random, np.float32, columns), np.zeros(columns + 9, np.int32)
    scalars = (np.float32(1000), np.float32(-0.5), np.float32(0.25))
    total = np.int32(row.sum(dtype=int))
    check("score_bytes", (row, total, quads, LANES, vectors, offsets, *scalars, ranks, 3))


@pytest.mark.parametrize("dimension", [4, 12, 100])
def test_multiply_bytes(dimension: int) -> None:
    random = np.random.default_rng(dimension)
    row = integers(random, np.int8, dimension, most=127)
    quads = random.integers(1, 256, (3, dimension // QUAD, PANEL, QUAD)).astype(np.uint8)
    units, start = (integers(random, np.float32, 3 * PANEL) for _ in range(2))
    total, out = np.int32(row.sum(dtype=int)), np.zeros(3 * PANEL, np.float32)
    check("multiply_bytes", (row, total, quads, 1, units / 64, np.float32(0.25), start, out))


@pytest.mark.skipif(not CAN_SIEVE, reason="this processor has no byte permutations (AVX-512 VBMI)")
@pytest.mark.parametrize("size", range(1, SIEVE_BYTES + 1))
def test_sieve(size: int) -> None:
    random = np.random.default_rng(size)
    records = random.integers(0, 256, 5 + SIEVED * size + READ_AHEAD, dtype=np.uint8)
    tables = random.integers(0, 400 // size, (24, 256)).clip(0, 255).astype(np.uint8)
    index, whole = sieve_index(np.array([size]))[0], size // PLANES * PLANES
    for most in (0, 100, 200, 255):
        check("sieve_64", (records, 5, size, index, tables, whole, size, np.uint8(most)))
        if size == 9:
            check("sieve_64_of_nine", (records, 5, tables, np.uint8(most)))


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.float32])
def test_load_8_bytes(kind: type) -> None:
    check("load_8_bytes", (np.arange(9, 41).astype(kind), 3))


@pytest.mark.parametrize("weighted", [0, 1])
@pytest.mark.parametrize("count", [1, 2, 3, 8, 25, 64])
def test_scan_block(count: int, weighted: int) -> None:
    random = np.random.default_rng(count)
    planes = random.integers(0, 256, BLOCK_LEAVES * count * 3 + SPARE_BYTES).astype(np.uint8)
    tables = np.zeros((2, count + 3, TABLE_BYTES), np.uint8)
    for plane in range(count):
        entries = random.integers(0, LARGEST_ENTRY + 1, (2, 16))
        tables[:, table_row(plane, bool(weighted))] = np.tile(entries, 2)
    for limit in (0, 60 * count, 130 * count, 65_535):
        sums = np.zeros(BLOCK_LEAVES, np.uint16)
        check("scan_block", (planes, BLOCK_LEAVES * count, count, weighted, tables, limit, sums))
