"""Primitives of the sieve: sums of table look-ups for the records of 64 leaves, all in registers.

A table of 256 bytes is four registers; permuting two of them by a register of labels looks up 64 bytes in
one instruction (AVX-512 VBMI: Intel since Ice Lake, AMD since Zen 4). For that the records are turned into
*planes*: plane j holds byte j of each record.
"""

from collections.abc import Sequence

from llvmlite import ir

from aggtree.engine.simd import emulation
from aggtree.engine.simd.builder import Array, Code, Pointer, Value
from aggtree.engine.simd.primitive import JIT, Int64, UInt8, UInt64, primitive
from aggtree.engine.simd.vector_code import BIT, INT8, INT64, processor_has

SIEVED = emulation.SIEVED
PLANES = 8
"""Planes made at once, of 8 x 8 bytes of each 8 records."""
NINE = PLANES + 1
"""Bytes of most records: a norm of one byte, and eight labels."""
SIEVE_BYTES = 17
"""Bytes of the longest record: two loads hold eight bytes of eight records."""
READ_AHEAD = 128
"""Bytes behind the records that may be read with them."""

_BYTES = ir.VectorType(INT8, SIEVED)
_QUADS = ir.VectorType(INT64, PLANES)


CAN_SIEVE = not JIT or processor_has("avx512vbmi")
"""Whether the processor looks up 64 bytes in one instruction; emulation does."""


def second_load(size: int) -> int:
    """Where the second 64 bytes begin that are read for 8 records: the two end with byte 7 of the last."""
    return max(0, (PLANES - 1) * size - (SIEVED - PLANES))


def _permute(code: Code, low: Value, numbers: Value, high: Value) -> Value:
    """Entries of two registers, chosen by the low 7 bits of each number."""
    return code.call("llvm.x86.avx512.vpermi2var.qi.512", _BYTES, low, numbers, high)


def _transposed(rows: list[Value]) -> list[Value]:
    """8 x 8 words of 8 bytes with rows and columns exchanged."""
    for distance in (1, 2, 4):
        kept = [lane & ~distance | (PLANES if lane & distance else 0) for lane in range(PLANES)]
        moved = [number + distance for number in kept]
        for lane in range(PLANES):
            if not lane & distance:
                first, second = rows[lane], rows[lane + distance]
                rows[lane], rows[lane + distance] = (
                    first.shuffled(second, kept),
                    first.shuffled(second, moved),
                )
    return [row.bits_as(_BYTES) for row in rows]


def _planes(code: Code, record: Pointer, size: Value, second: Value, index: Value) -> list[Value]:
    """Bytes 0..7 behind `record` of 64 records of `size` bytes, as 8 planes.

    The index brings the bytes of 8 records, from two loads, into the order of planes, 8 bytes of each; what
    is left is to transpose 8 x 8 words of 8 bytes, by exchanges at distance 1, 2 and 4.
    """
    rows = []
    for group in range(PLANES):
        place = record + size * (PLANES * group)
        low, high = place.load(_BYTES), (place + second).load(_BYTES)
        rows.append(_permute(code, low, index, high).bits_as(_QUADS))
    return _transposed(rows)


def _nine_planes(code: Code, record: Pointer) -> list[Value]:
    """The bytes of 64 records of 9, as 9 planes, from nine loads without a gap: loads are what takes time.

    Records 8 g .. 8 g + 7 begin with byte 8 g of load g and end in the next.
    """
    loads = [(record + SIEVED * number).load(_BYTES) for number in range(NINE)]
    rows = []
    for group in range(PLANES):
        places = [NINE * i + j + 8 * group for j in range(PLANES) for i in range(PLANES)]
        chosen = _permute(code, loads[group], code.lanes(places, _BYTES), loads[group + 1])
        rows.append(chosen.bits_as(_QUADS))
    last = None
    for number in range(0, NINE, 2):
        start = SIEVED * number
        places = [(NINE * i + PLANES - start) % (2 * SIEVED) for i in range(SIEVED)]
        high = loads[min(number + 1, NINE - 1)]
        chosen = _permute(code, loads[number], code.lanes(places, _BYTES), high)
        here = [int(NINE * i + PLANES >= start) for i in range(SIEVED)]
        mask = code.lanes(here, ir.VectorType(BIT, SIEVED))
        last = chosen if last is None else mask.select(chosen, last)
    assert last is not None
    return [*_transposed(rows), last]


def _look_up(code: Code, table: Pointer, labels: Value) -> Value:
    """Entries of a table of 256 bytes at 64 labels."""
    quarters = [(table + SIEVED * number).load(_BYTES) for number in range(4)]
    low = _permute(code, quarters[0], labels, quarters[1])
    high = _permute(code, quarters[2], labels, quarters[3])
    # Labels from 128 on have their sign set.
    return (labels < 0).select(high, low)


def _add_planes(code: Code, sums: Value, planes: Sequence[Value], tables: Pointer) -> Value:
    """Add the look-ups of planes in consecutive tables; a sum of more than 255 is 255."""
    for number, plane in enumerate(planes):
        entries = _look_up(code, tables + 256 * number, plane)
        sums = code.call(f"llvm.uadd.sat.v{SIEVED}i8", _BYTES, sums, entries)
    return sums


def _within(sums: Value, most: Value) -> Value:
    """Bit i states whether sum i is at most a limit."""
    return sums.unsigned_at_most(most.splat(_BYTES)).bits_as(INT64)


@primitive(emulation.sieve_64_of_nine)
def sieve_64_of_nine(code: Code, records: Array, place: Int64, tables: Array, most: UInt8) -> UInt64:
    """`sieve_64` for records of 9 bytes, all of which count; nothing behind them is read."""
    if not CAN_SIEVE:
        return code.constant(-1, INT64)
    planes = _nine_planes(code, records + place)
    return _within(_add_planes(code, code.constant(0, _BYTES), planes, tables), most)


@primitive(emulation.sieve_64)
def sieve_64(
    code: Code,
    records: Array,
    place: Int64,
    size: Int64,
    index: Array,
    tables: Array,
    whole: Int64,
    planes: Int64,
    most: UInt8,
) -> UInt64:
    """Bit i states whether Σ_j tables[j, byte j of record i] <= most, for the 64 records from `place` on.

    records : (b,) uint8, of `size` bytes each, at most 17; READ_AHEAD bytes follow the last one
    index : (64,) uint8, entry 8 j + i states where byte i * size + j is: that number below 64, and otherwise
        64 + its place behind byte `second_load(size)`
    tables : (>= planes, 256) uint8; planes : bytes of a record that count, of which `whole`, a multiple of
        PLANES, are made by eights, the others one by one
    """
    if not CAN_SIEVE:
        return code.constant(-1, INT64)
    over = size * (PLANES - 1) - (SIEVED - PLANES)
    second = (over > 0).select(over, code.constant(0, INT64))
    record, numbers = records + place, index.load(_BYTES)

    def add_planes(count: int, first: Value | int, stop: Value, sums: Value) -> Value:
        """Add planes first .. stop, `count` at a time."""

        def add(plane: Value, total: Value) -> list[Value]:
            made = _planes(code, record + plane, size, second, numbers)
            return [_add_planes(code, total, made[:count], tables + plane * 256)]

        return code.loop(first, stop, count, [sums], add, maybe_empty=True)[0]

    sums = add_planes(PLANES, 0, whole, code.constant(0, _BYTES))
    return _within(add_planes(1, whole, planes, sums), most)
