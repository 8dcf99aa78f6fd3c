"""Builds of data far from zero, in tiny units or with far rows, and the warnings of builds."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.in_memory import exact_distances
from helpers.sizes import many_rows

import aggtree
from aggtree.engine import transform
from aggtree.engine.params import SearchParams
from aggtree.jobs.cli.main import cli
from aggtree.storage.index.build_report import read_report
from aggtree.storage.index.dictionary_file import load_dictionaries
from aggtree.storage.index.manifest import read_manifest

pytestmark = many_rows
ROWS, QUERIES, DIMENSION = 2000, 100, 16
RECORDS: dict[str, Any] = {"words": (128, 128, 128), "beam": 4}
PLANES: dict[str, Any] = {"bytes_per_vector": 5, "beam": 4}
KINDS = pytest.mark.parametrize("options", [RECORDS, PLANES], ids=["records", "planes"])


def vectors() -> np.ndarray:
    """Rows, then queries."""
    random = np.random.default_rng(3)
    axes = random.normal(size=(DIMENSION, DIMENSION)) / 4
    return (random.normal(size=(ROWS + QUERIES, DIMENSION)) @ axes).astype(np.float32)


def found(index: Path, rows: np.ndarray, queries: np.ndarray) -> float:
    """Share of the ten nearest that are found."""
    exact = np.array([exact_distances(query, rows, "l2") for query in queries.astype(np.float64)])
    with aggtree.open(index) as opened:
        ids = opened.search(queries, 10, SearchParams.unlimited()).ids
    limit = np.sort(exact, axis=1)[:, 9:10]
    return float((np.take_along_axis(exact, ids, axis=1) <= limit).mean())


def build(rows: np.ndarray, place: Path, options: dict[str, Any]) -> aggtree.BuildResult:
    return aggtree.build(rows, place, workers=0, progress=False, **options)


def outlier(data: np.ndarray) -> np.ndarray:
    data = data.copy()
    data[17] *= 1000
    return data


CHANGES = {
    "offset 1,000": lambda data: data + np.float32(1000),
    "unit 1e-20": lambda data: data * np.float32(2.0**-66),
    "unit 1e20": lambda data: data * np.float32(2.0**66),
    "an outlier": outlier,
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Recall of the data as they are, by the kind of leaves."""
    data, place = vectors(), tmp_path_factory.mktemp("plain")
    recall = {}
    for name, options in {"records": RECORDS, "planes": PLANES}.items():
        build(data[:ROWS], place / name, options)
        recall[name] = found(place / name, data[:ROWS], data[ROWS:])
    return recall


@KINDS
@pytest.mark.parametrize("change", CHANGES)
def test_recall_is_that_of_plain_data(
    tmp_path: Path, plain: dict[str, float], options: dict[str, Any], change: str
) -> None:
    data = CHANGES[change](vectors())
    build(data[:ROWS], tmp_path / "index", options)
    expected = plain["planes" if options is PLANES else "records"]
    assert found(tmp_path / "index", data[:ROWS], data[ROWS:]) > expected - 0.05
    assert aggtree.verify(tmp_path / "index", deep=True) == []


def test_a_dimension_that_dwarfs_the_others_is_reported(tmp_path: Path) -> None:
    data = vectors()
    data[:, 0] *= 10_000
    result = build(data[:ROWS], tmp_path / "index", RECORDS)
    assert len(result.warnings) == 1 and "norm_bytes 4" in result.warnings[0]
    report = read_report(tmp_path / "index", read_manifest(tmp_path / "index").first_segment.build)
    assert report is not None and report.quality is not None and report.quality.too_coarse


def test_a_plain_build_measures_itself_and_warns_of_nothing(tmp_path: Path) -> None:
    data = vectors()[:ROWS]
    result = build(data, tmp_path / "index", RECORDS)
    assert result.warnings == () and result.recall is not None and 0.3 < result.recall < 1
    with aggtree.open(tmp_path / "index") as index:
        errors = ((index.reconstruct(np.arange(ROWS)) - data) ** 2).sum(axis=1)
    assert result.distortion == pytest.approx(errors.mean(), rel=1e-5)
    report = read_report(tmp_path / "index", read_manifest(tmp_path / "index").first_segment.build)
    assert report is not None and report.quality is not None
    assert report.quality.recall == result.recall and report.quality.rows == ROWS


def test_far_rows_are_counted_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = vectors()
    data[[5, 700, 1999]] *= 1e6
    np.save(tmp_path / "rows.npy", data[:ROWS])
    with caplog.at_level(logging.INFO, "aggtree"):
        result = aggtree.build(tmp_path / "rows.npy", tmp_path / "index", workers=0, **RECORDS)
    assert len(result.warnings) == 1 and "3 of 2,000 rows are far from all others" in result.warnings[0]
    assert result.warnings[0] in caplog.text
    arguments = ["build", tmp_path / "rows.npy", tmp_path / "other", "--words", "128x3", "--workers", "0"]
    shown = CliRunner().invoke(cli, [*map(str, arguments)])
    assert shown.exit_code == 0 and "3 of 2,000 rows are far" in shown.output
    # A query near a far row finds it.
    with aggtree.open(tmp_path / "index") as index:
        ids, distances = index.search(data[[5, 700, 1999]] * 1.001, 5)
    assert [row in near for row, near in zip([5, 700, 1999], ids, strict=True)] == [True] * 3
    assert np.isfinite(distances).all() and (np.diff(distances) >= 0).all()


@KINDS
def test_an_index_of_moved_and_scaled_rows_grows(tmp_path: Path, options: dict[str, Any]) -> None:
    data = vectors() * np.float32(2.0**-30) + np.float32(2.0**-22)
    rows, queries = data[:ROWS], data[ROWS:]
    build(rows[:1200], tmp_path / "index", options)
    aggtree.append(tmp_path / "index", rows[1200:], workers=0, progress=False)
    manifest = read_manifest(tmp_path / "index")
    assert manifest.version == 5 and manifest.first_segment.transformed
    place = tmp_path / "index" / manifest.first_segment.directory / "dictionaries"
    learned = load_dictionaries(place)[0].transform
    assert learned.mean is not None and learned.exponent > 20
    before = found(tmp_path / "index", rows, queries)
    with aggtree.open(tmp_path / "index") as index:
        made = index.reconstruct(np.arange(ROWS)).astype(np.float64)
        apart = ((made - rows) ** 2).sum(axis=1).mean()
        assert apart < 0.5 * ((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean()
        ids, distances = index.search(queries, 5, SearchParams.unlimited(), rerank=0)
        exact = ((queries[:, None].astype(np.float64) - made[ids]) ** 2).sum(axis=2)
        np.testing.assert_allclose(distances, exact, rtol=0.1, atol=0.02 * exact.max())
        inside = index.range_search(queries, float(np.sqrt(distances[0, 4])) * 1.0001)
        assert inside.starts[1] >= 5
    aggtree.compact(tmp_path / "index", workers=0, progress=False)
    assert found(tmp_path / "index", rows, queries) == before
    assert aggtree.verify(tmp_path / "index", deep=True) == []
    reused = aggtree.build(
        rows, tmp_path / "reused", dictionaries=tmp_path / "index", workers=0, progress=False, beam=4
    )
    assert reused.rows == ROWS
    assert found(tmp_path / "reused", rows, queries) > before - 0.05


@pytest.mark.parametrize("metric", ["ip", "cosine"])
def test_other_metrics_of_moved_rows_return_their_distances(tmp_path: Path, metric: Any) -> None:
    data = vectors() + np.float32(5)
    rows, queries = data[:ROWS], data[ROWS:]
    aggtree.build(rows, tmp_path / "index", metric=metric, workers=0, progress=False, **RECORDS)
    with aggtree.open(tmp_path / "index", rows) as index:
        ids, distances = index.search(queries, 5, SearchParams.unlimited(), rerank=0)
        made = index.reconstruct(ids.ravel()).reshape(*ids.shape, DIMENSION).astype(np.float64)
        exact = index.search(queries, 5, SearchParams.unlimited(), rerank=50).distances
    products = np.einsum("qd,qkd->qk", queries.astype(np.float64), made)
    if metric == "ip":
        np.testing.assert_allclose(distances, -products, rtol=1e-4)
    else:
        np.testing.assert_allclose(distances, exact, atol=0.3 * exact.max())


def test_an_export_to_faiss_decodes_the_rows(tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    data = vectors()[:ROWS] * np.float32(2.0**-30) + np.float32(2.0**-22)
    build(data, tmp_path / "index", RECORDS)
    aggtree.export(tmp_path / "index", tmp_path / "out.faiss", progress=False)
    with aggtree.open(tmp_path / "index") as index:
        made = index.reconstruct(np.arange(50))
    there = faiss.read_index(str(tmp_path / "out.faiss"))
    np.testing.assert_allclose([there.reconstruct(row) for row in range(50)], made, rtol=1e-5)


def test_codes_follow_dictionaries_that_another_release_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = vectors() + np.float32(1)
    rows, queries = data[:ROWS], data[ROWS:]
    monkeypatch.setattr(transform, "FAR_MEAN", np.inf)
    build(rows, tmp_path / "index", RECORDS)
    manifest = read_manifest(tmp_path / "index")
    before = found(tmp_path / "index", rows, queries)
    (tmp_path / "index" / manifest.first_segment.directory / "dictionaries").unlink()
    monkeypatch.setattr(transform, "FAR_MEAN", 0.0)
    aggtree.build(rows, tmp_path / "index", workers=0, progress=False, repair=True, **RECORDS)
    assert read_manifest(tmp_path / "index").first_segment.transformed
    assert aggtree.verify(tmp_path / "index", deep=True) == []
    assert found(tmp_path / "index", rows, queries) > before - 0.05
