"""The promise of `--memory`, kept in fresh processes: measured ≤ allowed, and near what was projected."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.sizes import many_rows
from helpers.small_builds import SMALL_ARGUMENTS, vectors

from aggtree.jobs.running.memory import format_size, parse_size

CODE = (
    "import sys; from aggtree.jobs.planning import plan; plan.CLUSTER_ROWS = int(sys.argv.pop(1)); "
    "from aggtree.jobs.cli.main import main; main(sys.argv[1:])"
)


def build_in_fresh_process(
    source: str, index: Path, memory: str, *options: str, cluster_rows: int = 2**62
) -> dict[str, Any]:
    """The result of a build by the command line."""
    command = [sys.executable, "-c", CODE, str(cluster_rows), "build", source, str(index), "--memory", memory]
    answer = subprocess.run([*command, "--json", *options], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    result: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return result


def check(result: dict[str, Any], memory: str) -> None:
    assert result["peak"] <= result["projected"] <= parse_size(memory)
    for stage in result["stages"]:
        assert stage["peak"] <= stage["projected"], stage


@many_rows
@pytest.mark.parametrize(
    ("memory", "workers", "cluster_rows"),
    [("480MiB", "0", 2**62), ("480MiB", "2", 2**62), ("800MiB", "2", 1)],
    ids=["alone", "threads", "cluster"],
)
def test_a_small_build_keeps_within_its_budget(
    tmp_path: Path, memory: str, workers: str, cluster_rows: int
) -> None:
    np.save(tmp_path / "base.npy", vectors(30_000, 32))
    options = ("--workers", workers, *SMALL_ARGUMENTS, "--shard-rows", "5000", "--batch-rows", "10000")
    source, index = str(tmp_path / "base.npy"), tmp_path / "index"
    result = build_in_fresh_process(source, index, memory, *options, cluster_rows=cluster_rows)
    check(result, memory)


@pytest.mark.scale
@pytest.mark.timeout(6 * 3600)
def test_twenty_million_vectors_in_one_gibibyte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = "synthetic:sift?rows=20000000&seed=1"
    result = build_in_fresh_process(source, tmp_path / "index", "1GiB", cluster_rows=3_000_000)
    with capsys.disabled():
        print(f"\n20,000,000 rows in {result['seconds']:.0f} s, peak {format_size(result['peak'])}")
        for stage in result["stages"]:
            projected, peak = format_size(stage["projected"]), format_size(stage["peak"])
            print(f"{stage['name']:7} {stage['seconds']:6.0f} s  projected {projected}, measured {peak}")
    check(result, "1GiB")
    assert [stage["name"] for stage in result["stages"]] == ["train", "encode", "sort", "build", "commit"]
