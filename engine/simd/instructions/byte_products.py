"""Primitives of one row times many columns of bytes: exact sums, the same everywhere.

Processors with AVX-512 VNNI (Intel since Cascade Lake, AMD since Zen 4) multiply and add four bytes of each
column in one instruction, where they lie side by side: columns come in *quads* of four dimensions.
"""

from llvmlite import ir

from aggtree.engine.simd import emulation
from aggtree.engine.simd.builder import Array, Code, Pointer, Value
from aggtree.engine.simd.primitive import Float32, Int32, Int64, primitive
from aggtree.engine.simd.vector_code import FLOATS, INT8, INT16, INT32, INTS, LANES, processor_has

QUAD, ZERO = emulation.QUAD, emulation.ZERO

VECTORS = 8
"""Most vectors of columns in one sweep over the dimensions: the sums of so many wait for each other least."""

PANEL = VECTORS * LANES
"""Columns that `multiply_bytes` multiplies."""

HAS_BYTE_PRODUCTS = processor_has("avx512vnni")
HAS_PAIR_PRODUCTS = processor_has("avx2")

_QUADS = ir.VectorType(INT8, QUAD * LANES)
_SHORT_QUADS = ir.VectorType(INT16, QUAD * LANES)
_PAIRS = ir.VectorType(INT32, 2 * LANES)


def _add_dot_products(code: Code, total: Value, row_quad: Value, quads: Value) -> Value:
    """Add Σ row · byte over a quad of each column; the bytes have no sign, see `_difference_products`."""
    return code.call("llvm.x86.avx512.vpdpbusd.512", INTS, total, quads.bits_as(INTS), row_quad.splat(INTS))


def _add_register_products(code: Code, total: Value, row_quad: Value, quads: Value) -> Value:
    """As `_add_pair_products`, by an instruction of AVX2 that adds each two products of 16 bits."""
    shorts, pairs = ir.VectorType(INT16, 16), ir.VectorType(INT32, 8)
    row = row_quad.splat(ir.VectorType(INT32, 4)).bits_as(ir.VectorType(INT8, 16)).sign_extended(shorts)
    differences = quads ^ ZERO
    parts = [
        code.call(
            "llvm.x86.avx2.pmadd.wd",
            pairs,
            differences.shuffled(differences, range(first, first + 16)).sign_extended(shorts),
            row,
        )
        for first in range(0, QUAD * LANES, 16)
    ]
    halves = [parts[i].shuffled(parts[i + 1], range(16)) for i in (0, 2)]
    return total + halves[0].shuffled(halves[1], range(2 * LANES))


def _add_pair_products(code: Code, total: Value, row_quad: Value, quads: Value) -> Value:
    """The same of differences, two by two: what two make fits 16 bits, and their sum is kept in 32."""
    row = row_quad.splat(INTS).bits_as(_QUADS).sign_extended(_SHORT_QUADS)
    differences = (quads ^ ZERO).sign_extended(_SHORT_QUADS)
    products = (row * differences).bits_as(_PAIRS)
    low, high = (products << 16) >> 16, products >> 16
    return total + (low + high)


def _difference_products(totals: list[Value], row_sum: Value) -> list[Value]:
    """The sums of the differences: Σ row · (byte - ZERO), one for each column."""
    if HAS_BYTE_PRODUCTS:
        excess = (row_sum * ZERO).splat(INTS)
        return [total - excess for total in totals]
    even, odd = range(0, 2 * LANES, 2), range(1, 2 * LANES, 2)
    return [total.shuffled(total, even) + total.shuffled(total, odd) for total in totals]


def _products(
    code: Code, row: Pointer, row_sum: Value, column: Pointer, dimension: Value, width: Value, vectors: int
) -> list[Value]:
    """Σ_j row[j] · difference j of LANES columns, for so many vectors of them, in a loop over quads.

    column : the first quad of the first column; those of all `width` columns lie side by side
    """
    add_pairs = _add_register_products if HAS_PAIR_PRODUCTS else _add_pair_products
    add, kind = (_add_dot_products, INTS) if HAS_BYTE_PRODUCTS else (add_pairs, _PAIRS)

    def add_quads(j: Value, *totals: Value) -> list[Value]:
        row_quad, line = (row + j).load(INT32), column + j * width
        return [
            add(code, total, row_quad, (line + QUAD * LANES * number).load(_QUADS))
            for number, total in enumerate(totals)
        ]

    totals = code.loop(0, dimension, QUAD, [code.constant(0, kind)] * vectors, add_quads)
    return _difference_products(totals, row_sum)


def _store_ranks(
    code: Code, sums: list[Value], offsets: Pointer, base: Value, step: Value, unit: Value, ranks: Pointer
) -> None:
    """ranks[k] = bits of max(0, base + step · (offsets[k] + unit · sum k)), LANES of them at a time."""
    base, step, unit = (scalar.splat(FLOATS) for scalar in (base, step, unit))
    zero = code.constant(0.0, FLOATS)
    for number, total in enumerate(sums):
        own = (offsets + LANES * number).load(FLOATS)
        scores = base + step * (own + unit * total.to_float(FLOATS))
        positive = (scores > zero).select(scores, zero)
        (ranks + LANES * number).store(positive.bits_as(INTS))


@primitive(emulation.score_bytes)
def score_bytes(
    code: Code,
    row: Array,
    row_sum: Int32,
    quads: Array,
    column: Int64,
    vectors: Int64,
    offsets: Array,
    base: Float32,
    step: Float32,
    unit: Float32,
    ranks: Array,
    place: Int64,
) -> None:
    """ranks[place + k] = bits of max(0, base + step · (offsets[column + k] + unit · p_k)).

    For k < vectors · LANES, with p_k = Σ_j row[j] · (quads[j // QUAD, column + k, j % QUAD] - ZERO).
    row (d,) int8 from -127 on, row_sum its sum, d a multiple of QUAD; quads (d / QUAD, n, QUAD) uint8;
    offsets (n,) and the scalars float32; ranks (r,) int32; vectors from 1 to VECTORS.
    """
    lines, width, _ = quads.shape

    def score(count: int) -> None:
        sums = _products(code, row, row_sum, quads + column * QUAD, lines * QUAD, width, count)
        _store_ranks(code, sums, offsets + column, base, step, unit, ranks + place)

    code.switch(vectors, range(1, VECTORS + 1), score)


@primitive(emulation.multiply_bytes)
def multiply_bytes(
    code: Code,
    row: Array,
    row_sum: Int32,
    quads: Array,
    panel: Int64,
    units: Array,
    unit: Float32,
    start: Array,
    out: Array,
) -> None:
    """out[c] = start[c] + (unit · units[c]) · p_c for the columns c of a panel; p_c as in `score_bytes`.

    quads (n, d / QUAD, PANEL, QUAD) uint8; units, start, out (n · PANEL,) float32.
    """
    _, lines, width, _ = quads.shape
    first = panel * PANEL
    columns = quads + first * lines * QUAD
    sums = _products(code, row, row_sum, columns, lines * QUAD, width, VECTORS)
    scale = unit.splat(FLOATS)
    for number, total in enumerate(sums):
        place = first + LANES * number
        scaled = scale * (units + place).load(FLOATS) * total.to_float(FLOATS)
        (out + place).store((start + place).load(FLOATS) + scaled)
