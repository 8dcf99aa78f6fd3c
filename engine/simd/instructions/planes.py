"""Primitive of the plane scan: sums of table look-ups for 32 leaves whose labels take four bits.

A dictionary of 16 words has a table of 16 bytes: one register, in which a *shuffle* looks up a label in every
lane at once. All processors of the last fifteen years have it: SSSE3, AVX2 and AVX-512 on x86, NEON on ARM.
Labels lie in blocks of 32 leaves, two labels to a byte:

    block   | plane 0: 32 bytes | plane 1: 32 bytes | ... | plane P - 1 |
    byte i of plane p           label 2 p of leaf i in its low half, label 2 p + 1 in its high half
"""

from llvmlite import ir

from aggtree.engine.simd import emulation
from aggtree.engine.simd.builder import Array, Code, Pointer, Value
from aggtree.engine.simd.primitive import JIT, Int64, UInt64, primitive
from aggtree.engine.simd.vector_code import INT8, INT16, INT32, INT64, processor_has

BLOCK_LEAVES = 32
"""Leaves of a block."""
TABLE_BYTES = 32
"""Bytes of a table: its 16 entries twice, for registers of 32 bytes."""
LARGEST_ENTRY = 127
"""Of a table: two entries are added in a byte."""
WEIGHTED_SHIFT = 3
"""Entries of a weighted plane count this power of two times as much."""
SPARE_BYTES = 32
"""Bytes behind the last block that may be read with it."""

_SHUFFLES = (
    ("avx512bw", 64, "llvm.x86.avx512.pshuf.b.512"),
    ("avx2", 32, "llvm.x86.avx2.pshuf.b"),
    ("ssse3", 16, "llvm.x86.ssse3.pshuf.b.128"),
    ("neon", 16, "llvm.aarch64.neon.tbl1.v16i8"),
)


def _widest_shuffle() -> tuple[int, str]:
    """Bytes of the widest register that can be shuffled, and the instruction; 16 and "" without one."""
    found = [(size, name) for feature, size, name in _SHUFFLES if processor_has(feature)]
    return found[0] if JIT and found else (16, "")


REGISTER, _SHUFFLE = _widest_shuffle()
_BYTES = ir.VectorType(INT8, REGISTER)
_SHORTS = ir.VectorType(INT16, REGISTER // 2)


def _look_up(code: Code, table: Value, labels: Value) -> Value:
    """The entry of a table at each label, in all lanes."""
    if _SHUFFLE:
        return code.call(_SHUFFLE, _BYTES, table, labels)
    # One lane after another: slow, and the same.
    found = code.constant(0, _BYTES)
    for lane in range(REGISTER):
        label = Value(code, code.ir.extract_element(labels.ir, INT32(lane)))
        entry = Value(code, code.ir.extract_element(table.ir, label.zero_extended(INT32).ir))
        found = Value(code, code.ir.insert_element(found.ir, entry.ir, INT32(lane)))
    return found


def _pairs(code: Code, labels: Pointer, low: Pointer, high: Pointer) -> Value:
    """Entries of both labels of each byte, added; a byte each."""
    both = labels.load(_BYTES)
    first, second = both & 15, both.shifted_down(4)
    return _look_up(code, low.load(_BYTES), first) + _look_up(code, high.load(_BYTES), second)


def _even_and_odd(pairs: Value) -> tuple[Value, Value]:
    """Bytes 0, 2, ... and bytes 1, 3, ... as numbers of 16 bits."""
    shorts = pairs.bits_as(_SHORTS)
    return shorts & 255, shorts.shifted_down(8)


def _shifted(values: list[Value]) -> list[Value]:
    return [value << WEIGHTED_SHIFT for value in values]


def _halves(value: Value) -> tuple[Value, Value]:
    count = value.kind.count // 2
    return value.shuffled(value, range(count)), value.shuffled(value, range(count, 2 * count))


def _in_order(even: Value, odd: Value) -> Value:
    """Numbers of even and odd leaves, one after the other."""
    count = even.kind.count
    return even.shuffled(odd, [lane // 2 + count * (lane % 2) for lane in range(2 * count)])


@primitive(emulation.scan_block)
def scan_block(
    code: Code,
    planes: Array,
    place: Int64,
    count: Int64,
    weighted: Int64,
    tables: Array,
    limit: Int64,
    sums: Array,
) -> UInt64:
    """Set sums[i] to Σ of the table entries of leaf i of a block; bit i is set if it is at most `limit`.

    planes : (b,) uint8; the block begins at `place`, SPARE_BYTES follow the last one
    count : planes, the first of which counts 2**WEIGHTED_SHIFT times if `weighted` is 1
    tables : (2, p, TABLE_BYTES) uint8, entries of low labels, then of high ones, as `table_row` places them;
        zeros elsewhere, p > count + 1
    sums : (BLOCK_LEAVES,) uint16
    """
    block, low = planes + place, tables + 0
    high = low + tables.shape[1] * TABLE_BYTES
    step = max(1, REGISTER // BLOCK_LEAVES)
    registers = max(1, BLOCK_LEAVES // REGISTER)
    zero = code.constant(0, _SHORTS)

    def entries(plane: Value | int, row: Value | int) -> list[Value]:
        """Entries of even and odd leaves of each register of a plane."""
        found: list[Value] = []
        for part in range(registers):
            labels, offset = block + plane * BLOCK_LEAVES + part * REGISTER, row * TABLE_BYTES
            found += _even_and_odd(_pairs(code, labels, low + offset, high + offset))
        return found

    def add(plane: Value, *totals: Value) -> list[Value]:
        pairs = zip(totals, entries(plane, plane + weighted), strict=True)
        return [total + more for total, more in pairs]

    nothing = [zero] * (2 * registers)
    heavy = code.loop(0, weighted, 1, nothing, lambda _, *__: _shifted(entries(0, 0)), maybe_empty=True)
    totals = code.loop(weighted, count, step, heavy, add, maybe_empty=True)
    if step == 2:
        totals = [first + second for first, second in map(_halves, totals)]
    parts = [_in_order(*totals[2 * part : 2 * part + 2]) for part in range(registers)]
    if registers == 2:
        parts = [parts[0].shuffled(parts[1], range(BLOCK_LEAVES))]
    (sums + 0).store(parts[0])
    limits = limit.truncated(INT16).splat(parts[0].kind)
    return parts[0].unsigned_at_most(limits).bits_as(INT32).zero_extended(INT64)


def table_row(plane: int, weighted: bool) -> int:
    """Row of the tables of a plane: behind those of a weighted one is a row of zeros."""
    return plane + (weighted and plane > 0)
