"""A wheel of the repository works outside the checkout, in spawned processes and Dask workers too."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

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


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel installed; its dependencies are borrowed from this one."""
    folder = tmp_path_factory.mktemp("outside")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT],
        check=True,
        capture_output=True,
        cwd=folder,
    )
    (wheel,) = folder.glob("aggtree-*.whl")
    venv.create(folder / "venv")
    site = next((folder / "venv" / "lib").glob("python*")) / "site-packages"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel],
        check=True,
        capture_output=True,
        cwd=folder,
    )
    # A .pth entry only adds the folder: this environment's editable aggtree is not activated by it.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return folder


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
