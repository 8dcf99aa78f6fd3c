"""Machine code on disk is used again while nothing it depends on has changed; no place for it is no error."""

import gc
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.sizes import needs_jit

from aggtree.engine.simd import compile_notice, kernel_cache

MODULE = """
from aggtree.engine.simd.compiled import kernel

@kernel
def double(values):
    for i in range(len(values)):
        values[i] *= 2
"""
CALL = """
import sys, numpy as np
sys.path.insert(0, sys.argv[1])
from some_kernels import double
for kind in "fdbh" if sys.argv[2] == "0" else "hbdf":
    values = np.array([1, 2], kind)
    double(values)
    assert values.tolist() == [2, 4] and values.dtype.char == kind
"""

CALLING_MODULE = """
from aggtree.engine.simd.compiled import inlined, kernel

@inlined
def add(values, number):
    for i in range(len(values)):
        values[i] += number

@kernel
def add_three(values):
    add(values, 1)
    add(values, 2)
"""
LOAD = """
import sys, numpy as np
sys.path.insert(0, sys.argv[1])
from some_kernels import double
values = np.array([1.0, 2.0])
double(values)
assert values.tolist() == [2, 4] and sum(double.stats.cache_hits.values()) == 1
assert "numba.np.linalg" not in sys.modules, "what numba can compile was imported"
"""

pytestmark = needs_jit


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel module, and an empty place for its code."""
    path = tmp_path / "some_kernels.py"
    path.write_text(MODULE)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    # Code that another process compiled names its module, which is imported when it is loaded.
    monkeypatch.syspath_prepend(tmp_path)
    return path


def imported(path: Path) -> Any:
    """A kernel module, imported anew."""
    kernel_cache._checksum_of.cache_clear()
    spec = importlib.util.spec_from_file_location("some_kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hits_of(path: Path) -> int:
    """How often the kernel of a module was found on disk, after it was imported anew and called once."""
    module = imported(path)
    values = np.array([1.5, 2.5])
    module.double(values)
    assert values.tolist() == [3, 5]
    return int(sum(module.double.stats.cache_hits.values()))


def test_code_is_found_again(module: Path) -> None:
    assert [hits_of(module), hits_of(module)] == [0, 1]


def test_a_change_of_any_module_compiles_anew(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hits_of(module)
    monkeypatch.setattr(kernel_cache, "SOURCES", kernel_cache.SOURCES + 1)
    assert [hits_of(module), hits_of(module)] == [0, 1]


def test_a_change_of_the_kernels_own_module_compiles_anew(module: Path) -> None:
    hits_of(module)
    module.write_text(MODULE + "\nCHANGED = True\n")
    assert [hits_of(module), hits_of(module)] == [0, 1]


def test_the_checksum_covers_the_modules_there_are() -> None:
    assert kernel_cache.engine_checksum() == kernel_cache.SOURCES != 0


@pytest.mark.parametrize("content", [b"", b"abc", bytes(100)])
def test_a_damaged_file_is_replaced(module: Path, tmp_path: Path, content: bytes) -> None:
    hits_of(module)
    (file,) = (tmp_path / "cache").rglob("*.nbk")
    file.write_bytes(content)
    assert [hits_of(module), hits_of(module)] == [0, 1]


def test_a_full_disk_or_a_read_only_one_is_no_error(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kernel_cache, "write_whole", fail)
    assert [hits_of(module), hits_of(module)] == [0, 0]


def test_the_next_place_serves_when_one_cannot_be_written(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").write_text("no directory")
    places = [tmp_path / "a file" / "cache", tmp_path / "second"]
    monkeypatch.setattr(kernel_cache, "places", lambda: iter(places))
    assert [hits_of(module), hits_of(module)] == [0, 1]
    (tmp_path / "third").mkdir()
    places[:] = [tmp_path / "third", tmp_path / "second"]
    assert hits_of(module) == 1, "a filled place is used wherever it stands"


def test_code_in_a_directory_open_to_all_is_not_executed(module: Path, tmp_path: Path) -> None:
    hits_of(module)
    (tmp_path / "cache" / kernel_cache.DIRECTORY).chmod(0o777)
    assert [hits_of(module), hits_of(module)] == [0, 0]


def test_without_a_home_there_are_places(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    installation, temporary = kernel_cache.places()
    assert installation.name == "__pycache__"
    assert temporary.name == f"{kernel_cache.DIRECTORY}-{os.geteuid()}"


def test_eight_processes_start_at_once_on_an_empty_cache(module: Path, tmp_path: Path) -> None:
    """Each compiles signatures in another order; all end with right code, the next compiles nothing."""
    command = [sys.executable, "-c", CALL, str(tmp_path)]
    processes = [subprocess.Popen([*command, str(number % 2)], cwd=tmp_path) for number in range(8)]
    assert [process.wait() for process in processes] == [0] * 8
    assert len(list((tmp_path / "cache").rglob("*.nbk"))) == 4
    assert hits_of(module) == 1


def test_a_kernel_is_compiled_with_all_it_calls(module: Path, tmp_path: Path) -> None:
    """What is called has no machine code of its own, and one version whatever number it is given."""
    module.write_text(CALLING_MODULE)
    kernels, values = imported(module), np.array([1.5, 2.5])
    kernels.add_three(values)
    assert values.tolist() == [4.5, 5.5]
    assert (len(kernels.add.signatures), len(kernels.add.part.signatures)) == (0, 1)
    assert [file.name.partition("-")[0] for file in (tmp_path / "cache").rglob("*.nbk")] == ["add_three"]
    kernels.add(values, 1)
    assert values.tolist() == [5.5, 6.5], "it can be called from Python too"


def test_compiled_code_is_loaded_without_the_compiler(module: Path, tmp_path: Path) -> None:
    hits_of(module)
    subprocess.run([sys.executable, "-c", LOAD, str(tmp_path)], check=True, cwd=tmp_path)


def test_the_collector_runs_after_compilation(module: Path) -> None:
    hits_of(module)
    assert gc.isenabled()


def test_compilation_that_takes_long_is_reported_once(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compile_notice, "_NOTICE", compile_notice._Notice())
    monkeypatch.setattr(compile_notice, "PATIENCE", 0.0)
    hits_of(module)
    hits_of(module)
    imported(module).double(np.array([1], np.int8))
    place = tmp_path / "cache" / kernel_cache.DIRECTORY
    assert caplog.messages == [f"compiling kernels for this processor, once per machine, cached in {place}"]


def test_a_short_compilation_is_not_reported(
    module: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compile_notice, "_NOTICE", compile_notice._Notice())
    monkeypatch.setattr(compile_notice, "PATIENCE", 600.0)
    hits_of(module)
    assert caplog.messages == []


def test_the_report_says_when_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a file").write_text("no directory")
    monkeypatch.setattr(kernel_cache, "places", lambda: iter([tmp_path / "a file" / "cache"]))
    assert "in each process: no directory can be written" in compile_notice.notice()
