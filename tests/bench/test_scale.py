"""The benchmarks of large trees, at tiny sizes: they run, and what they record makes sense."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.data_sets import write_set
from helpers.sizes import measures_speed
from helpers.small_builds import SMALL, WIDE, vectors

import aggtree
from aggtree.engine.dictionaries import CodeLayout
from aggtree.storage.verify.index import verify_index
from bench import record
from bench.build import append, billion
from bench.data import grown_codes
from bench.data.grown_codes import grown, real_codes, statistics
from bench.report import scale_report


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test measures is recorded nowhere else."""
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")


def last(benchmark: str) -> dict[str, Any]:
    results: dict[str, Any] = record.read(benchmark)[-1]["results"]
    return results


def clustered_codes(layout: CodeLayout, rows: int, seed: int) -> np.ndarray:
    """Codes with a skewed first label, and labels that depend on it."""
    random = np.random.default_rng(seed)
    first = (layout.words[0] * random.random(rows) ** 3).astype(np.int64)
    rest = [(first + random.geometric(0.05, rows)) % size for size in layout.words[1:]]
    return layout.pack(np.column_stack([first, *rest]))


@measures_speed
@pytest.mark.parametrize("words", [(200, 64, 64, 64, 64), (1000, 64, 64, 64), (9,)])
def test_grown_codes_share_prefixes_as_more_real_ones_do(words: tuple[int, ...]) -> None:
    layout = CodeLayout(words)
    codes = clustered_codes(layout, 40_000, 1)
    real = real_codes(codes[:10_000], layout)
    made = grown(real, 10_000, 30_000)
    assert np.array_equal(made, grown(real, 10_000, 30_000))
    assert layout.levels == 1 or not np.array_equal(made, grown(real, 40_000, 30_000))
    truth, ours = (statistics(rows, layout) for rows in (codes, np.concatenate([codes[:10_000], made])))
    np.testing.assert_allclose(ours["prefixes"], truth["prefixes"], rtol=0.1)
    for name, tree in truth["trees"].items():
        assert ours["trees"][name]["bytes"] == pytest.approx(tree["bytes"], rel=0.1)


def test_a_grown_code_keeps_what_its_model_shares() -> None:
    layout = CodeLayout((5, 200, 200, 200))
    codes = clustered_codes(layout, 3000, 2)
    known = [{bytes(code[:length]) for code in codes} for length in range(5)]
    for code in grown(real_codes(codes, layout), 0, 3000):
        assert bytes(code[:1]) in known[1]
        assert (layout.labels(code[None]) < layout.words).all()
    equal = np.tile(codes[:1], (100, 1))
    assert (grown(real_codes(equal, layout), 5, 77) == codes[0]).all()


def test_the_growth_of_codes_is_recorded(tmp_path: Path) -> None:
    aggtree.build(vectors(), tmp_path / "index", workers=0, **SMALL)
    grown_codes.main(["--codes", str(tmp_path / "index"), "--start", "1000", "--rows", "3000"])
    assert set(last("grown_codes")) == {"start", "real", "grown"}


@measures_speed
def test_codes_of_a_billion_become_an_index(tmp_path: Path) -> None:
    aggtree.build(vectors(), tmp_path / "real", workers=0, **WIDE)
    np.save(tmp_path / "queries.npy", vectors(20, seed=3))
    options = ["--codes", str(tmp_path / "real"), "--work", str(tmp_path / "grown"), "--rows", "9100"]
    options += ["--shard-rows", "2000", "--memory", "1GiB", "--queries", str(tmp_path / "queries.npy")]
    assert billion.main(options) == 0
    found = last("billion")
    assert found["tree"]["rows"] == 9100 and found["generate"]["rows"] == 9100
    assert found["opening"]["warm"]["p50_ms"] > 0
    assert verify_index(tmp_path / "grown") == []
    with aggtree.open(tmp_path / "real") as real, aggtree.open(tmp_path / "grown") as index:
        ours, theirs = (
            opened.search(vectors()[:5], 50, aggtree.SearchParams.unlimited()) for opened in (index, real)
        )
        # Real rows keep their ids, so what was found before is found among more.
        assert all(set(b[b >= 0][:1]) <= set(a) for a, b in zip(ours.ids, theirs.ids, strict=True))
    assert billion.main(options) == 2


@measures_speed
def test_the_papers_search(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    from bench.search import paper_search

    write_set(tmp_path)
    options = ["--data", str(tmp_path), "--prefix", "tiny", "--words", "16x4", "--rounds", "2"]
    assert paper_search.main([*options, "--growths", "1", "2"]) == 0
    found = last("paper_search")
    for growth in (1, 2):
        mine = [point for point in found["points"] if point["L_s"] == growth]
        assert mine[0]["nodes"] < mine[-1]["nodes"]
        assert mine[0]["recall"][2] <= mine[-1]["recall"][2] <= found["exhaustive"]["recall"][-1]


@measures_speed
def test_growing_beside_one_build(tmp_path: Path) -> None:
    write_set(tmp_path)
    assert append.main(["--data", str(tmp_path), "--prefix", "tiny", "--parts", "3", "--workers", "0"]) == 0
    found = last("append")
    assert found["same_bytes"] and found["difference"] == 0
    assert (found["grown"]["segments"], found["compacted"]["segments"]) == (3, 1)
    assert found["deleted"]["rows"] < found["compacted"]["rows"] == 2000


@measures_speed
def test_generated_rows_beside_faiss_and_growth(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    from bench.search import growth, ten_million

    options = ["--rows", "3000", "--queries", "30", "--targets", "0.5", "--words", "64,16x4"]
    options += ["--faiss", "IVF16_HNSW32,PQ8", "--work", str(tmp_path), "--memory", "1GiB"]
    assert ten_million.main(options) == 0
    assert ten_million.main(options) == 0
    found = last("ten_million")["points"]["0.5"]
    assert all(point["recall"][2] >= 0.5 and point["batch_ms"] > 0 for point in found.values())
    assert "| 0.5 | IVF16_HNSW32,PQ8 |" in scale_report.peer_table()
    queries = "synthetic:sift?rows=30&seed=1&first=10000000000"
    index, truth = str(tmp_path / "aggtree_3000.index"), str(tmp_path / "truth_3000_30.npy")
    assert growth.main(["--queries", queries, "--index", index, "--truth", truth, "--target", "0.5"]) == 0
    assert last("growth")["indexes"]["3000"]["growth"] == {"batch_ms": 1, "single_p50_ms": 1}
