"""Kill -9 at any moment, in any stage: the same command goes on, and the bytes are the same."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from faults import FailingDisk
from small_builds import SMALL, SMALL_ARGUMENTS, WIDE, contents, vectors

from aggtree.jobs import plan, stages
from aggtree.jobs.build_index import build
from aggtree.storage import atomic
from aggtree.storage.errors import AggtreeError

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "base.npy"
    np.save(path, vectors())
    return path


@pytest.fixture(scope="module")
def reference(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    index = tmp_path_factory.mktemp("reference") / "index"
    build(source, index, workers=0, **SMALL)
    return contents(index)


def kill_builds(source: Path, index: Path, *, seed: int, kills: int, name: str = "SMALL") -> None:
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    command = [sys.executable, TESTS / "killed_builds.py", source, index, str(seed), str(kills), name]
    subprocess.run([*map(str, command)], env=environment, check=True, timeout=1200)


def test_killed_at_random_operations(source: Path, reference: dict[str, str], tmp_path: Path) -> None:
    kill_builds(source, tmp_path / "index", seed=1, kills=12)
    assert contents(tmp_path / "index") == reference


def test_killed_while_a_wide_first_dictionary_is_learned(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "reference", workers=0, **WIDE)
    kill_builds(source, tmp_path / "index", seed=2, kills=12, name="WIDE")
    assert contents(tmp_path / "index") == contents(tmp_path / "reference")


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(10))
def test_killed_at_many_random_operations(
    source: Path, reference: dict[str, str], tmp_path: Path, seed: int
) -> None:
    kill_builds(source, tmp_path / "index", seed=seed, kills=20)
    assert contents(tmp_path / "index") == reference


def count_operations(source: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    counting = FailingDisk()
    monkeypatch.setattr(atomic, "disk", counting)
    build(source, index, workers=0, **SMALL)
    return len(counting.operations)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_or_failing_disk_stops_with_one_line_and_loses_nothing(
    source: Path, reference: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    total = count_operations(source, tmp_path / "first", monkeypatch)
    index = tmp_path / "index"
    for at in range(3, total, 61 if code == errno.ENOSPC else 97):
        monkeypatch.setattr(atomic, "disk", FailingDisk(at, code))
        with pytest.raises(AggtreeError) as caught:
            build(source, index, workers=0, **SMALL)
        assert len(str(caught.value).splitlines()) == 1
        if code == errno.ENOSPC:
            assert "space" in str(caught.value)
        committed = (index / "manifest.json").exists()
        monkeypatch.setattr(atomic, "disk", FailingDisk())
        build(source, index, workers=0, **SMALL)
        assert contents(index) == reference, f"operation {at}, committed {committed}"
        shutil.rmtree(index)


def test_a_tighter_budget_cuts_the_rest_anew(
    source: Path, reference: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions of the stopped build that do not fit the new budget are made again, smaller."""
    index = tmp_path / "index"
    monkeypatch.setattr(plan, "MIN_PART_ROWS", 100)
    for most in (1000, 300):
        monkeypatch.setattr(plan, "MAX_PART_ROWS", most)
        monkeypatch.setattr(stages.Stages, "commit", lambda _: pytest.fail("stop here"))
        with pytest.raises(pytest.fail.Exception, match="stop here"):
            build(source, index, workers=0, **SMALL)
        shutil.rmtree(next(index.glob("work-*")) / "parts")
    monkeypatch.undo()
    build(source, index, workers=0, **SMALL)
    assert contents(index) == reference


def start_build(source: Path, index: Path, *options: str) -> subprocess.Popen[str]:
    """The command line in a process of its own, with a cluster of its own."""
    code = (
        "import sys; from aggtree.jobs import plan; plan.CLUSTER_ROWS = 1; "
        "from aggtree.jobs.command_line import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, "build", str(source), str(index), *SMALL_ARGUMENTS, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_records(index: Path, stage: str, count: int = 1) -> None:
    deadline = time.monotonic() + 120
    while len(list(index.glob(f"work-*/done/{stage}/*.json"))) < count:
        assert time.monotonic() < deadline, f"no record of stage {stage}"
        time.sleep(0.01)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name
)
def test_a_cluster_build_stopped_by_a_signal(
    source: Path, reference: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    index = tmp_path / "index"
    process = start_build(source, index, "--workers", "2")
    wait_for_records(index, "train")
    time.sleep(1.5)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    stopped = process.returncode != 0
    if number != signal.SIGKILL and stopped:
        assert process.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[number], output
        assert "the same command continues from here" in output
        assert "Traceback" not in output
    build(source, index, workers=0, **SMALL)
    assert contents(index) == reference
