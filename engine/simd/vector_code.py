"""Types of LLVM values that primitives use, and what the processor can do.

Vectors are 8 or 16 lanes wide and LLVM splits them into whatever registers the machine has.
"""

from typing import Any

from llvmlite import ir
from numba.core import codegen as _codegen
from numba.core import config as _config

LANES = 16

BIT, INT8, INT16, INT32, INT64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
FLOAT = ir.FloatType()
FLOATS = ir.VectorType(FLOAT, LANES)
EIGHT_FLOATS = ir.VectorType(FLOAT, 8)
SHORTS, INTS = ir.VectorType(INT16, LANES), ir.VectorType(INT32, LANES)


def processor_has(feature: str) -> bool:
    """Whether kernels are compiled for a processor with a feature, in LLVM's word for it."""
    codegen: Any = _codegen
    config: Any = _config
    features = codegen.get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    return f"+{feature}" in features.split(",")
