"""Primitives of encoding with dictionaries of up to 16 words: the scores behind a path are one vector.

A path is 16 bytes, one for each dictionary of its stage: the row of the tables of inner products that belongs
to its label there. A key orders scores with the path and the word they belong to:

    key   | score above the least, at most 2^21 - 1 | path: 6 bits | word: 4 bits |
"""

from llvmlite import ir

from aggtree.engine.simd import emulation
from aggtree.engine.simd.builder import Array, Code, Value
from aggtree.engine.simd.primitive import Int32, Int64, primitive
from aggtree.engine.simd.vector_code import BIT, INT8, INT16, INT32, INT64, INTS, LANES, SHORTS, processor_has

NO_KEY = emulation.NO_KEY
_PATH = ir.VectorType(INT8, LANES)
_COMPRESSES = processor_has("avx512f")


@primitive(emulation.score_short_paths)
def score_short_paths(
    code: Code,
    table: Array,
    first: Int64,
    paths: Array,
    path: Int64,
    count: Int64,
    own: Array,
    column: Int64,
    base: Array,
    live: Int64,
    scores: Array,
) -> Int32:
    """scores[p · LANES + k] = base[p] + own[column + k] + Σ_{j < count} table[first + r · LANES + k].

    For each path p < live, r = paths[path + p · LANES + j], and k < LANES; returns the least score.
    table int16, whose sums must fit 16 bits; paths uint8; own, base and scores int32.
    """
    own_terms, rows = (own + column).load(INTS), table + first

    def score_path(p: Value, least: Value) -> list[Value]:
        labels = paths + (path + p * LANES)

        def add_row(j: Value, total: Value) -> list[Value]:
            row = (labels + j).scalar().zero_extended(INT64) * LANES
            return [total + (rows + row).load(SHORTS)]

        (cross,) = code.loop(0, count, 1, [code.constant(0, SHORTS)], add_row, maybe_empty=True)
        score = cross.sign_extended(INTS) + (base + p).scalar().splat(INTS) + own_terms
        (scores + p * LANES).store(score)
        return [least.minimum(score)]

    (least,) = code.loop(0, live, 1, [code.constant(2**31 - 1, INTS)], score_path)
    return code.call(f"llvm.vector.reduce.smin.v{LANES}i32", INT32, least)


def _bits_of(mask: Value) -> Value:
    """How many lanes of a condition hold."""
    bits = mask.bits_as(INT16)
    return Value(mask.code, mask.code.ir.ctpop(bits.ir)).zero_extended(INT64)


@primitive(emulation.collect_keys)
def collect_keys(code: Code, scores: Array, live: Int64, limit: Int32, least: Int32, keys: Array) -> Int64:
    """Put the keys of all scores[: live · LANES] up to `limit` into keys, path by path; return their number.

    LANES keys behind the last become NO_KEY. keys and scores int32.
    """
    limits, leasts, lanes = limit.splat(INTS), least.splat(INTS), code.lanes(range(LANES), INTS)
    largest = code.constant(emulation.LARGEST_GAP, INTS)

    def collect(p: Value, found: Value) -> list[Value]:
        score = (scores + p * LANES).load(INTS)
        within = score <= limits
        labels = (p << 4).truncated(INT32).splat(INTS) + lanes
        key = ((score - leasts).minimum(largest) << 10) + labels
        if _COMPRESSES:
            _compress(code, key, keys, found, within)
            return [found + _bits_of(within)]
        # Each is written, and the next over it where it is not within.
        for lane in range(LANES):
            one = Value(code, code.ir.extract_element(key.ir, INT32(lane)))
            yes = Value(code, code.ir.extract_element(within.ir, INT32(lane)))
            code.ir.store(one.ir, (keys + found).ir)
            found = found + yes.zero_extended(INT64)
        return [found]

    (found,) = code.loop(0, live, 1, [code.constant(0, INT64)], collect)
    (keys + found).store(code.constant(NO_KEY, INTS))
    return found


def _compress(code: Code, vector: Value, target: Array, place: Value, within: Value) -> None:
    """Store the lanes within, side by side."""
    pointer = target + place
    kinds = [vector.kind, pointer.ir.type, ir.VectorType(BIT, LANES)]
    name = f"llvm.masked.compressstore.v{LANES}i32"
    function = code.ir.module.globals.get(name) or ir.Function(
        code.ir.module, ir.FunctionType(ir.VoidType(), kinds), name
    )
    code.ir.call(function, [vector.ir, pointer.ir, within.ir])


@primitive(emulation.rank_of_key)
def rank_of_key(code: Code, keys: Array, count: Int64, key: Int32) -> Int64:
    """How many of keys[:count] are less than `key`; count a positive multiple of LANES."""
    limits = key.splat(INTS)

    def add(i: Value, total: Value) -> list[Value]:
        return [total + _bits_of((keys + i).load(INTS) < limits)]

    (total,) = code.loop(0, count, LANES, [code.constant(0, INT64)], add)
    return total


@primitive(emulation.copy_path)
def copy_path(code: Code, paths: Array, source: Int64, target: Int64) -> None:
    """paths[target : target + 16] = paths[source : source + 16], bytes."""
    (paths + target).store((paths + source).load(_PATH))
