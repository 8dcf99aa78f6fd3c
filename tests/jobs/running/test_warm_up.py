"""Kernels are compiled by a child, once, and a build goes on when the child does not."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.sizes import needs_jit
from helpers.small_builds import SMALL, recipe_of

from aggtree.engine.simd import kernel_cache
from aggtree.jobs.running import warm_up
from aggtree.jobs.running.progress import Progress

pytestmark = needs_jit

FINGERPRINT = {"rows": 3000, "dimension": 12, "dtype": "uint8", "crc32c": "00000000"}


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The orders given to children; none is started, and each succeeds."""
    orders: list[str] = []

    def run(command: list[str], **options: Any) -> SimpleNamespace:
        assert command[0] == sys.executable
        orders.append(options["input"])
        return SimpleNamespace(returncode=0)

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(subprocess, "run", run)
    return orders


def compile_for(**changes: Any) -> None:
    facts = {name: changes.pop(name) for name in FINGERPRINT if name in changes}
    warm_up.compile_kernels(recipe_of(3000, **SMALL | changes), FINGERPRINT | facts, Progress())


def test_each_kind_of_build_is_compiled_once(children: list[str]) -> None:
    for _ in range(2):
        compile_for()
        compile_for(seed=3, train_rows=1500, rows=9000, dimension=100, words=(32,) * 5)  # no other kernels
    assert len(children) == 1
    compile_for(dtype="float32")
    compile_for(rows=2**33)
    compile_for(words=(500, 16, 16))
    assert len(children) == 4
    compile_for(words=(900, 16, 16))
    assert len(children) == 4


def test_a_child_that_fails_is_started_again_by_the_next_build(
    children: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=-9))
        compile_for()
    compile_for()
    assert len(children) == 1


def test_a_place_that_cannot_be_written_is_no_error(
    children: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "cache"))
    compile_for()
    compile_for()
    assert len(children) == 2


def test_the_child_builds_a_tiny_index(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    plain = subprocess.run

    def run(*arguments: Any, **options: Any) -> Any:
        answer = plain(*arguments, **options)
        seen.append({"code": answer.returncode, "error": answer.stderr})
        return answer

    monkeypatch.setattr(subprocess, "run", run)
    marks: list[str] = []
    monkeypatch.setattr(kernel_cache, "is_kept", lambda _: False)
    monkeypatch.setattr(kernel_cache, "keep", lambda name, _: marks.append(name) or True)
    compile_for(rows=2**33)
    assert seen == [{"code": 0, "error": ""}]
    assert len(marks) == 1 and marks[0].startswith(warm_up.MARK)
