"""Primitives for rows of raw vectors: float products and squares, and half floats.

Sums are added in lanes, so they differ from a sum in order by rounding: they select rows, and exact distances
in a fixed order decide.
"""

from collections.abc import Sequence

from aggtree.engine.simd import emulation
from aggtree.engine.simd.builder import Array, Code, Value
from aggtree.engine.simd.primitive import Float32, Int32, Int64, primitive
from aggtree.engine.simd.vector_code import FLOAT, FLOATS, INT32, LANES

_SIGN, _MAGNITUDE = 0x8000, 0x7FFF
_HALF_SHIFT = 13
"""A float32 has so many more mantissa bits than a float16."""
_HALF_SCALE = 2.0**112
"""The exponents of a float16 and of a float32 with the same bits differ by this factor."""
_BRAIN_SHIFT = 16


def _summed(code: Code, total: Value) -> Value:
    """The sum of all lanes."""
    count = total.kind.count
    while count > 1:
        count //= 2
        total = total.shuffled(total, range(count)) + total.shuffled(total, range(count, 2 * count))
    return Value(code, code.ir.extract_element(total.ir, INT32(0)))


@primitive(emulation.sum_products)
def sum_products(code: Code, query: Array, values: Array, first: Int64, whole: Int64, sums: Array) -> None:
    """Set sums[0] to q·x and sums[1] to ‖x‖² over the first `whole` values, a multiple of LANES.

    query, values float32; x = values[first:]
    """
    row = values + first

    def add(j: Value, product: Value, square: Value) -> Sequence[Value]:
        asked, stored = (query + j).load(FLOATS), (row + j).load(FLOATS)
        return [
            code.fused_multiply_add(asked, stored, product),
            code.fused_multiply_add(stored, stored, square),
        ]

    zero = code.constant(0.0, FLOATS)
    product, square = code.loop(0, whole, LANES, [zero, zero], add, maybe_empty=True)
    _store(sums, _summed(code, product), 0)
    _store(sums, _summed(code, square), 1)


@primitive(emulation.sum_squares)
def sum_squares(code: Code, query: Array, values: Array, first: Int64, whole: Int64, sums: Array) -> None:
    """Set sums[0] to ‖q - x‖² over the first `whole` values, a multiple of LANES; as `sum_products`."""
    row = values + first

    def add(j: Value, even: Value, odd: Value) -> Sequence[Value]:
        difference = (query + j).load(FLOATS) - (row + j).load(FLOATS)
        # Two sums in turn, so that one addition need not wait for the one before.
        return [odd, code.fused_multiply_add(difference, difference, even)]

    zero = code.constant(0.0, FLOATS)
    even, odd = code.loop(0, whole, LANES, [zero, zero], add, maybe_empty=True)
    _store(sums, _summed(code, even + odd), 0)


def _store(array: Array, value: Value, place: int) -> None:
    array.code.ir.store(value.ir, (array + place).ir)


@primitive(emulation.float16_value)
def float16_value(code: Code, bits: Int32) -> Float32:
    """The finite float16 number with these bits."""
    magnitude = ((bits & _MAGNITUDE) << _HALF_SHIFT).bits_as(FLOAT) * _HALF_SCALE
    return (magnitude.bits_as(INT32) ^ ((bits & _SIGN) << 16)).bits_as(FLOAT)


@primitive(emulation.bfloat16_value)
def bfloat16_value(code: Code, bits: Int32) -> Float32:
    """The bfloat16 number with these bits, the upper half of those of a float32."""
    return (bits << _BRAIN_SHIFT).bits_as(FLOAT)
