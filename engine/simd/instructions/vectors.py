"""Primitives of innermost loops that numba's vectorizer does not optimize well.

`score_row` sums 16-bit rows and keeps running minima beside the sums, `add_squares` sums words without
storing the sum.
"""

from collections.abc import Sequence

from llvmlite import ir

from aggtree.engine.simd import emulation
from aggtree.engine.simd.builder import Array, Code, Pointer, Value
from aggtree.engine.simd.primitive import Element, Int32, Int64, primitive
from aggtree.engine.simd.vector_code import BIT, EIGHT_FLOATS, FLOATS, INT32, INT64, INTS, LANES, SHORTS

CHUNK = 4 * LANES
"""Words of a dictionary are padded to a multiple of CHUNK wherever `score_row` reads them."""


def _sum_table_rows(code: Code, table: Pointer, offsets: Pointer, count: Value, first: Value) -> list[Value]:
    """Σ_{j < count} table[offsets[j] + first ...], CHUNK entries as vectors."""

    def add_row(j: Value, *sums: Value) -> list[Value]:
        row = table + ((offsets + j).scalar() + first)
        return [total + (row + LANES * part).load(SHORTS) for part, total in enumerate(sums)]

    zeros = [code.constant(0, SHORTS)] * (CHUNK // LANES)
    return code.loop(0, count, 1, zeros, add_row, maybe_empty=True)


@primitive(emulation.score_row)
def score_row(
    code: Code,
    table: Array,
    offsets: Array,
    count: Int64,
    own: Array,
    first: Int64,
    base: Int32,
    words: Int64,
    scores: Array,
    place: Int64,
    minima: Array,
    lane: Int64,
) -> None:
    """scores[place + k] = base + own[first + k] + Σ_{j < count} table[offsets[j] + k] for k < words.

    minima[lane + i] becomes the least score of the words k ≡ i (mod LANES). table int16, whose
    sums must fit 16 bits; own, scores, minima and base int32; words a multiple of CHUNK.
    """
    bases, own_terms = base.splat(INTS), own + first

    def score_chunk(k: Value, least: Value) -> list[Value]:
        for part, cross in enumerate(_sum_table_rows(code, table, offsets, count, k)):
            position = k + LANES * part
            score = cross.sign_extended(INTS) + bases + (own_terms + position).load(INTS)
            (scores + (place + position)).store(score)
            least = least.minimum(score)
        return [least]

    (least,) = code.loop(0, words, CHUNK, [code.constant(2**31 - 1, INTS)], score_chunk)
    (minima + lane).store(least)


@primitive(emulation.row_minima)
def row_minima(code: Code, values: Array, row: Int64, words: Int64, minima: Array) -> None:
    """minima[i] = least values[row, k] over k ≡ i (mod LANES), k < words (a multiple of LANES), float32."""
    entries = values + row * values.shape[1]

    def lower(k: Value, least: Value) -> list[Value]:
        return [least.minimum((entries + k).load(FLOATS))]

    (least,) = code.loop(0, words, LANES, [code.constant(float("inf"), FLOATS)], lower)
    minima.store(least)


@primitive(emulation.count_at_most)
def count_at_most(code: Code, values: Array, count: Int64, limit: Int32) -> Int64:
    """How many of values[:count] are at most `limit`; int32, count a positive multiple of LANES."""
    limits = limit.splat(INTS)

    def add(i: Value, total: Value) -> list[Value]:
        # A condition that holds is -1.
        return [total - ((values + i).load(INTS) <= limits).sign_extended(INTS)]

    (totals,) = code.loop(0, count, LANES, [code.constant(0, INTS)], add)
    return code.call(f"llvm.vector.reduce.add.v{LANES}i32", INT32, totals).sign_extended(INT64)


@primitive(emulation.lanes_at_most)
def lanes_at_most(code: Code, values: Array, place: Int64, limit: Element) -> Int64:
    """Bit i states whether values[place + i] is at most `limit`, for i < LANES; float32 or int32."""
    vector = ir.VectorType(limit.kind, LANES)
    within = (values + place).load(vector) <= limit.splat(vector)
    return within.bits_as(ir.IntType(LANES)).zero_extended(INT64)


@primitive(emulation.lowest_bit)
def lowest_bit(code: Code, mask: Int64) -> Int64:
    """Number of the lowest set bit of a mask that is not zero."""
    return Value(code, code.ir.cttz(mask.ir, BIT(1)))


def _add_square_registers(
    code: Code,
    start: Pointer,
    words: Array,
    rows: Pointer,
    span: tuple[Value, Value],
    done: Value,
    registers: int,
    totals: Value,
) -> tuple[Value, Value]:
    """The sums of `add_squares` after the dimensions from `done` on that fill so many registers at once.

    Returns them, and the first dimension that is left over.
    """
    dimension = words.shape[1]
    end = dimension - dimension % (8 * registers)

    def square(j: Value, total: Value) -> Sequence[Value]:
        places = [j + 8 * part for part in range(registers)]

        def add_word(k: Value, *sums: Value) -> Sequence[Value]:
            word = words + (rows + k).scalar() * dimension
            return [
                part + (word + place).load(EIGHT_FLOATS) for part, place in zip(sums, places, strict=True)
            ]

        begin = [(start + place).load(EIGHT_FLOATS) for place in places]
        for value in code.loop(span[0], span[1], 1, begin, add_word, maybe_empty=True):
            total = code.fused_multiply_add(value, value, total)
        return [total]

    (totals,) = code.loop(done, end, 8 * registers, [totals], square, maybe_empty=True)
    return totals, end


@primitive(emulation.add_squares)
def add_squares(
    code: Code, start: Array, words: Array, rows: Array, first: Int64, last: Int64, sums: Array
) -> None:
    """sums[i] = Σ v_j² over j ≡ i (mod 8) in whole eights; v = start + Σ_k words[rows[k]], k = first..last.

    start (d,), words (n, d) and sums (8,) float32, rows int64. v is never stored; words are added one after
    another, so that each v_j is the same number as if every sum had been stored.
    """
    totals, done = code.constant(0.0, EIGHT_FLOATS), code.constant(0, INT64)
    # Four registers at once while there are so many left, then one.
    for registers in (4, 1):
        totals, done = _add_square_registers(code, start, words, rows, (first, last), done, registers, totals)
    sums.store(totals)
