"""A wheel of the repository works outside the checkout, in spawned processes and Dask workers too."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
from helpers.places import ROOT

PROGRAM = """
import multiprocessing, sys
import numpy as np
import aggtree
from aggtree.engine import DictionaryAnnealing

def neighbours(path):
    with aggtree.open(path) as index:
        return index.search(np.zeros((1, 4)), k=3)[0].tolist()

if __name__ == "__main__":
    vectors = np.random.default_rng(0).normal(size=(600, 4)).astype(np.float32)
    np.save("vectors.npy", vectors)
    aggtree.build("vectors.npy", "small.index", words=(8, 8), shard_rows=200, workers=2, train_rows=600)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(neighbours, ("small.index",)) == neighbours("small.index")
    print(aggtree.__file__)
"""


FOLDERS = {"aggtree": "aggtree", "engine": "aggtree/engine", "storage": "aggtree/storage"}
FOLDERS |= {"jobs": "aggtree/jobs"}
"""Folders of the checkout, and where a wheel has them."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the checkout, from a copy: what earlier builds left in the checkout is not in it."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "checkout"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, copy],
        check=True,
        capture_output=True,
        cwd=folder,
    )
    (made,) = folder.glob("aggtree-*.whl")
    return made


@pytest.fixture(scope="module")
def outside(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel installed; its dependencies are borrowed from this one."""
    folder = tmp_path_factory.mktemp("outside")
    venv.create(folder / "venv")
    site = next((folder / "venv" / "lib").glob("python*")) / "site-packages"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel],
        check=True,
        capture_output=True,
        cwd=folder,
    )
    # A .pth entry only adds a folder: this environment's editable aggtree is not activated by it.
    ours = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "borrowed.pth").write_text("\n".join(ours))
    return folder


def test_the_wheel_has_every_module_of_the_checkout(wheel: Path) -> None:
    """A folder that the list of packages in pyproject.toml leaves out is missing only when installed."""
    ours = {
        f"{place}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, place in FOLDERS.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    with ZipFile(wheel) as file:
        theirs = {name for name in file.namelist() if name.endswith(".py")}
        assert "aggtree/py.typed" in file.namelist()
    assert theirs == ours


def test_the_wheel_works_in_an_empty_environment(outside: Path) -> None:
    (outside / "program.py").write_text(PROGRAM)
    python = outside / "venv" / "bin" / "python"
    answer = subprocess.run([python, "program.py"], cwd=outside, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert str(outside / "venv") in answer.stdout
    help_text = subprocess.run(
        [python, "-m", "aggtree.jobs.cli.main", "--help"],
        cwd=outside,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Examples" in help_text.stdout
