"""The benchmark of build times runs, and its table follows from its results."""

from pathlib import Path

import numpy as np
import pytest
from helpers.sizes import measures_speed

from bench import record
from bench.report import build_time_report


def test_the_table_has_the_best_turn_of_the_newest_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    assert "Not measured" in build_time_report.part()
    for wall in (90.0, 9.0):
        ours = [{"wall": wall, "cpu": 8.0}, {"wall": 30.0, "cpu": 12.0}]
        seconds = {"aggtree": ours, "faiss": [{"wall": 3.0, "cpu": 4.0}]}
        parameters = {"set": "glove200k", "quality": "default", "peer": "IVF"}
        record.write("build_time", parameters, {"seconds": seconds})
    table = build_time_report.part()
    assert "9.0 / 8.0 | IVF: 3.0 / 4.0 | 3.0 / 2.0 |" in table
    assert "90.0" not in table


@measures_speed
def test_the_benchmark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    from bench.build import build_time

    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    settings = {"options": ["--words", "16x2", "--train-rows", "500"], "peer": "IVF4,PQ2x4fs"}
    monkeypatch.setattr(build_time, "SETS", {"tiny": settings})
    np.save(tmp_path / "tiny_base.npy", np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32))
    assert build_time.main(["--data", str(tmp_path), "--sets", "tiny", "--turns", "1"]) == 0
    (line,) = record.read("build_time")
    assert all(turn["wall"] > 0 for turns in line["results"]["seconds"].values() for turn in turns)
