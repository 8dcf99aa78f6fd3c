"""Benchmarks of builds and readers at tiny sizes; every generated figure matches the results."""

import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.places import TESTS
from helpers.sizes import measures_speed, sized
from helpers.small_builds import vectors

from aggtree.storage.sources.formats.vecs import write_vecs
from bench import record
from bench.__main__ import benchmarks
from bench.build import scale
from bench.report import (
    generated,
    numbers,
    paper_figures,
    paper_report,
    prediction,
    record_build,
    scale_report,
)
from bench.search import readers

GOLDEN = TESTS / "data" / "format-1" / "golden.index"
STAGES = ["train", "encode", "sort", "build", "commit"]
LOG = """\
x.index: 1,000 rows, memory 1.4 GiB projected of 4 GiB allowed, 2 workers as processes
train: 5,000 row passes
train: done in 1 min 20 s, error 18000, peak memory 400 MiB
encode: 1,000 rows
encode: 300 of 1,000 rows, 30/s, 23 s left, 645 MiB
"""
RESUMED = """\
encode: 1,000 rows, 200 done before
encode: 600 of 1,000 rows, 40/s, 10 s left, 650 MiB
encode: done in 20 s, peak memory 700 MiB
sort: 1,000 rows
sort: done in 0.5 s, peak memory 100 MiB
"""


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a test measures is recorded nowhere else; returns where the true results are."""
    true = record.RESULTS
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    return true


def last(benchmark: str) -> dict[str, Any]:
    line: dict[str, Any] = record.read(benchmark)[-1]
    return line


def test_readers(reference: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "query.npy", vectors(30, seed=3))
    options = ["--index", str(reference), "--queries", str(tmp_path / "query.npy"), "--processes", "1,2"]
    assert readers.main([*options, "--seconds", "0.2", "--cold-queries", "10"]) == 0
    found = last("readers")["results"]
    assert found["rows"] == 3100 and found["queries"] == 10
    assert list(found["processes"]) == ["1", "2"]
    for count, point in found["processes"].items():
        assert point["queries_per_second"] > 0 and point["p50_ms"] <= point["p99_ms"]
        assert len(point["anonymous"]) == int(count)
        assert all(own <= private for own, private in zip(point["anonymous"], point["private"], strict=True))
    assert found["cold"]["p99_ms"] > 0 and found["warm"]["read_bytes"] >= 0
    assert "2 |" in scale_report.reader_tables()


def test_a_build_is_recorded_from_its_report(reference: Path) -> None:
    assert record_build.main(["--index", str(reference), "--workers", "1", "--note", "tiny"]) == 0
    line = last("build")
    assert line["parameters"]["rows"] == 3100 and line["parameters"]["words"] == [16, 16, 16]
    assert [stage["name"] for stage in line["results"]["stages"]] == STAGES
    assert line["results"]["bytes_per_vector"] > 4
    rates = prediction.Rates.of_line(line)
    assert min(rates.encode, rates.sort, rates.build, rates.commit_bytes) > 0


def test_a_build_is_recorded_from_its_logs(reference: Path, tmp_path: Path) -> None:
    (tmp_path / "1.log").write_text(LOG)
    (tmp_path / "2.log").write_text(RESUMED)
    logs = [str(tmp_path / "1.log"), str(tmp_path / "2.log")]
    assert record_build.main(["--index", str(reference), "--log", *logs]) == 0
    stages = {stage["name"]: stage for stage in last("build")["results"]["stages"]}
    assert stages["train"]["seconds"] == 80 and stages["train"]["peak"] == 400 << 20
    # 300 rows at 30 a second by the run that was killed, 800 in 20 seconds by the next.
    assert stages["encode"]["seconds"] == 30 and stages["encode"]["done"] == 1100
    assert stages["encode"]["runs"] == 2 and stages["encode"]["peak"] == 700 << 20
    assert stages["sort"]["finished"] and stages["sort"]["seconds"] == 0.5


def test_lines_do_not_record_where_files_were() -> None:
    record.write(
        "some", {"data": "/a/b/base.bvecs", "rows": 3}, {"paths": ["/x/y.index"], "of": {"n": "s3://x/y"}}
    )
    line = record.read("some")[-1]
    assert line["parameters"] == {"data": "base.bvecs", "rows": 3}
    assert line["results"] == {"paths": ["y.index"], "of": {"n": "s3://x/y"}}


def test_builds_without_figures_are_refused() -> None:
    with pytest.raises(SystemExit, match=re.escape("name the logs of its runs by --log")):
        record_build.main(["--index", str(GOLDEN)])


def test_sizes_are_built_recorded_and_drawn(tmp_path: Path) -> None:
    options = ["--work", str(tmp_path), "--rows", "600", "--workers", "0"]
    options += ["--train-rows", str(sized(500, 100))]
    assert scale.main([*options, "--words", "16x3", "--beam", "4"]) == 0
    line = last("build")
    assert line["parameters"]["rows"] == 600 and line["parameters"]["series"] == "scale"
    assert list(tmp_path.glob("*.index")) == []
    record.write("build", line["parameters"] | {"rows": 900}, line["results"])
    output = generated.Output()
    parts = scale_report.parts(output)
    assert "| 600 |" in parts["builds"] and "SIFT1B, 64 cores" in parts["predictions"]
    assert len(output.files) == 3 and parts["billion"].startswith(generated.MISSING)


RATES = prediction.Rates(
    encode=25_000, sort=1e6, build=2e6, train_seconds=600, commit_bytes=400e6, tree_bytes=13.0
)


def test_predictions_follow_from_the_rates() -> None:
    two, many = (prediction.predict(10**9, cores, RATES) for cores in (2, 64))
    assert two.seconds["encode"] == pytest.approx(20_000)
    assert many.seconds["encode"] == pytest.approx(two.seconds["encode"] / 32)
    assert many.seconds["train"] == two.seconds["train"] == 600
    assert two.seconds["commit"] == pytest.approx(13e9 / 400e6)
    assert two.read["encode"] == 128 * 10**9 and two.written["encode"] == 10 * 10**9
    assert two.index_bytes == 23 * 10**9


def test_predictions_of_a_cluster() -> None:
    made = prediction.predict(10**10, 256, RATES, cluster=True)
    assert made.tasks["encode"] == made.tasks["sort"] == 10_000
    assert made.written["sort"] == 10**10 * (10 + 8)  # ids beyond 2^32 take 8 bytes
    assert made.written["build"] == 10**10 * (13 + 4)
    assert 2**27 < made.worker_bytes < 2 * 2**30
    assert made.hours < prediction.predict(10**10, 64, RATES, cluster=True).hours


@measures_speed
def test_the_papers_table_of_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    from helpers.data_sets import write_set

    from bench.search import non_exhaustive, search

    for name, count in {"TURNS": 1, "SINGLE": 5}.items():
        monkeypatch.setattr(search, name, count)
    write_set(tmp_path)
    options = ["--data", str(tmp_path), "--prefix", "tiny", "--words", "16x8", "--rounds", "2"]
    assert non_exhaustive.main([*options, "--cells", "4", "--bits", "3", "--queries", "40"]) == 0
    points = last("non_exhaustive")["results"]["points"]
    assert {point["system"] for point in points} == set(non_exhaustive.SYSTEMS)
    for system in ("ivfadc", "multi_d_adc", "a_tree", "default"):
        mine = [point["recall"][2] for point in points if point["system"] == system]
        assert len(mine) == len(non_exhaustive.EFFORTS) and mine[0] <= mine[-1] + 0.05
    table = paper_report.search_table()
    assert "Faiss IMI2x3,PQ8" in table and "0.63" in table


@pytest.mark.parametrize("name", ["hnswlib", "usearch"])
def test_graphs_find_neighbours(name: str) -> None:
    pytest.importorskip(name)
    from bench.peers import graphs

    base = vectors(500, 16).astype(np.float32)
    base += np.arange(500)[:, None] / 1000  # no two are equal
    ((found, searches, size),) = [peer for peer in graphs.graph_peers(base, 5, 1) if peer[0] == name]
    ids = searches[max(searches)](base[:50])
    assert found == name and (ids[:, 0] == np.arange(50)).mean() > 0.9
    assert size > 4 * 16


def test_missing_marks_are_reported() -> None:
    page = "a <!-- x: begin -->old<!-- x: end --> b"
    assert generated.filled(page, {"x": "new\n"}) == "a <!-- x: begin -->\nnew\n<!-- x: end --> b"
    with pytest.raises(ValueError, match="no part y"):
        generated.filled(page, {"y": "new"})


def test_every_generated_figure_matches_the_results(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RESULTS", results)
    assert numbers.make().stale() == [], "run `python -m bench numbers`"


def test_every_benchmark_explains_itself() -> None:
    for name, module in benchmarks().items():
        found = importlib.util.find_spec(module)
        assert found is not None and found.origin is not None
        text = Path(found.origin).read_text()
        assert f"python -m bench {name}" in text.partition('"""')[2].partition('"""')[0], name


@pytest.mark.parametrize("end", ["bvecs", "fvecs", "npy"])
def test_sets_of_several_formats(tmp_path: Path, end: str) -> None:
    from bench.data.data_sets import read_vectors

    rows = vectors(20, 4).astype(np.float32 if end == "fvecs" else np.uint8)
    path = tmp_path / f"some_base.{end}"
    if end == "npy":
        np.save(path, rows)
    else:
        path.write_bytes(write_vecs(rows, end))
    np.testing.assert_array_equal(read_vectors(tmp_path, "some", "base"), rows)
    with pytest.raises(SystemExit, match="no some_learn"):
        read_vectors(tmp_path, "some", "learn")


BASE_ANN = """
class BaseANN:
    def done(self): ...
    def fit(self, X): ...
    def query(self, q, n): return []
    def batch_query(self, X, n): ...
    def get_batch_results(self): return self.res
    def __str__(self): return self.name
"""


@pytest.mark.parametrize("metric", ["euclidean", "angular"])
def test_the_adaptor_of_ann_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str) -> None:
    """It works where that project would put it, behind its base class."""
    for name in ("base", "aggtree"):
        folder = tmp_path / "ann_stub" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    (tmp_path / "ann_stub" / "__init__.py").touch()
    (tmp_path / "ann_stub" / "base" / "module.py").write_text(BASE_ANN)
    adaptor = generated.ROOT / "bench" / "ann_benchmarks" / "module.py"
    (tmp_path / "ann_stub" / "aggtree" / "module.py").write_text(adaptor.read_text())
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("ann_stub")]:
        monkeypatch.delitem(sys.modules, name)
    module = importlib.import_module("ann_stub.aggtree.module")
    count = sized(800, 150)
    rows = vectors(count).astype(np.float32) + np.arange(count)[:, None] / 1000
    algorithm = module.Aggtree(metric, "16x3")
    algorithm.fit(rows)
    algorithm.set_query_arguments(16, 64, 50)
    assert algorithm.query(rows[7], 10)[0] == 7 and len(algorithm.query(rows[7], 10)) == 10
    algorithm.batch_query(rows[:50], 10)
    assert (algorithm.get_batch_results()[:, 0] == np.arange(50)).mean() > 0.9
    assert "rerank=50" in str(algorithm)
    algorithm.done()
    with pytest.raises(NotImplementedError):
        module.Aggtree("hamming", "default")


def test_the_adaptors_parameters_fit_its_class() -> None:
    text = (generated.ROOT / "bench" / "ann_benchmarks" / "config.yml").read_text()
    assert "constructor: Aggtree" in text and "module: ann_benchmarks.algorithms.aggtree" in text
    groups = re.findall(r"query_args: (\[.*\])", text)
    assert [len(json.loads(group)) for group in groups] == [3, 3]


def test_every_part_of_the_pages_is_made_of_lines(tmp_path: Path) -> None:
    """Lines as the long benchmarks write them become tables and pictures, each named on its page."""
    matrix = [[8.0, 0.5], [0.5, 8.0]]
    for method in ("pq", "da"):
        found = {"mutual": matrix, "local_mutual": matrix, "self_information": [8.0, 8.0]}
        record.write(
            "information", {"prefix": "gist", "method": method}, found | {"local_conditional": [3.0, 2.0]}
        )
    points = [
        {"L_0": start, "L_s": growth, "recall": [0.1, 0.2, 0.3 + start / 99], "nodes": 9.0, "leaves": 9.0}
        | {"batch_ms": 0.1 * start}
        for growth in (1.0, 2.0)
        for start in (1, 2, 4)
    ]
    every = {"retrieved": [1, 10, 100], "recall": [0.2, 0.5, 0.9]}
    record.write("paper_search", {"prefix": "sift"}, {"points": points, "exhaustive": every})
    for method in ("da", "pq"):
        parameters = {"table": "training", "prefix": "sift", "bytes": 8, "method": method, "run": "1"}
        curve = {"curve": [[1.0, 30.0, 30.0], [9.0, 20.0, 20.0]]} if method == "da" else {}
        record.write("quantizer", parameters, {"E": 20.0, "sample_E": 20.0, "seconds": 9.0} | curve)
    parameters = {"table": "online", "prefix": "sift", "bytes": 8, "batch_rows": 100}
    record.write("quantizer", parameters, {"E": [30.0, 10.0], "seconds": [1.0, 1.0]})
    parameters = {"table": "encoding", "prefix": "sift", "bytes": 8}
    record.write("quantizer", parameters, {"beams": {"1": [30.0, 9.0], "10": [20.0, 5.0]}})
    opened = {"open_seconds": 0.01, "cold": {"p50_ms": 5.0}, "warm": {"p50_ms": 0.5}}
    stages = [{"name": "sort", "projected": 600 << 20, "peak": 512 << 20}]
    tree = {"seconds": 900.0, "peak": 2**30, "stages": stages}
    found = {"tree": tree, "words": [4096, 256, 256], "bytes_per_vector": 13.0, "opening": opened}
    record.write("billion", {"rows": 10**9}, found)
    output = generated.Output()
    parts = {**paper_report.parts(), **paper_figures.parts(output), **scale_report.parts(output)}
    missing = {name for name, text in parts.items() if generated.MISSING in text}
    assert missing == {"search", "builds", "curves", "growth", "peers", "readers", "predictions"}
    assert "| online DA | 16,573 (0.704) | 10.0000 (0.500) |" in parts["errors-sift"]
    assert "| 1,000,000,000 | 4096 + 2 x 256 | 15 min 0 s | 1 GiB | 13.00 |" in parts["billion"]
    assert "| sort | 600 / 512 |" in scale_report.memory_table()
    names = {path.name for path in output.files}
    assert len(names) == 11 and all(f"../images/{name}" in "".join(parts.values()) for name in names)
    for text in output.files.values():
        ElementTree.fromstring(text)
