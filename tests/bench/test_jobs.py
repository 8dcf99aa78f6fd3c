"""The benchmark of jobs runs, at a size that measures nothing."""

from pathlib import Path

import pytest
from helpers.sizes import measures_speed

from aggtree.engine.coding.encoding import Encoder
from aggtree.jobs.stages import encode as encode_module
from bench import record
from bench.build import jobs


@measures_speed
def test_the_benchmark_of_jobs_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    sizes = ("--rows", "4000", "--shard-rows", "1000", "--words", "16x3", "--beam", "2", "--rounds", "1")
    training = ("--train-rows", "3000", "--batch-rows", "1000", "--anneal-rounds", "2")
    assert jobs.main(["--work", str(tmp_path / "work"), *sizes, *training]) == 0
    encode, train = record.read("jobs")
    kinds = {f"{kind}_{count}" for kind in ("kernel", "threads", "cluster") for count in (1, 2)}
    assert set(encode["results"]["rates"]) == kinds
    assert all(rate > 0 for rate in encode["results"]["rates"].values())
    assert set(encode["results"]["scaling"]) == {"kernel", "threads", "cluster"}
    assert train["results"]["seconds"]["stage"] > 0
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["base-4000.bvecs"]
    assert "encode file" in capsys.readouterr().out
    assert encode_module.Encoder is Encoder  # as it was
