"""Sizes of tests: without the JIT kernels are plain Python, a thousand times as slow."""

import os

import pytest

JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")

needs_jit = pytest.mark.skipif(not JIT, reason="nothing is compiled without the JIT")
"""Marks tests about compilation."""

many_rows = pytest.mark.skipif(not JIT, reason="plain Python would take minutes for as many rows")
"""Marks tests whose result shows only with many rows, such as memory or the recall of trained codes."""

measures_speed = pytest.mark.skipif(not JIT, reason="the benchmark measures compiled kernels")
"""Marks tests that run a benchmark of kernels: plain Python would take minutes and cover no other lines."""


def sized(compiled: int, plain: int) -> int:
    """A number of rows, queries or examples: the second where kernels are plain Python."""
    return compiled if JIT else plain
