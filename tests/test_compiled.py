"""Machine code on disk is used again while no module of the engine has changed."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggtree.engine import compiled

MODULE = """
from aggtree.engine.compiled import kernel

@kernel
def double(values):
    for i in range(len(values)):
        values[i] *= 2
"""


def double_of(path: Path) -> Any:
    """The kernel of a module that is imported anew, called once."""
    spec = importlib.util.spec_from_file_location("some_kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    values = np.array([1.5, 2.5])
    module.double(values)
    assert values.tolist() == [3, 5]
    return module.double


def test_a_change_of_any_module_compiles_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "some_kernels.py"
    path.write_text(MODULE)
    if not hasattr(double_of(path), "stats"):
        pytest.skip("numba is switched off")
    assert sum(double_of(path).stats.cache_hits.values()) == 1
    monkeypatch.setattr(compiled, "SOURCES", compiled.SOURCES + 1)
    assert sum(double_of(path).stats.cache_hits.values()) == 0
    assert sum(double_of(path).stats.cache_hits.values()) == 1


def test_the_checksum_is_that_of_the_modules_there_are() -> None:
    assert compiled._checksum() == compiled.SOURCES != 0
