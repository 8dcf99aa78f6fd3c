"""What numba has no name for: unaligned loads, prefetching, comparing 16 numbers, calls without delay."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import typeof as _typeof
from numba.core import cgutils, types
from numba.extending import intrinsic

_tools: Any = cgutils
_type_of: Any = _typeof
_BYTE = ir.IntType(8)
_FLAG = ir.IntType(32)
_READ, _DATA = 0, 1
_ALL_CACHES, _ALL_BUT_THE_FIRST = 3, 2


def _address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Address of a byte of an array."""
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return _tools.pointer_add(builder, array.data, arguments[1], return_type=_BYTE.as_pointer())


def _load_8_bytes(typing_context: Any, array: Any, offset: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature, arguments)
        word = builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(array, types.intp), generate


def _prefetch_to(caches: int) -> Callable[..., Any]:
    def prefetch(typing_context: Any, array: Any, offset: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address = _address(context, builder, signature, arguments)
            kind = ir.FunctionType(ir.VoidType(), [address.type, _FLAG, _FLAG, _FLAG])
            function = _tools.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
            builder.call(function, [address, _FLAG(_READ), _FLAG(caches), _FLAG(_DATA)])
            return context.get_dummy_value()

        return types.void(array, types.intp), generate

    return prefetch


def _within_16(typing_context: Any, array: Any, index: Any, bound: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        vector = ir.VectorType(data.type.pointee, 16)
        values = builder.load(
            builder.bitcast(builder.gep(data, [arguments[1]]), vector.as_pointer()), align=4
        )
        single = builder.insert_element(ir.Constant(vector, ir.Undefined), arguments[2], _FLAG(0))
        zeros = ir.Constant(ir.VectorType(_FLAG, 16), [0] * 16)
        bounds = builder.shuffle_vector(single, single, zeros)
        if isinstance(array.dtype, types.Float):
            within = builder.fcmp_ordered("<=", values, bounds)
        else:
            within = builder.icmp_signed("<=", values, bounds)
        return builder.zext(builder.bitcast(within, ir.IntType(16)), ir.IntType(64))

    return types.int64(array, types.intp, array.dtype), generate


def _lowest_bit(typing_context: Any, mask: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), generate


load_8_bytes: Any = intrinsic(_load_8_bytes)
"""load_8_bytes(array, offset): 8 bytes from offset on as a little-endian number; the caller keeps inside."""

prefetch: Any = intrinsic(_prefetch_to(_ALL_CACHES))
"""prefetch(array, offset): start to bring a byte of an array into the cache; any offset is harmless."""

prefetch_early: Any = intrinsic(_prefetch_to(_ALL_BUT_THE_FIRST))
"""The same into the second-level cache, which awaits more at once: for what is read later."""

within_16: Any = intrinsic(_within_16)
"""within_16(array, index, bound): bit j says whether array[index + j] <= bound; float32 or int32."""

lowest_bit: Any = intrinsic(_lowest_bit)
"""lowest_bit(mask): number of the lowest bit that is set."""


def compiled_entry(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """The machine code of a kernel for arguments of these types, to be called with no others.

    A call through the kernel itself looks up the types of all its arrays each time, which takes as long
    as a short query.
    """
    compile_for: Any = getattr(function, "compile", None)
    if compile_for is None:  # numba is switched off
        return function
    entry: Callable[..., Any] = compile_for(tuple(_type_of(argument) for argument in arguments))
    return entry
