"""LLVM vector code of scores from one row times many columns of bytes: exact sums, the same everywhere.

Processors with AVX-512 VNNI (Intel since Cascade Lake, AMD since Zen 4) multiply and add four bytes of each
column in one instruction. It wants them side by side: four rows of columns are interleaved in registers.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from aggtree.engine.vector_code import (
    INT8,
    INT16,
    INT32,
    INT64,
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

AT_ONCE = 4
"""Dimensions of one step."""

_Sums = list[Any]


HAS_BYTE_PRODUCTS = processor_has("avx512vnni") and processor_has("avx512vl")


def _interleaved(builder: Any, first: Any, second: Any, element: int) -> tuple[Any, Any]:
    """Elements of two vectors in turns, in each 16 bytes: those of the lower eight bytes, of the upper."""
    count = first.type.count
    within = 16 // element
    halves = []
    for start in (0, within // 2):
        places = [lane + start + i for lane in range(0, count, within) for i in range(within // 2)]
        mask = [INT32(number) for place in places for number in (place, count + place)]
        halves.append(builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(INT32, count), mask)))
    return halves[0], halves[1]


def _dot_products(builder: Any, sums: _Sums, row: Any, lines: list[Any]) -> _Sums:
    """Add four bytes of the row times those of each column; sums[p] is of columns 4 p..4 p + 3 of each 16.

    The instruction takes one side without sign: 128 is added to the columns, and what that makes of the row
    is summed last, and taken off by `_in_order`.
    """
    count = lines[0].type.count
    kind = ir.VectorType(INT32, count // 4)
    dot = declare(builder.module, ir.FunctionType(kind, [kind] * 3), f"llvm.x86.avx512.vpdpbusd.{8 * count}")
    flip = ir.Constant(lines[0].type, [INT8(-128)] * count)
    lines = [builder.xor(line, flip) for line in lines]
    pairs = [_interleaved(builder, a, b, 1) for a, b in (lines[:2], lines[2:])]
    shorts = ir.VectorType(INT16, count // 2)
    fours = []
    for half in range(2):
        a, b = (builder.bitcast(pair[half], shorts) for pair in pairs)
        fours += [builder.bitcast(four, kind) for four in _interleaved(builder, a, b, 2)]
    row_bytes = builder.load(builder.bitcast(row, INT32.as_pointer()), align=1)
    factors = splat(builder, row_bytes, kind)
    shift = builder.bitcast(flip, kind)
    return [
        builder.call(dot, [total, four, factors]) for total, four in zip(sums, [*fours, shift], strict=True)
    ]


def _in_order(builder: Any, sums: _Sums) -> Any:
    """The sums of `_dot_products` in the order of the columns."""
    count = sums[0].type.count
    *sums, shift = sums
    sums = [builder.sub(total, shift) for total in sums]
    wide = ir.VectorType(INT32, 2 * count)
    lower, upper = (
        builder.shuffle_vector(a, b, ir.Constant(wide, [INT32(i) for i in range(2 * count)]))
        for a, b in (sums[:2], sums[2:])
    )
    places = [count * p + lane + i for lane in range(0, count, 4) for p in range(4) for i in range(4)]
    return builder.shuffle_vector(
        lower, upper, ir.Constant(ir.VectorType(INT32, 4 * count), [INT32(place) for place in places])
    )


def _pair_products(builder: Any, sums: _Sums, row: Any, lines: list[Any]) -> _Sums:
    """Add four bytes of the row times those of each column, two by two: what two make fits 16 bits."""
    count = lines[0].type.count
    shorts, ints = ir.VectorType(INT16, count), ir.VectorType(INT32, count)
    products = [
        builder.mul(
            splat(builder, builder.sext(builder.load(builder.gep(row, [INT64(number)])), INT16), shorts),
            builder.sext(line, shorts),
        )
        for number, line in enumerate(lines)
    ]
    (total,) = sums
    for a, b in (products[:2], products[2:]):
        total = builder.add(total, builder.sext(builder.add(a, b), ints))
    return [total]


def _products(builder: Any, row: Any, first: Any, dimension: Any, width: Any, count: int) -> Any:
    """Σ_j row[j] · first[j · width + k] for k < count, in a loop over j."""
    multiply, parts, lanes = (
        (_dot_products, 5, count // 4) if HAS_BYTE_PRODUCTS else (_pair_products, 1, count)
    )
    kind = ir.VectorType(INT32, lanes)
    before = builder.block
    loop, after = builder.append_basic_block("bytes"), builder.append_basic_block("bytes.end")
    builder.branch(loop)

    builder.position_at_end(loop)
    j, totals = builder.phi(INT64), [builder.phi(kind) for _ in range(parts)]
    lines = [
        load(
            builder,
            builder.gep(first, [builder.mul(builder.add(j, INT64(i)), width)]),
            ir.VectorType(INT8, count),
        )
        for i in range(AT_ONCE)
    ]
    updated = multiply(builder, totals, builder.gep(row, [j]), lines)
    following = builder.add(j, INT64(AT_ONCE))
    zero = ir.Constant(kind, [INT32(0)] * lanes)
    starts = [INT64(0)] + [zero] * parts
    for phi, initial, value in zip([j, *totals], starts, [following, *updated], strict=True):
        phi.add_incoming(initial, before)
        phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following, dimension), loop, after)

    builder.position_at_end(after)
    return _in_order(builder, updated) if HAS_BYTE_PRODUCTS else updated[0]


def _score_bytes(
    _: Any,
    row: Any,
    columns: Any,
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

    For k < vectors · LANES, with p_k = Σ_j row[j] · columns[j, column + k].
    row (d,), columns (d, n) int8 from -127 on, d a multiple of AT_ONCE; offsets (n,) and the scalars float32;
    ranks (r,) int32; vectors is a literal, 1, 2 or 4.
    """
    count = LANES * vectors.literal_value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row_data, column_data, offset_data, rank_data = (
            array_data(context, builder, signature, args, number) for number in (0, 1, 4, 8)
        )
        dimension, width = unpack_tuple(
            builder, context.make_array(signature.args[1])(context, builder, args[1]).shape
        )
        first = builder.gep(column_data, [args[2]])
        sums = _products(builder, row_data, first, dimension, width, count)
        floats = ir.VectorType(ir.FloatType(), count)
        base, step, unit = (splat(builder, args[number], floats) for number in (5, 6, 7))
        offsets = load(builder, builder.gep(offset_data, [args[2]]), floats)
        products = builder.fmul(unit, builder.sitofp(sums, floats))
        scores = builder.fadd(base, builder.fmul(step, builder.fadd(offsets, products)))
        zero = ir.Constant(floats, [ir.Constant(ir.FloatType(), 0.0)] * count)
        scores = builder.select(builder.fcmp_ordered(">", scores, zero), scores, zero)
        found = builder.bitcast(scores, ir.VectorType(INT32, count))
        store(builder, found, builder.gep(rank_data, [args[9]]))
        return context.get_dummy_value()

    scalars = (types.float32,) * 3
    signature = types.void(row, columns, types.int64, vectors, offsets, *scalars, ranks, types.int64)
    return signature, generate


score_bytes: Any = intrinsic(prefer_literal=True)(_score_bytes)
