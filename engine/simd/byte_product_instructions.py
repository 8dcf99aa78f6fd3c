"""LLVM vector code of scores from one row times many columns of bytes: exact sums, the same everywhere.

Processors with AVX-512 VNNI (Intel since Cascade Lake, AMD since Zen 4) multiply and add four bytes of each
column in one instruction, where they lie side by side: columns come in *quads* of four dimensions.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from aggtree.engine.simd.vector_code import (
    INT8,
    INT16,
    INT32,
    INT64,
    INTS,
    LANES,
    Generator,
    array_data,
    declare,
    load,
    processor_has,
    splat,
    store,
    unpack_tuple,
)

QUAD = 4
"""Dimensions of one step."""

ZERO = 128
"""The byte of a difference of nothing: the instruction takes one side without sign."""

VECTORS = 8
"""Most vectors of columns in one sweep over the dimensions: the sums of so many wait for each other least."""

HAS_BYTE_PRODUCTS = processor_has("avx512vnni")

_QUADS = ir.VectorType(INT8, QUAD * LANES)
_SHORT_QUADS = ir.VectorType(INT16, QUAD * LANES)
_PAIRS = ir.VectorType(INT32, 2 * LANES)


def _dot_products(builder: Any, total: Any, row_quad: Any, quads: Any) -> Any:
    """Add Σ row · byte over a quad of each column; the bytes have no sign, see `_difference_products`."""
    dot = declare(builder.module, ir.FunctionType(INTS, [INTS] * 3), "llvm.x86.avx512.vpdpbusd.512")
    return builder.call(dot, [total, builder.bitcast(quads, INTS), splat(builder, row_quad, INTS)])


def _pair_products(builder: Any, total: Any, row_quad: Any, quads: Any) -> Any:
    """The same of differences, two by two: what two make fits 16 bits, and their sum is kept in 32."""
    row = builder.sext(builder.bitcast(splat(builder, row_quad, INTS), _QUADS), _SHORT_QUADS)
    differences = builder.xor(quads, ir.Constant(_QUADS, [INT8(ZERO)] * _QUADS.count))
    products = builder.bitcast(builder.mul(row, builder.sext(differences, _SHORT_QUADS)), _PAIRS)
    half = ir.Constant(_PAIRS, [INT32(16)] * _PAIRS.count)
    low, high = builder.ashr(builder.shl(products, half), half), builder.ashr(products, half)
    return builder.add(total, builder.add(low, high))


def _difference_products(builder: Any, totals: list[Any], row_sum: Any) -> list[Any]:
    """What the sums are of the differences: Σ row · (byte - ZERO), one for each column."""
    if HAS_BYTE_PRODUCTS:
        excess = splat(builder, builder.mul(row_sum, INT32(ZERO)), INTS)
        return [builder.sub(total, excess) for total in totals]
    every_second = [ir.Constant(INTS, [INT32(2 * lane + start) for lane in range(LANES)]) for start in (0, 1)]
    return [
        builder.add(*(builder.shuffle_vector(total, total, places) for places in every_second))
        for total in totals
    ]


def _products(
    builder: Any, row: Any, row_sum: Any, first: Any, dimension: Any, width: Any, vectors: int
) -> list[Any]:
    """Σ_j row[j] · difference j of LANES columns, for so many vectors of them, in a loop over quads.

    first : the first quad of the first column; those of all `width` columns lie side by side
    """
    multiply, kind = (_dot_products, INTS) if HAS_BYTE_PRODUCTS else (_pair_products, _PAIRS)
    before = builder.block
    loop, after = builder.append_basic_block("bytes"), builder.append_basic_block("bytes.end")
    builder.branch(loop)

    builder.position_at_end(loop)
    j, totals = builder.phi(INT64), [builder.phi(kind) for _ in range(vectors)]
    row_quad = builder.load(builder.bitcast(builder.gep(row, [j]), INT32.as_pointer()), align=1)
    line = builder.gep(first, [builder.mul(j, width)])
    updated = []
    for number, total in enumerate(totals):
        quads = load(builder, builder.gep(line, [INT64(QUAD * LANES * number)]), _QUADS)
        updated.append(multiply(builder, total, row_quad, quads))
    following = builder.add(j, INT64(QUAD))
    starts = [INT64(0)] + [ir.Constant(kind, [INT32(0)] * kind.count)] * vectors
    for phi, initial, value in zip([j, *totals], starts, [following, *updated], strict=True):
        phi.add_incoming(initial, before)
        phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following, dimension), loop, after)

    builder.position_at_end(after)
    return _difference_products(builder, updated, row_sum)


def _store_ranks(
    builder: Any, sums: list[Any], offsets: Any, base: Any, step: Any, unit: Any, ranks: Any
) -> None:
    """ranks[k] = bits of max(0, base + step · (offsets[k] + unit · sum k)), LANES of them at a time."""
    floats = ir.VectorType(ir.FloatType(), LANES)
    base, step, unit = (splat(builder, scalar, floats) for scalar in (base, step, unit))
    zero = ir.Constant(floats, [ir.Constant(ir.FloatType(), 0.0)] * LANES)
    for number, total in enumerate(sums):
        own = load(builder, builder.gep(offsets, [INT64(LANES * number)]), floats)
        products = builder.fmul(unit, builder.sitofp(total, floats))
        scores = builder.fadd(base, builder.fmul(step, builder.fadd(own, products)))
        scores = builder.select(builder.fcmp_ordered(">", scores, zero), scores, zero)
        place = builder.gep(ranks, [INT64(LANES * number)])
        store(builder, builder.bitcast(scores, INTS), place)


def _score_bytes(
    _: Any,
    row: Any,
    row_sum: Any,
    quads: Any,
    column: Any,
    vectors: Any,
    offsets: Any,
    base: Any,
    step: Any,
    unit: Any,
    ranks: Any,
    place: Any,
) -> tuple[Any, Generator]:
    """ranks[place + k] = bits of max(0, base + step · (offsets[column + k] + unit · p_k)).

    For k < vectors · LANES, with p_k = Σ_j row[j] · (quads[j // QUAD, column + k, j % QUAD] - ZERO).
    row (d,) int8 from -127 on, row_sum its sum, d a multiple of QUAD; quads (d / QUAD, n, QUAD) uint8;
    offsets (n,) and the scalars float32; ranks (r,) int32; vectors from 1 to VECTORS.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row_data, quad_data, offset_data, rank_data = (
            array_data(context, builder, signature, args, number) for number in (0, 2, 5, 9)
        )
        lines, width, _ = unpack_tuple(
            builder, context.make_array(signature.args[2])(context, builder, args[2]).shape
        )
        first = builder.gep(quad_data, [builder.mul(args[3], INT64(QUAD))])
        dimension = builder.mul(lines, INT64(QUAD))
        own, out = builder.gep(offset_data, [args[3]]), builder.gep(rank_data, [args[10]])
        after = builder.append_basic_block("scored")
        choice = builder.switch(args[4], after)
        for count in range(1, VECTORS + 1):
            block = builder.append_basic_block(f"score.{count}")
            choice.add_case(INT64(count), block)
            builder.position_at_end(block)
            sums = _products(builder, row_data, args[1], first, dimension, width, count)
            _store_ranks(builder, sums, own, args[6], args[7], args[8], out)
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    scalars = (types.float32,) * 3
    signature = types.void(
        row, types.int32, quads, types.int64, types.int64, offsets, *scalars, ranks, types.int64
    )
    return signature, generate


score_bytes: Any = intrinsic(_score_bytes)
