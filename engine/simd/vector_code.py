"""What writes LLVM vector code: types, loads and stores, array data; used by the `*_instructions` modules.

Vectors are 8 or 16 lanes wide and LLVM splits them into whatever registers the machine has.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.core import codegen as _codegen
from numba.core import config as _config

LANES = 16

INT8, INT16, INT32, INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOATS = ir.VectorType(ir.FloatType(), LANES)
EIGHT = ir.VectorType(ir.FloatType(), 8)
BYTES = ir.VectorType(ir.IntType(8), LANES)
SHORTS, INTS = ir.VectorType(INT16, LANES), ir.VectorType(INT32, LANES)

Generator = Callable[[Any, Any, Any, Any], Any]

unpack_tuple: Any = cgutils.unpack_tuple
declare: Any = cgutils.get_or_insert_function


def processor_has(feature: str) -> bool:
    """Whether kernels are compiled for a processor with a feature, in LLVM's word for it."""
    codegen: Any = _codegen
    config: Any = _config
    features = codegen.get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    return f"+{feature}" in features.split(",")


def array_data(context: Any, builder: Any, signature: Any, args: Any, number: int) -> Any:
    return context.make_array(signature.args[number])(context, builder, args[number]).data


def row_length(context: Any, builder: Any, signature: Any, args: Any, number: int) -> Any:
    array = context.make_array(signature.args[number])(context, builder, args[number])
    return unpack_tuple(builder, array.shape)[1]


def load(builder: Any, pointer: Any, vector: Any) -> Any:
    """Load a vector that is aligned as its elements are."""
    value = builder.load(builder.bitcast(pointer, vector.as_pointer()))
    value.align = element_bytes(vector)
    return value


def store(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer())).align = element_bytes(value.type)


def element_bytes(vector: Any) -> int:
    return 4 if vector.element == ir.FloatType() else int(vector.element.width) // 8


def splat(builder: Any, scalar: Any, vector: Any) -> Any:
    empty = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(empty, scalar, INT32(0))
    zeros = ir.Constant(ir.VectorType(INT32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, empty, zeros)
