"""LLVM vector code of the sieve: sums of table look-ups for the records of 64 leaves, all in registers.

A table of 256 bytes is four registers; permuting two of them by a register of labels looks up 64 bytes in
one instruction (AVX-512 VBMI: Intel since Ice Lake, AMD since Zen 4). For that the records are turned into
*planes*: plane j holds byte j of each record.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from aggtree.engine.simd.vector_code import INT32, INT64, Generator, array_data, declare, load, processor_has

SIEVED = 64
"""Leaves sieved at once."""
PLANES = 8
"""Planes made at once, of 8 x 8 bytes of each 8 records."""
NINE = PLANES + 1
"""Bytes of most records: a norm of one byte, and eight labels."""
SIEVE_BYTES = 17
"""Bytes of the longest record: two loads hold eight bytes of eight records."""
SIEVE_REACH = 128
"""Bytes behind the records that may be read with them."""

_BYTES = ir.VectorType(ir.IntType(8), SIEVED)
_QUADS = ir.VectorType(INT64, PLANES)


CAN_SIEVE = processor_has("avx512vbmi")
"""Whether the processor looks up 64 bytes in one instruction."""


def second_load(size: int) -> int:
    """Where the second 64 bytes begin that are read for 8 records: the two end with byte 7 of the last."""
    return max(0, (PLANES - 1) * size - (SIEVED - PLANES))


def _permute(builder: Any, low: Any, numbers: Any, high: Any) -> Any:
    """Entries of two registers, chosen by the low 7 bits of each number."""
    kind = ir.FunctionType(_BYTES, [_BYTES] * 3)
    function = declare(builder.module, kind, "llvm.x86.avx512.vpermi2var.qi.512")
    return builder.call(function, [low, numbers, high])


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """8 x 8 words of 8 bytes with rows and columns exchanged."""
    for distance in (1, 2, 4):
        lanes = [lane for lane in range(PLANES) if not lane & distance]
        kept = [lane & ~distance | (PLANES if lane & distance else 0) for lane in range(PLANES)]
        masks = [
            ir.Constant(ir.VectorType(INT32, PLANES), [INT32(number + moved) for number in kept])
            for moved in (0, distance)
        ]
        for lane in lanes:
            first, second = rows[lane], rows[lane + distance]
            rows[lane], rows[lane + distance] = (
                builder.shuffle_vector(first, second, mask) for mask in masks
            )
    return [builder.bitcast(row, _BYTES) for row in rows]


def _planes(builder: Any, record: Any, size: Any, second: Any, index: Any) -> list[Any]:
    """Bytes 0..7 behind `record` of 64 records of `size` bytes, as 8 planes.

    The index brings the bytes of 8 records, from two loads, into the order of planes, 8 bytes of each; what
    is left is to transpose 8 x 8 words of 8 bytes, by exchanges at distance 1, 2 and 4.
    """
    rows = []
    for group in range(PLANES):
        place = builder.gep(record, [builder.mul(size, INT64(PLANES * group))])
        low, high = (load(builder, builder.gep(place, [start]), _BYTES) for start in (INT64(0), second))
        rows.append(builder.bitcast(_permute(builder, low, index, high), _QUADS))
    return _transposed(builder, rows)


def _look_up(builder: Any, table: Any, labels: Any) -> Any:
    """Entries of a table of 256 bytes at 64 labels."""
    quarters = [load(builder, builder.gep(table, [INT64(SIEVED * number)]), _BYTES) for number in range(4)]
    low = _permute(builder, quarters[0], labels, quarters[1])
    high = _permute(builder, quarters[2], labels, quarters[3])
    upper = builder.icmp_signed("<", labels, ir.Constant(_BYTES, [0] * SIEVED))
    return builder.select(upper, high, low)


def _add_planes(builder: Any, sums: Any, planes: list[Any], tables: Any) -> Any:
    """Add the look-ups of planes in consecutive tables; a sum of more than 255 is 255."""
    kind = ir.FunctionType(_BYTES, [_BYTES] * 2)
    add = declare(builder.module, kind, f"llvm.uadd.sat.v{SIEVED}i8")
    for number, plane in enumerate(planes):
        table = builder.gep(tables, [INT64(256 * number)])
        sums = builder.call(add, [sums, _look_up(builder, table, plane)])
    return sums


def _add_sets(builder: Any, sums: Any, first: Any, stop: Any, step: int, add: Any) -> Any:
    """The sums after `add(sums, plane)` for plane first, first + step, ... below stop."""
    before = builder.block
    loop, after = builder.append_basic_block("sieve"), builder.append_basic_block("sieve.end")
    builder.cbranch(builder.icmp_signed("<", first, stop), loop, after)

    builder.position_at_end(loop)
    plane, total = builder.phi(INT64), builder.phi(_BYTES)
    updated, following = add(total, plane), builder.add(plane, INT64(step))
    for phi, initial, value in ((plane, first, following), (total, sums, updated)):
        phi.add_incoming(initial, before)
        phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following, stop), loop, after)

    builder.position_at_end(after)
    found = builder.phi(_BYTES)
    found.add_incoming(sums, before)
    found.add_incoming(updated, loop)
    return found


def _nine_planes(builder: Any, record: Any) -> list[Any]:
    """The bytes of 64 records of 9, as 9 planes, from nine loads without a gap: loads are what takes time.

    Records 8 g .. 8 g + 7 begin with byte 8 g of load g and end in the next.
    """
    loads = [load(builder, builder.gep(record, [INT64(SIEVED * number)]), _BYTES) for number in range(NINE)]
    rows = []
    for group in range(PLANES):
        places = [NINE * i + j + 8 * group for j in range(PLANES) for i in range(PLANES)]
        chosen = _permute(builder, loads[group], _constant(places), loads[group + 1])
        rows.append(builder.bitcast(chosen, _QUADS))
    last = None
    for number in range(0, NINE, 2):
        start = SIEVED * number
        high = loads[min(number + 1, NINE - 1)]
        places = [(NINE * i + PLANES - start) % (2 * SIEVED) for i in range(SIEVED)]
        chosen = _permute(builder, loads[number], _constant(places), high)
        here = [int(NINE * i + PLANES >= start) for i in range(SIEVED)]
        mask = ir.Constant(ir.VectorType(ir.IntType(1), SIEVED), here)
        last = chosen if last is None else builder.select(mask, chosen, last)
    return [*_transposed(builder, rows), last]


def _constant(numbers: list[int]) -> Any:
    return ir.Constant(_BYTES, numbers)


def _within(builder: Any, sums: Any, most: Any) -> Any:
    """Bit i says whether sum i is at most so much."""
    limit = builder.insert_element(ir.Constant(_BYTES, ir.Undefined), most, INT32(0))
    zeros = ir.Constant(ir.VectorType(INT32, SIEVED), [0] * SIEVED)
    limits = builder.shuffle_vector(limit, limit, zeros)
    return builder.bitcast(builder.icmp_unsigned("<=", sums, limits), INT64)


def _sieve_64_of_nine(_: Any, records: Any, place: Any, tables: Any, most: Any) -> tuple[Any, Generator]:
    """What `sieve_64` says of records of 9 bytes, all of which count; nothing behind them is read."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not CAN_SIEVE:
            return INT64(-1)
        record_data, table_data = (array_data(context, builder, signature, args, number) for number in (0, 2))
        planes = _nine_planes(builder, builder.gep(record_data, [args[1]]))
        sums = _add_planes(builder, _constant([0] * SIEVED), planes, table_data)
        return _within(builder, sums, args[3])

    return types.uint64(records, types.int64, tables, types.uint8), generate


def _sieve_64(
    _: Any, records: Any, place: Any, size: Any, index: Any, tables: Any, whole: Any, planes: Any, most: Any
) -> tuple[Any, Generator]:
    """Bit i says whether Σ_j tables[j, byte j of record i] <= most, for the 64 records from `place` on.

    records : (b,) uint8, of `size` bytes each, at most 17; SIEVE_REACH bytes follow the last one
    index : (64,) uint8, entry 8 j + i says where byte i * size + j is: that number below 64, and otherwise
        64 + its place behind byte `second_load(size)`
    tables : (>= planes, 256) uint8; planes : bytes of a record that count, of which `whole`, a multiple of
        PLANES, are made by eights, the others one by one
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not CAN_SIEVE:
            return INT64(-1)
        record_data, index_data, table_data = (
            array_data(context, builder, signature, args, number) for number in (0, 3, 4)
        )
        size, whole, planes = args[2], args[5], args[6]
        over = builder.sub(builder.mul(size, INT64(PLANES - 1)), INT64(SIEVED - PLANES))
        second = builder.select(builder.icmp_signed(">", over, INT64(0)), over, INT64(0))
        record, numbers = builder.gep(record_data, [args[1]]), load(builder, index_data, _BYTES)

        def add(count: int) -> Any:
            def add_some(sums: Any, plane: Any) -> Any:
                made = _planes(builder, builder.gep(record, [plane]), size, second, numbers)
                table = builder.gep(table_data, [builder.mul(plane, INT64(256))])
                return _add_planes(builder, sums, made[:count], table)

            return add_some

        sums = ir.Constant(_BYTES, [0] * SIEVED)
        sums = _add_sets(builder, sums, INT64(0), whole, PLANES, add(PLANES))
        sums = _add_sets(builder, sums, whole, planes, 1, add(1))
        return _within(builder, sums, args[7])

    signature = types.uint64(
        records, types.int64, types.int64, index, tables, types.int64, types.int64, types.uint8
    )
    return signature, generate


sieve_64: Any = intrinsic(_sieve_64)
sieve_64_of_nine: Any = intrinsic(_sieve_64_of_nine)
