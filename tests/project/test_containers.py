"""A query process as containers run it: few packages, a user without rights and home, nothing to write to."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.places import ROOT
from helpers.sizes import needs_jit

from aggtree.engine.simd.kernel_compiler import compiling_forbidden
from aggtree.jobs.build import build
from aggtree.storage.index.reader import open_index

pytestmark = needs_jit

FEW_PACKAGES = """
import sys
absent = {"dask", "distributed", "zarr", "psutil", "click", "rich", "threadpoolctl"}
class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import numpy as np, aggtree
with aggtree.open(sys.argv[1]) as index:
    index.compile_kernels()
    for options in ({}, {"rerank": 20}, {"within": [1, 2, 3]}, {"within": range(300), "rerank": 20}):
        assert index.search(np.zeros(8), k=2, **options).ids.shape == (1, 2), options
    index.warm()
"""

NOBODY = """
import os, sys, logging, numpy as np, aggtree
index = aggtree.open(sys.argv[1], vectors=sys.argv[1].replace("index", "base.npy"))
from aggtree.engine.simd.kernel_compiler import compiling_forbidden
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
os.environ.pop("HOME", None)
os.chdir("/")
with compiling_forbidden():
    index.compile_kernels()
    assert index.search(np.zeros(8), k=2, rerank=20, within=range(300)).ids.shape == (1, 2)
"""


def run(program: str, index: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "TMPDIR": str(index.parent)}
    command = [sys.executable, "-c", program, str(index)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def index() -> Iterator[Path]:
    """A small index, in a directory that another user can enter."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        np.save(directory / "base.npy", np.random.default_rng(0).normal(size=(600, 8)).astype(np.float32))
        build(directory / "base.npy", directory / "index", words=(8, 8), workers=0, progress=False)
        yield directory / "index"


@pytest.fixture(scope="module")
def filled(index: Path) -> Path:
    """A kernel cache as an image has it: filled, and of another user."""
    cache = index.parent / "cache"
    answer = run(FEW_PACKAGES, index, cache)
    assert answer.returncode == 0, answer.stderr
    return cache


def test_searching_needs_few_packages(filled: Path) -> None:
    """`filled` was made without the packages of builds."""
    assert [*filled.rglob("search_tree-*.nbk")]


def test_the_how_to_installs_what_searching_needs() -> None:
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
    assert "pip install numpy numba google-crc32c" in page
    assert "pip install --no-deps aggtree" in page


def test_a_user_without_rights_and_home_uses_a_filled_cache(index: Path, filled: Path) -> None:
    before = sorted(filled.rglob("*"))
    for path in (filled, *before):
        path.chmod(path.stat().st_mode & ~0o222)
    answer = run(NOBODY, index, filled)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == "" and sorted(filled.rglob("*")) == before


def test_an_index_knows_what_its_searches_need(index: Path) -> None:
    with compiling_forbidden(), open_index(index) as opened:  # opening itself compiles nothing
        assert [name for name, _ in opened.preparations()] == ["search", "filters", "segments", "re-ranking"]


def test_warm_up_finds_what_is_missing_and_compiles_it(
    index: Path, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "empty"))
    command = [sys.executable, "-m", "aggtree", "warm-up", str(index), "--check"]
    missing = subprocess.run(command, capture_output=True, text=True, check=False)
    assert missing.returncode == 1
    assert missing.stdout == "not compiled: search; filters; segments; re-ranking\n"
    assert not [*tmp_path.rglob("*.nbk")]
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(filled))
    found = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert found.returncode == 0 and found.stdout.splitlines()[-1] == '{"missing": []}'
