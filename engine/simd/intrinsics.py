"""Intrinsics that numba lacks: unaligned loads, prefetching, and calls without dispatch."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import typeof as _typeof

from aggtree.engine.simd import emulation
from aggtree.engine.simd.builder import Array, Code, Pointer, Value
from aggtree.engine.simd.primitive import Int64, UInt64, primitive
from aggtree.engine.simd.vector_code import INT8, INT32, INT64

_type_of: Any = _typeof
_READ, _DATA = 0, 1
_ALL_CACHES, _ALL_BUT_THE_FIRST = 3, 2


def _byte(array: Array, offset: Value) -> Pointer:
    """The address of a byte of an array, whatever its elements are."""
    code = array.code
    return Pointer(code, code.ir.bitcast(array.ir, INT8.as_pointer())) + offset


def _prefetch(array: Array, offset: Value, caches: int) -> None:
    code = array.code
    address = Value(code, _byte(array, offset).ir)
    flags = (code.constant(flag, INT32) for flag in (_READ, caches, _DATA))
    code.call("llvm.prefetch.p0", ir.VoidType(), address, *flags)


@primitive(emulation.load_8_bytes)
def load_8_bytes(code: Code, array: Array, offset: Int64) -> UInt64:
    """8 bytes from an offset on as a little-endian number; the caller stays inside the array."""
    return _byte(array, offset).load(INT64)


@primitive(emulation.prefetch)
def prefetch(code: Code, array: Array, offset: Int64) -> None:
    """Prefetch the cache line of a byte of an array; any offset is harmless."""
    _prefetch(array, offset, _ALL_CACHES)


@primitive(emulation.prefetch)
def prefetch_early(code: Code, array: Array, offset: Int64) -> None:
    """The same into the second-level cache, which allows more outstanding loads: for later reads."""
    _prefetch(array, offset, _ALL_BUT_THE_FIRST)


def compiled_entry(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """The machine code of a kernel for arguments of exactly these types.

    A call through the kernel itself looks up the types of all its arrays each time, which takes as long
    as a short query.
    """
    compile_for: Any = getattr(function, "compile", None)
    if compile_for is None:  # the JIT is switched off
        return function
    entry: Callable[..., Any] = compile_for(tuple(_type_of(argument) for argument in arguments))
    return entry
