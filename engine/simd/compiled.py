"""The one decorator of every numba kernel.

Rules for kernels (modules named `*_kernels.py`):

- serial and `nogil`: threads and processes come from above, so a kernel never starts any;
- the caller allocates; a kernel writes into the arrays it is given. numba's runtime is off, so an array
  made in a kernel does not compile, and no references are counted: with it, each kernel call of a query
  would update the reference counts of some fifty arrays, which takes longer than scoring a small node;
- no bounds are checked here, so callers validate shapes, offsets and labels before the call;
- floating point may be contracted into fused multiply-adds but not re-ordered, so that a row's result
  does not depend on the block it is computed in;
- each kernel has a brute-force twin in `tests/naive.py`.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from aggtree.engine.simd.kernel_compiler import compiled
from aggtree.engine.simd.primitive import JIT

Function = TypeVar("Function", bound=Callable[..., Any])

OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"contract"},
    "boundscheck": False,
    "_nrt": False,
}


def _compiled(function: Function, *, inlined: bool) -> Function:
    if not JIT:
        # As in machine code, integers wrap around and floats overflow to infinity.
        return np.errstate(all="ignore")(function)
    return cast(Function, compiled(function, OPTIONS, inlined=inlined))


def kernel(function: Function) -> Function:
    """Compile `function` on first call and cache the machine code on disk."""
    return _compiled(function, inlined=False)


def inlined(function: Function) -> Function:
    """The same for a kernel that is inlined into each kernel that calls it.

    A call passes every array of every tuple separately on the stack, about seven words each: for a kernel
    that takes the tree and the scratch memory, that costs as much as sieving a hundred leaves.
    """
    return _compiled(function, inlined=True)
