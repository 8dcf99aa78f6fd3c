"""Generates LLVM code from readable arithmetic: values with operators, pointers, loops.

    limits = limit.splat(INTS)

    def count(i, total):
        return [total - ((values + i).load(INTS) <= limits).sign_extended(INTS)]

    (total,) = code.loop(0, length, LANES, [code.constant(0, INTS)], count)

No operator computes anything: each appends an instruction to the function being compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from aggtree.engine.simd.vector_code import FLOAT, INT32, INT64

_tools: Any = cgutils


def _element(kind: Any) -> Any:
    return kind.element if isinstance(kind, ir.VectorType) else kind


def _is_float(kind: Any) -> bool:
    return bool(_element(kind) == FLOAT)


def _element_bytes(kind: Any) -> int:
    return 4 if _is_float(kind) else int(_element(kind).width) // 8


@dataclass(frozen=True, eq=False)
class Value:
    """A scalar or vector in a register; integers have a sign. A number beside it becomes a constant."""

    code: Code
    ir: Any

    @property
    def kind(self) -> Any:
        """Its LLVM type."""
        return self.ir.type

    def _binary(self, name: str, other: Operand) -> Value:
        return Value(self.code, getattr(self.code.ir, name)(self.ir, self.code.operand(other, self.kind)))

    def _compare(self, sign: str, other: Operand) -> Value:
        compare = self.code.ir.fcmp_ordered if _is_float(self.kind) else self.code.ir.icmp_signed
        return Value(self.code, compare(sign, self.ir, self.code.operand(other, self.kind)))

    def __add__(self, other: Operand) -> Value:
        return self._binary("fadd" if _is_float(self.kind) else "add", other)

    def __sub__(self, other: Operand) -> Value:
        return self._binary("fsub" if _is_float(self.kind) else "sub", other)

    def __mul__(self, other: Operand) -> Value:
        return self._binary("fmul" if _is_float(self.kind) else "mul", other)

    def __mod__(self, other: Operand) -> Value:
        return self._binary("srem", other)

    def __and__(self, other: Operand) -> Value:
        return self._binary("and_", other)

    def __xor__(self, other: Operand) -> Value:
        return self._binary("xor", other)

    def __lshift__(self, other: Operand) -> Value:
        return self._binary("shl", other)

    def __rshift__(self, other: Operand) -> Value:
        return self._binary("ashr", other)

    def __lt__(self, other: Operand) -> Value:
        return self._compare("<", other)

    def __le__(self, other: Operand) -> Value:
        return self._compare("<=", other)

    def __gt__(self, other: Operand) -> Value:
        return self._compare(">", other)

    def shifted_down(self, other: Operand) -> Value:
        """The bits shifted towards the lowest, zeros behind them."""
        return self._binary("lshr", other)

    def truncated(self, kind: Any) -> Value:
        """The low bits."""
        return self._convert("trunc", kind)

    def unsigned_at_most(self, other: Value) -> Value:
        """Lanes whose bytes, taken without a sign, do not exceed those of another."""
        return Value(self.code, self.code.ir.icmp_unsigned("<=", self.ir, other.ir))

    def select(self, yes: Value, no: Value) -> Value:
        """`yes` where this condition holds, `no` elsewhere."""
        return Value(self.code, self.code.ir.select(self.ir, yes.ir, no.ir))

    def minimum(self, other: Value) -> Value:
        """The lesser of two; this one when they are equal or not comparable."""
        return (other < self).select(other, self)

    def _convert(self, name: str, kind: Any) -> Value:
        return Value(self.code, getattr(self.code.ir, name)(self.ir, kind))

    def sign_extended(self, kind: Any) -> Value:
        """The same integers in more bits; a condition that holds becomes -1."""
        return self._convert("sext", kind)

    def zero_extended(self, kind: Any) -> Value:
        """The same bits, with zeros above them."""
        return self._convert("zext", kind)

    def to_float(self, kind: Any) -> Value:
        """Integers as floats, rounded."""
        return self._convert("sitofp", kind)

    def to_integer(self, kind: Any) -> Value:
        """Floats as integers, truncated."""
        return self._convert("fptosi", kind)

    def bits_as(self, kind: Any) -> Value:
        """The same bits seen as another type of the same size."""
        return self._convert("bitcast", kind)

    def splat(self, kind: Any) -> Value:
        """A vector with this scalar in every lane."""
        empty = ir.Constant(kind, ir.Undefined)
        first = Value(self.code, self.code.ir.insert_element(empty, self.ir, INT32(0)))
        return first.shuffled(Value(self.code, empty), [0] * kind.count)

    def shuffled(self, other: Value, places: Sequence[int]) -> Value:
        """Lanes chosen by number, those of `other` counted behind these."""
        mask = ir.Constant(ir.VectorType(INT32, len(places)), [INT32(place) for place in places])
        return Value(self.code, self.code.ir.shuffle_vector(self.ir, other.ir, mask))


Operand = Value | int | float


@dataclass(frozen=True, eq=False)
class Pointer:
    """An address among elements of one type: `pointer + index` is that of a later element."""

    code: Code
    ir: Any

    def __add__(self, index: Operand) -> Pointer:
        return Pointer(self.code, self.code.ir.gep(self.ir, [self.code.operand(index, INT64)]))

    def scalar(self) -> Value:
        """The element here."""
        return Value(self.code, self.code.ir.load(self.ir))

    def load(self, kind: Any) -> Value:
        """A vector, or a wider number, from here on; aligned as the elements are."""
        alignment = _element_bytes(self.ir.type.pointee)
        pointer = self.code.ir.bitcast(self.ir, kind.as_pointer())
        return Value(self.code, self.code.ir.load(pointer, align=alignment))

    def store(self, value: Value) -> None:
        """Write a vector from here on."""
        pointer = self.code.ir.bitcast(self.ir, value.kind.as_pointer())
        self.code.ir.store(value.ir, pointer, align=_element_bytes(value.kind))


@dataclass(frozen=True, eq=False)
class Array(Pointer):
    """An array argument: the address of its first element, and its shape."""

    shape: tuple[Value, ...]


Body = Callable[..., Sequence[Value]]


class Code:
    """The function a primitive is compiled into."""

    def __init__(self, builder: Any) -> None:
        self.ir = builder

    def operand(self, value: Operand, kind: Any) -> Any:
        """The LLVM operand of a value, or of a number as a constant of a type."""
        return value.ir if isinstance(value, Value) else self.constant(value, kind).ir

    def constant(self, number: float, kind: Any) -> Value:
        """A number, in every lane of a vector type."""
        if isinstance(kind, ir.VectorType):
            return Value(self, ir.Constant(kind, [ir.Constant(kind.element, number)] * kind.count))
        return Value(self, ir.Constant(kind, number))

    def lanes(self, numbers: Sequence[int], kind: Any) -> Value:
        """A constant with a number of its own in each lane."""
        return Value(self, ir.Constant(kind, [ir.Constant(kind.element, number) for number in numbers]))

    def call(self, name: str, result: Any, *operands: Value) -> Value:
        """Call one of LLVM's own functions."""
        function_type = ir.FunctionType(result, [operand.ir.type for operand in operands])
        function = _tools.get_or_insert_function(self.ir.module, function_type, name)
        return Value(self, self.ir.call(function, [operand.ir for operand in operands]))

    def fused_multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """a · b + c, rounded once."""
        return self.call(f"llvm.fma.v{a.kind.count}f32", a.kind, a, b, c)

    def loop(
        self,
        start: Operand,
        stop: Operand,
        step: int,
        carried: Sequence[Value],
        body: Body,
        *,
        maybe_empty: bool = False,
    ) -> list[Value]:
        """Carry values through body(i, *values) for i = start, start + step, ... below stop.

        body : returns the values of the next round. maybe_empty : whether `stop` may not be above `start`;
            otherwise the first round is made without a test.
        """
        first, last = self.operand(start, INT64), self.operand(stop, INT64)
        before = self.ir.block
        inside, after = self.ir.append_basic_block("loop"), self.ir.append_basic_block("loop.end")
        if maybe_empty:
            self.ir.cbranch(self.ir.icmp_signed("<", first, last), inside, after)
        else:
            self.ir.branch(inside)

        self.ir.position_at_end(inside)
        i, values = self.ir.phi(INT64), [self.ir.phi(value.kind) for value in carried]
        updated = body(Value(self, i), *(Value(self, value) for value in values))
        following = self.ir.add(i, INT64(step))
        # A loop in the body has moved on to another block.
        end = self.ir.block
        starts, nexts = [first, *(v.ir for v in carried)], [following, *(v.ir for v in updated)]
        for phi, initial, value in zip([i, *values], starts, nexts, strict=True):
            phi.add_incoming(initial, before)
            phi.add_incoming(value, end)
        self.ir.cbranch(self.ir.icmp_signed("<", following, last), inside, after)

        self.ir.position_at_end(after)
        return self._merged(carried, before, updated, end) if maybe_empty else list(updated)

    def _merged(
        self, some: Sequence[Value], from_block: Any, others: Sequence[Value], other_block: Any
    ) -> list[Value]:
        """The values from the last predecessor block."""
        merged = []
        for one, other in zip(some, others, strict=True):
            phi = self.ir.phi(one.kind)
            phi.add_incoming(one.ir, from_block)
            phi.add_incoming(other.ir, other_block)
            merged.append(Value(self, phi))
        return merged

    def switch(self, number: Value, cases: Sequence[int], write: Callable[[int], None]) -> None:
        """Write code for each case, a constant there, of which the one equal to `number` is executed."""
        after = self.ir.append_basic_block("switch.end")
        choice = self.ir.switch(number.ir, after)
        for case in cases:
            block = self.ir.append_basic_block(f"case.{case}")
            choice.add_case(ir.Constant(number.kind, case), block)
            self.ir.position_at_end(block)
            write(case)
            self.ir.branch(after)
        self.ir.position_at_end(after)
