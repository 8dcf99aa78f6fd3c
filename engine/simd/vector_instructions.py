"""LLVM vector code for the innermost loops, which numba's own vectorizer leaves on the table.

`score_row` sums 16-bit rows and keeps running minima beside the sums, `add_squares` sums words without
storing the sum.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from aggtree.engine.simd.vector_code import (
    EIGHT,
    FLOATS,
    INT32,
    INT64,
    INTS,
    LANES,
    SHORTS,
    Generator,
    array_data,
    declare,
    load,
    row_length,
    splat,
    store,
)

CHUNK = 4 * LANES
"""Words of a dictionary are padded to a multiple of CHUNK wherever `score_row` reads them."""


def _sum_table_rows(builder: Any, table: Any, offsets: Any, count: Any, first: Any) -> list[Any]:
    """Σ_{j < count} table[offsets[j] + first ...], CHUNK entries as vectors; the builder goes on after it."""
    none = ir.Constant(SHORTS, [0] * LANES)
    parts = range(CHUNK // LANES)
    start = builder.block
    rows, end = builder.append_basic_block("sum.rows"), builder.append_basic_block("sum.end")
    builder.cbranch(builder.icmp_signed(">", count, INT64(0)), rows, end)

    builder.position_at_end(rows)
    j = builder.phi(INT64)
    sums = [builder.phi(SHORTS) for _ in parts]
    row = builder.gep(table, [builder.add(builder.load(builder.gep(offsets, [j])), first)])
    totals = [
        builder.add(sums[part], load(builder, builder.gep(row, [INT64(LANES * part)]), SHORTS))
        for part in parts
    ]
    following = builder.add(j, INT64(1))
    for value, initial, updated in zip(
        [j, *sums], [INT64(0)] + [none] * len(parts), [following, *totals], strict=True
    ):
        value.add_incoming(initial, start)
        value.add_incoming(updated, rows)
    builder.cbranch(builder.icmp_signed("<", following, count), rows, end)

    builder.position_at_end(end)
    found = [builder.phi(SHORTS) for _ in parts]
    for part in parts:
        found[part].add_incoming(none, start)
        found[part].add_incoming(totals[part], rows)
    return found


def _score_row(
    _: Any,
    table: Any,
    offsets: Any,
    count: Any,
    own: Any,
    first: Any,
    base: Any,
    words: Any,
    scores: Any,
    place: Any,
    minima: Any,
    lane: Any,
) -> tuple[Any, Generator]:
    """scores[place + k] = base + own[first + k] + Σ_{j < count} table[offsets[j] + k] for k < words.

    minima[lane + i] becomes the least score of the words k ≡ i (mod LANES). table int16, whose
    sums must fit 16 bits; own, scores, minima and base int32; words a multiple of CHUNK.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        table_data, offset_data, own_data, score_data, minimum_data = (
            array_data(context, builder, signature, args, number) for number in (0, 1, 3, 7, 9)
        )
        count, words, place, lane = args[2], args[6], args[8], args[10]
        bases = splat(builder, args[5], INTS)
        own_data = builder.gep(own_data, [args[4]])
        before = builder.block
        chunk, after = builder.append_basic_block("score.chunk"), builder.append_basic_block("score.end")
        builder.branch(chunk)

        builder.position_at_end(chunk)
        k, least = builder.phi(INT64), builder.phi(INTS)
        cross, lowest = _sum_table_rows(builder, table_data, offset_data, count, k), least
        for part in range(CHUNK // LANES):
            position = builder.add(k, INT64(LANES * part))
            terms = load(builder, builder.gep(own_data, [position]), INTS)
            score = builder.add(builder.add(builder.sext(cross[part], INTS), bases), terms)
            store(builder, score, builder.gep(score_data, [builder.add(place, position)]))
            lowest = builder.select(builder.icmp_signed("<", score, lowest), score, lowest)
        following = builder.add(k, INT64(CHUNK))
        k.add_incoming(INT64(0), before)
        k.add_incoming(following, builder.block)
        least.add_incoming(ir.Constant(INTS, [2**31 - 1] * LANES), before)
        least.add_incoming(lowest, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, words), chunk, after)

        builder.position_at_end(after)
        store(builder, lowest, builder.gep(minimum_data, [lane]))
        return context.get_dummy_value()

    signature = types.void(
        table,
        offsets,
        types.int64,
        own,
        types.int64,
        types.int32,
        types.int64,
        scores,
        types.int64,
        minima,
        types.int64,
    )
    return signature, generate


def _row_minima(_: Any, values: Any, row: Any, words: Any, minima: Any) -> tuple[Any, Generator]:
    """minima[i] = least values[row, k] over k ≡ i (mod LANES), k < words (a multiple of LANES), float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value_data, minimum_data = (
            array_data(context, builder, signature, args, number) for number in (0, 3)
        )
        first = builder.mul(args[1], row_length(context, builder, signature, args, 0))
        before = builder.block
        loop, after = builder.append_basic_block("minima"), builder.append_basic_block("minima.end")
        builder.branch(loop)

        builder.position_at_end(loop)
        k, least = builder.phi(INT64), builder.phi(FLOATS)
        value = load(builder, builder.gep(value_data, [builder.add(first, k)]), FLOATS)
        lowest = builder.select(builder.fcmp_ordered("<", value, least), value, least)
        following = builder.add(k, INT64(LANES))
        k.add_incoming(INT64(0), before)
        k.add_incoming(following, loop)
        least.add_incoming(ir.Constant(FLOATS, [float("inf")] * LANES), before)
        least.add_incoming(lowest, loop)
        builder.cbranch(builder.icmp_signed("<", following, args[2]), loop, after)

        builder.position_at_end(after)
        store(builder, lowest, builder.gep(minimum_data, [INT64(0)]))
        return context.get_dummy_value()

    return types.void(values, types.int64, types.int64, minima), generate


def _count_at_most(_: Any, values: Any, count: Any, limit: Any) -> tuple[Any, Generator]:
    """How many of values[:count] are at most `limit`; int32, count a positive multiple of LANES."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = array_data(context, builder, signature, args, 0)
        limits = splat(builder, args[2], INTS)
        before = builder.block
        loop, after = builder.append_basic_block("count"), builder.append_basic_block("count.end")
        builder.branch(loop)

        builder.position_at_end(loop)
        i, total = builder.phi(INT64), builder.phi(INTS)
        found = builder.icmp_signed("<=", load(builder, builder.gep(data, [i]), INTS), limits)
        more = builder.sub(total, builder.sext(found, INTS))
        following = builder.add(i, INT64(LANES))
        i.add_incoming(INT64(0), before)
        i.add_incoming(following, loop)
        total.add_incoming(ir.Constant(INTS, [0] * LANES), before)
        total.add_incoming(more, loop)
        builder.cbranch(builder.icmp_signed("<", following, args[1]), loop, after)

        builder.position_at_end(after)
        add = declare(builder.module, ir.FunctionType(INT32, [INTS]), f"llvm.vector.reduce.add.v{LANES}i32")
        return builder.sext(builder.call(add, [more]), INT64)

    return types.int64(values, types.int64, types.int32), generate


def _lanes_at_most(_: Any, values: Any, place: Any, limit: Any) -> tuple[Any, Generator]:
    """Bit i tells whether values[place + i] is at most `limit`, for i < LANES; int32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = array_data(context, builder, signature, args, 0)
        values = load(builder, builder.gep(data, [args[1]]), INTS)
        found = builder.icmp_signed("<=", values, splat(builder, args[2], INTS))
        return builder.zext(builder.bitcast(found, ir.IntType(LANES)), INT64)

    return types.int64(values, types.int64, types.int32), generate


def _lowest_bit(_: Any, mask: Any) -> tuple[Any, Generator]:
    """Number of the lowest set bit of a mask that is not zero."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.int64(types.int64), generate


def _add_squares(
    _: Any, start: Any, words: Any, rows: Any, first: Any, last: Any, sums: Any
) -> tuple[Any, Generator]:
    """sums[i] = Σ v_j² over j ≡ i (mod 8) in whole eights; v = start + Σ_k words[rows[k]], k = first..last.

    start (d,), words (n, d) and sums (8,) float32, rows int64. v is never stored; words are added one after
    another, so that each v_j is the same number as if every sum had been stored.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start_data, word_data, row_data, sum_data = (
            array_data(context, builder, signature, args, number) for number in (0, 1, 2, 5)
        )
        dimension = row_length(context, builder, signature, args, 1)
        total = ir.Constant(EIGHT, [0.0] * 8)
        done = INT64(0)
        # Four registers at once while there are so many left, then one.
        for registers in (4, 1):
            step = INT64(8 * registers)
            end = builder.sub(dimension, builder.srem(dimension, step))
            sources = (start_data, word_data, row_data)
            total = _squares_loop(
                builder, sources, dimension, (args[3], args[4]), (done, end), registers, total
            )
            done = end
        store(builder, total, sum_data)
        return context.get_dummy_value()

    signature = types.void(start, words, rows, types.int64, types.int64, sums)
    return signature, generate


def _squares_loop(
    builder: Any, sources: Any, dimension: Any, words: Any, span: Any, registers: int, total: Any
) -> Any:
    """The loop of `_add_squares` over a span of dimensions; returns the sums so far."""
    start_data, word_data, row_data = sources
    fma = declare(builder.module, ir.FunctionType(EIGHT, [EIGHT] * 3), "llvm.fma.v8f32")
    before = builder.block
    head, inner, tail, after = (
        builder.append_basic_block(name)
        for name in ("squares", "squares.words", "squares.tail", "squares.end")
    )
    builder.cbranch(builder.icmp_signed("<", *span), head, after)

    builder.position_at_end(head)
    j, sums = builder.phi(INT64), builder.phi(EIGHT)
    places = [builder.add(j, INT64(8 * part)) for part in range(registers)]
    values = [load(builder, builder.gep(start_data, [place]), EIGHT) for place in places]
    builder.cbranch(builder.icmp_signed("<", *words), inner, tail)

    builder.position_at_end(inner)
    k, parts = builder.phi(INT64), [builder.phi(EIGHT) for _ in places]
    row = builder.mul(builder.load(builder.gep(row_data, [k])), dimension)
    added = [
        builder.fadd(part, load(builder, builder.gep(word_data, [builder.add(row, place)]), EIGHT))
        for part, place in zip(parts, places, strict=True)
    ]
    following = builder.add(k, INT64(1))
    for value, initial, updated in zip([k, *parts], [words[0], *values], [following, *added], strict=True):
        value.add_incoming(initial, head)
        value.add_incoming(updated, inner)
    builder.cbranch(builder.icmp_signed("<", following, words[1]), inner, tail)

    builder.position_at_end(tail)
    finals, squares = [builder.phi(EIGHT) for _ in places], sums
    for final, value, updated in zip(finals, values, added, strict=True):
        final.add_incoming(value, head)
        final.add_incoming(updated, inner)
    for final in finals:
        squares = builder.call(fma, [final, final, squares])
    next_j = builder.add(j, INT64(8 * registers))
    j.add_incoming(span[0], before)
    j.add_incoming(next_j, tail)
    sums.add_incoming(total, before)
    sums.add_incoming(squares, tail)
    builder.cbranch(builder.icmp_signed("<", next_j, span[1]), head, after)

    builder.position_at_end(after)
    result = builder.phi(EIGHT)
    result.add_incoming(total, before)
    result.add_incoming(squares, tail)
    return result


score_row: Any = intrinsic(_score_row)
row_minima: Any = intrinsic(_row_minima)
count_at_most: Any = intrinsic(_count_at_most)
lanes_at_most: Any = intrinsic(_lanes_at_most)
lowest_bit: Any = intrinsic(_lowest_bit)
add_squares: Any = intrinsic(_add_squares)
