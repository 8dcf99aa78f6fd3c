"""How much a test does: without the JIT kernels are plain Python, a thousand times as slow."""

import os

import pytest

JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")

needs_jit = pytest.mark.skipif(not JIT, reason="nothing is compiled without the JIT")
"""Of tests about compilation, or about the speed and memory of compiled code."""


def sized(compiled: int, plain: int) -> int:
    """A number of rows, queries or examples: the second where kernels are plain Python."""
    return compiled if JIT else plain
