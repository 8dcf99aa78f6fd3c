"""The one decorator of every numba kernel, and the intrinsics kernels share.

Rules for kernels (modules named `*_kernels.py`):

- serial and `nogil`: threads and processes come from above, so a kernel never starts any;
- the caller allocates; a kernel writes into the arrays it is given. numba's runtime is off, so an array
  made in a kernel does not compile, and no references are counted: with it, each call of a kernel of a
  query counts up and down some fifty arrays, which takes longer than to score a small node;
- no bounds are checked here, so callers validate shapes, offsets and labels before the call;
- floating point may be contracted into fused multiply-adds but not re-ordered, so that a row's result
  does not depend on the block it is computed in;
- each kernel has a brute-force twin in `tests/naive.py`.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

OPTIONS: dict[str, Any] = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"contract"},
    "boundscheck": False,
    "_nrt": False,
}


def kernel(function: Function) -> Function:
    """Compile `function` on first call and cache the machine code on disk."""
    return cast(Function, numba.njit(**OPTIONS)(function))
