"""The benchmarks of the quantizer at tiny sizes: they run, and what they record makes sense."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.sizes import measures_speed
from helpers.small_builds import vectors

from aggtree.engine.exact.neighbours import ExactSearch
from aggtree.storage.sources.formats.vecs import write_vecs

pytest.importorskip("faiss")
from bench import record
from bench.codes import information, quantizer
from bench.report import paper_report

pytestmark = measures_speed


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A small data set as options, and results that are recorded nowhere else."""
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    for name, size in {"CURVE_ROWS": 300, "HELD_OUT": 100, "BATCH": 700, "TURNS": 1}.items():
        monkeypatch.setattr(quantizer, name, size)
    base, queries = vectors(1500, 16), vectors(20, 16, seed=2)
    truth = ExactSearch(queries, 10)
    truth.add(base, 0)
    files = {"base": base, "learn": vectors(1200, 16, seed=1), "query": queries}
    for name, rows in files.items():
        (tmp_path / f"tiny_{name}.bvecs").write_bytes(write_vecs(rows, "bvecs"))
    nearest = truth.result()[0].astype(np.int32)
    (tmp_path / "tiny_groundtruth.ivecs").write_bytes(write_vecs(nearest, "ivecs"))
    return ["--data", str(tmp_path), "--prefix", "tiny"]


def run(options: list[str], *more: str) -> list[dict[str, Any]]:
    """What a run of the quantizer's benchmark recorded."""
    before = len(record.read("quantizer"))
    assert quantizer.main([*options, *more]) == 0
    return record.read("quantizer")[before:]


def test_all_methods_of_a_training_table_are_one_run(data: list[str]) -> None:
    lines = run(data, "training", "--bytes", "2", "--rounds", "2", "--rows", "400")
    assert [line["parameters"]["method"] for line in lines] == ["da", "rq", "lsq", "pq", "opq"]
    assert len({line["parameters"]["run"] for line in lines}) == 1
    assert {line["parameters"]["base_rows"] for line in lines} == {400}
    for line in lines:
        assert 0 < line["results"]["learn_E"] < 2 * line["results"]["E"]
    run(data, "training", "--bytes", "2", "--rounds", "1", "--methods", "da,pq")
    quantizer.main(["report"])
    report = (record.RESULTS / "quantizer.md").read_text()
    assert "| tiny | 2 | pq | 1500 |" in report
    assert "| lsq |" not in report


def test_encoding_online_wide_and_norms(data: list[str]) -> None:
    beams = run(data, "encoding", "--bytes", "2")[0]["results"]["beams"]
    assert beams["64"][0] <= 1.01 * beams["1"][0]
    online = run(data, "online", "--bytes", "2", "--batches", "3")[-1]["results"]
    assert len(online["E"]) == len(online["seconds"]) == 3
    assert run(data, "wide", "--words", "300", "--bytes", "1")[0]["results"]["same"] > 0.5
    recall = run(data, "norms", "--bytes", "2", "--rounds", "1")[0]["results"]["recall"]
    assert recall["1"][2] == pytest.approx(recall["4"][2], abs=0.2)
    part = run(data, "norms", "--bytes", "2", "--rounds", "1", "--rows", "700")[0]
    assert part["parameters"]["base_rows"] == 700
    assert quantizer.main(["report"]) == 0
    report = (record.RESULTS / "quantizer.md").read_text()
    for table in ("encoding", "online", "wide", "norms"):
        assert f"## {table}" in report


def test_information(data: list[str]) -> None:
    assert information.main([*data, "--rounds", "1", "--queries", "20"]) == 0
    lines = record.read("information")
    assert [line["parameters"]["method"] for line in lines] == list(information.METHODS)
    for line in lines:
        assert max(line["results"]["self_information"]) <= 8
    assert paper_report.information_table().count("\n| ") == 1 + len(lines)
