"""The decorator of primitives: instructions numba has no name for, written in LLVM by `builder`.

    @primitive(emulation.count_at_most)
    def count_at_most(code: Code, values: Array, count: Int64, limit: Int32) -> Int64:
        ...

Kernels call it as count_at_most(values, count, limit). The annotations are its signature: an array stands for
arrays of any type, the others are cast to theirs. Where the JIT is switched off (`NUMBA_DISABLE_JIT=1`),
kernels are plain Python and call the emulation instead, which has the same parameters.
"""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

from numba import types
from numba.core import cgutils
from numba.core import config as _config
from numba.extending import intrinsic

from aggtree.engine.simd.builder import Array, Code, Value

_tools: Any = cgutils
_settings: Any = _config

JIT: bool = not _settings.DISABLE_JIT
"""Whether kernels are compiled."""

Int64 = Annotated[Value, types.int64]
Int32 = Annotated[Value, types.int32]
UInt64 = Annotated[Value, types.uint64]
UInt8 = Annotated[Value, types.uint8]
Float32 = Annotated[Value, types.float32]
Element = Annotated[Value, "element"]
"""Of the type of the first array's elements."""


def _numba_type(annotation: Any, given: Any, first_array: Any) -> Any:
    """The type a parameter is declared with."""
    if annotation is Array:
        return given
    (declared,) = annotation.__metadata__
    return first_array.dtype if declared == "element" else declared


def _operand(context: Any, code: Code, kind: Any, value: Any) -> Any:
    """An argument as `builder` has it."""
    if not isinstance(kind, types.Array):
        return Value(code, value)
    array = context.make_array(kind)(context, code.ir, value)
    shape = tuple(Value(code, length) for length in _tools.unpack_tuple(code.ir, array.shape))
    return Array(code, array.data, shape)


def _intrinsic(write: Callable[..., Any]) -> Any:
    """The numba intrinsic whose code `write` writes."""
    hints = get_type_hints(write, include_extras=True)
    result = hints.pop("return")
    result_type = types.void if result is type(None) else result.__metadata__[0]
    annotations = [hint for hint in hints.values() if hint is not Code]

    def declare(_: Any, *given: Any) -> Any:
        first_array = next((kind for kind in given if isinstance(kind, types.Array)), None)
        declared = [
            _numba_type(annotation, kind, first_array)
            for annotation, kind in zip(annotations, given, strict=True)
        ]

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = Code(builder)
            operands = [
                _operand(context, code, kind, value)
                for kind, value in zip(signature.args, arguments, strict=True)
            ]
            found = write(code, *operands)
            return context.get_dummy_value() if found is None else found.ir

        return result_type(*declared), generate

    declare.__name__, declare.__doc__ = write.__name__, write.__doc__
    declare.__signature__ = inspect.signature(write)  # type: ignore[attr-defined]
    return intrinsic(declare)


def primitive(emulation: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Make a function that writes LLVM code callable from kernels; `emulation` does the same in Python."""

    def decorate(write: Callable[..., Any]) -> Any:
        return _intrinsic(write) if JIT else emulation

    return decorate
