"""The benchmarks of searches at tiny sizes: they run on one small index, and what they record makes sense."""

from pathlib import Path
from typing import Any

import pytest
from helpers.data_sets import write_set
from helpers.sizes import measures_speed

import aggtree
from aggtree.engine.simd.instructions.sieve import CAN_SIEVE
from bench import record
from bench.report import generated

pytest.importorskip("faiss")
from bench.report import algorithm_report, numbers
from bench.search import filters, recall_time, rerank, search, sieve, tuning

pytestmark = measures_speed


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny data set and an index of it."""
    folder = tmp_path_factory.mktemp("search")
    write_set(folder)
    aggtree.build(folder / "tiny_base.bvecs", folder / "tiny.index", words="16x8", workers=0)
    return folder


@pytest.fixture
def run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a benchmark on the set, briefly; returns the results it recorded."""
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")

    def run_one(module: Any, *options: str) -> dict[str, Any]:
        for name, count in {"TURNS": 1, "SINGLE": 5}.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, count)
        place = ["--index", str(data / "tiny.index")] if module is not search else []
        assert module.main(["--data", str(data), "--prefix", "tiny", *place, *options]) == 0
        name = module.__name__.rpartition(".")[2]
        results: dict[str, Any] = record.read(name)[-1]["results"]
        return results

    return run_one


def test_recall_and_time_and_what_the_readme_makes_of_them(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall_time, "FAISS_INDEXES", ("IVF8,PQ8",))
    monkeypatch.setattr(recall_time, "PROBES", (1, 2, 8))
    found = run(recall_time, "--words", "16x8", "--graphs")
    systems = {point["system"] for point in found["points"]}
    assert {"aggtree", "IVF8,PQ8"} <= systems == set(found["bytes_per_vector"])
    monkeypatch.setattr(numbers, "RECALL", 0.5)
    text = numbers.search_part(record.read("recall_time")[-1])
    assert "| IVF8,PQ8 |" in text and "bytes per vector" in text
    assert "IVF8,PQ8" in numbers.plot(record.read("recall_time")[-1]).svg()


def test_search(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "FAISS_INDEXES", ("IVF8,PQ8",))
    found = run(search, "--words", "16x4", "--rounds", "2", "--target", "0.5")
    assert set(found) == {"tree", "IVF8,PQ8"}
    assert found["tree"]["recall"] == sorted(found["tree"]["recall"]) and found["tree"]["leaves"] > 0


def test_rerank(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerank, "FAISS_INDEX", "IVF8,PQ8,RFlat")
    found = run(rerank, "--target", "0.5")["summary"]["batch_ms"]
    assert found["aggtree"]["recall"] >= 0.5 and found["to_faiss"] > 0


def test_tuning(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "KS", (10,))
    points = run(tuning)["points"]
    assert points and all(point["recall"] >= point["target"] for point in points)


def test_filters(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "SHARES", (0.05, 0.5))
    points = run(filters, "--queries", "20")["points"]
    assert len(points) == 6
    assert all(point["recall_10"] >= 0.5 for point in points)


def test_sieve(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    place = ["--index", str(data / "tiny.index"), "--queries", str(data / "tiny_query.bvecs")]
    for limits in ([], ["--limits", "3,7"]):
        assert sieve.main([*place, *limits]) == 0
    text = algorithm_report.sieve()
    if CAN_SIEVE:
        assert [line["parameters"]["limits"] for line in record.read("sieve")][1] == [3, 7]
        assert "| 3, 7 |" in text
    else:
        assert generated.MISSING in text
