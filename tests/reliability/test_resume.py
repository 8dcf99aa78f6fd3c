"""Kill -9 at any moment, in any stage: the same command goes on, and the bytes are the same."""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from helpers.places import program
from helpers.small_builds import SMALL, SMALL_ARGUMENTS, WIDE, contents

from aggtree.jobs.build import build
from aggtree.jobs.planning import plan
from aggtree.jobs.stages import pipeline as stages
from reliability.long import faults


def kill_builds(source: Path, index: Path, *, seed: int, kills: int, name: str = "SMALL") -> None:
    subprocess.run(
        program("reliability.programs.killed_builds", source, index, seed, kills, name), check=True
    )


def test_killed_at_random_operations(source: Path, reference: Path, tmp_path: Path) -> None:
    kill_builds(source, tmp_path / "index", seed=1, kills=12)
    assert contents(tmp_path / "index") == contents(reference)


def test_killed_while_a_wide_first_dictionary_is_learned(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "reference", workers=0, **WIDE)
    kill_builds(source, tmp_path / "index", seed=2, kills=12, name="WIDE")
    assert contents(tmp_path / "index") == contents(tmp_path / "reference")


def test_a_full_or_failing_disk_stops_with_one_line_and_loses_nothing(tmp_path: Path) -> None:
    counts = faults.run(tmp_path, seed=3, step=31)
    assert counts["faults"] > 20
    assert faults.met(counts), counts


def test_a_tighter_budget_cuts_the_rest_anew(
    source: Path, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions of the stopped build that do not fit the new budget are made again, smaller."""
    index = tmp_path / "index"
    monkeypatch.setattr(plan, "MIN_PARTITION_ROWS", 100)
    for most in (1000, 300):
        monkeypatch.setattr(plan, "MAX_PARTITION_ROWS", most)
        monkeypatch.setattr(stages.Stages, "commit", lambda _: pytest.fail("stop here"))
        with pytest.raises(pytest.fail.Exception, match="stop here"):
            build(source, index, workers=0, **SMALL)
        shutil.rmtree(next(index.glob("work-*")) / "partitions")
    monkeypatch.undo()
    build(source, index, workers=0, **SMALL)
    assert contents(index) == contents(reference)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name
)
def test_a_cluster_build_stopped_by_a_signal(
    source: Path, reference: Path, tmp_path: Path, number: signal.Signals
) -> None:
    index = tmp_path / "index"
    build_command = ["build", source, index, "--workers", "2", *SMALL_ARGUMENTS]
    command = program("helpers.services.own_cluster", "encode", int(number), *build_command)
    answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert answer.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}.get(number, -number), answer.stdout
    if number != signal.SIGKILL:
        assert "the same command continues from here" in answer.stdout
        assert "Traceback" not in answer.stdout
    assert list(index.glob("work-*/done/encode/*.json"))
    build(source, index, workers=0, **SMALL)
    assert contents(index) == contents(reference)
