"""Inner product and cosine: exact, re-ranked and tree search against brute force, and their builds."""

import json
from pathlib import Path

import naive
import numpy as np
import pytest
from click.testing import CliRunner
from helpers.flat_vectors import flat
from helpers.random_trees import make
from helpers.random_trees import vectors as reconstructions
from helpers.sizes import JIT, sized
from helpers.small_builds import DIMENSION, ROWS, SMALL, SMALL_ARGUMENTS, contents, vectors
from helpers.trees import LAYOUTS, random_queries

import aggtree
from aggtree.engine.exact.neighbours import ExactSearch
from aggtree.engine.exact.unit_kernels import scale_to_unit
from aggtree.engine.params import SearchParams
from aggtree.engine.search.metrics import CosineSearcher, InnerProductSearcher, make_searcher
from aggtree.engine.search.rerank import Reranker
from aggtree.engine.search.searcher import Searcher
from aggtree.jobs.cli.main import cli
from aggtree.storage.errors import SourceError
from aggtree.storage.index.format import TRANSFORMED_VERSION
from aggtree.storage.sources.array import ArraySource
from aggtree.storage.sources.base import open_source, read_ground_truth
from aggtree.storage.sources.unit_rows import UnitRows
from aggtree.storage.verify.index import verify_index

METRICS = ["ip", "cosine"]
EVERYTHING = SearchParams.unlimited()
QUERIES = sized(20, 8)


def brute(queries: np.ndarray, base: np.ndarray, k: int, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Ids and distances of the k nearest, in order."""
    every = np.array([naive.metric_distance(query, base, metric) for query in queries])
    order = np.argsort(every, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(every, order, axis=1)


def data(kind: type, rows: int = 500, dimension: int = 19, seed: int = 0) -> np.ndarray:
    """Vectors of quite different lengths."""
    random = np.random.default_rng(seed)
    if kind in (np.uint8, np.int8):
        made = random.integers(0 if kind == np.uint8 else -120, 120, (rows, dimension)).astype(kind)
        return np.where(made == 0, 1, made).astype(kind)
    return (random.normal(size=(rows, dimension)) * random.uniform(0.2, 4, (rows, 1))).astype(kind)


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.float32, np.float64])
@pytest.mark.parametrize("dimension", [1, 8, 19])
def test_rows_are_scaled_as_their_twin_does(kind: type, dimension: int) -> None:
    rows = data(kind, 50, dimension)
    out = np.empty(rows.shape, np.float32)
    scale_to_unit(rows, out)
    np.testing.assert_allclose(out, naive.scale_to_unit(rows), rtol=1e-6)
    half = np.empty((25, dimension), np.float32)
    scale_to_unit(rows[25:], half)
    np.testing.assert_array_equal(half, out[25:])
    scale_to_unit(np.zeros((1, dimension), kind), half[:1])
    assert np.isnan(half[0]).all()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.float32])
def test_exact_and_re_ranked_answers_are_those_of_brute_force(metric: str, kind: type) -> None:
    base, queries = data(kind), data(kind, 7, seed=1)
    ids, distances = brute(queries, base, 20, metric)
    for step in (500, 77):
        search = ExactSearch(queries, 20, metric)
        for start in range(0, 500, step):
            search.add(base[start : start + step], start)
        found = search.result()
        np.testing.assert_array_equal(found[0], ids)
        np.testing.assert_allclose(found[1], distances, rtol=1e-5, atol=1e-6)
    candidates = np.stack([np.random.default_rng(i).permutation(500) for i in range(7)])
    for asked in (queries, queries.astype(np.float32)):
        answer = Reranker(metric).rank(asked, flat(base), candidates, 20, threads=2)
        np.testing.assert_array_equal(answer.ids, ids)
        np.testing.assert_allclose(answer.distances, distances, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("words", LAYOUTS)
@pytest.mark.parametrize("one_stage", [4096, 2])
def test_the_tree_ranks_by_inner_product(words: tuple[int, ...], one_stage: int) -> None:
    codes, ids, dictionaries, tree, _ = make(words, 600, bucket=9, norm_bytes=1)
    queries = np.concatenate([random_queries(4) * 3.7, np.zeros((1, 11), np.float32)])
    searcher = InnerProductSearcher(tree, dictionaries, one_stage=one_stage)
    assert searcher.tree.norms is not searcher._scored.norms
    answer = searcher.search(queries, 50, EVERYTHING)
    every = -(queries @ reconstructions(codes, dictionaries).T)
    place = np.argsort(ids)
    for i in range(len(queries)):
        rows = place[np.searchsorted(ids[place], answer.ids[i])]
        np.testing.assert_allclose(answer.distances[i], np.sort(every[i])[:50], rtol=1e-4, atol=1e-2)
        np.testing.assert_allclose(answer.distances[i], every[i][rows], rtol=1e-4, atol=1e-2)
    narrow = searcher.search(queries, 900, SearchParams(limits=(1,)))
    assert (narrow.distances[narrow.ids < 0] == np.inf).all()


def test_each_metric_has_its_searcher() -> None:
    _, _, dictionaries, tree, _ = make((3,) * 4, 90, norm_bytes=1)
    kinds = [type(make_searcher(metric, tree, dictionaries)) for metric in ("l2", "ip", "cosine")]
    assert kinds == [Searcher, InnerProductSearcher, CosineSearcher]
    exact = make((3,) * 4, 90, norm_bytes=4)[3]
    with pytest.raises(ValueError, match="norms of 4 bytes"):
        make_searcher("ip", exact, dictionaries)


def test_rows_of_length_1_are_a_source(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", vectors())
    source = open_source(f"unit:{tmp_path / 'a.npy'}")
    assert isinstance(source, UnitRows) and source.dtype == np.float32
    expected = naive.scale_to_unit(vectors())
    np.testing.assert_allclose(source.read(100, 2000), expected[100:2000], rtol=1e-6)
    np.testing.assert_array_equal(source.take([5, 3]), source.read(3, 6)[[2, 0]])
    other = UnitRows(ArraySource(vectors()))
    assert source.fingerprint() == other.fingerprint() != ArraySource(vectors()).fingerprint()
    source.close()


@pytest.fixture(scope="module", params=METRICS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A metric, and a place with vectors, queries and an index of that metric."""
    place = tmp_path_factory.mktemp(request.param)
    np.save(place / "base.npy", vectors())
    np.save(place / "query.npy", vectors(QUERIES, seed=1))
    aggtree.build(place / "base.npy", place / "index", metric=request.param, workers=0, **SMALL)
    return request.param, place


def test_a_built_index_answers_by_its_metric(built: tuple[str, Path]) -> None:
    metric, place = built
    queries = vectors(QUERIES, seed=1)
    ids, distances = brute(queries, vectors(), 10, metric)
    with aggtree.open(place / "index") as index:
        assert index.manifest.metric == metric and index.manifest.version == TRANSFORMED_VERSION
        assert index.manifest.first_segment.vectors == str(place / "base.npy")
        answer = index.search(queries, 10, EVERYTHING, rerank=ROWS)
        np.testing.assert_allclose(answer.distances, distances, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(answer.ids[:, 0], ids[:, 0])
        scaled = index.search(queries * 3.0, 10, EVERYTHING, rerank=ROWS)
        np.testing.assert_array_equal(scaled.ids, answer.ids)
        near = index.search(queries, 100)
        assert (np.diff(near.distances, axis=1) >= 0).all()
        assert np.mean([ids[i, 0] in near.ids[i] for i in range(QUERIES)]) > (0.9 if JIT else 0.7)
        rough = naive.metric_distance(queries[0], vectors()[near.ids[0]], metric)
        spread = np.ptp(naive.metric_distance(queries[0], vectors(), metric))
        assert np.abs(rough - near.distances[0]).mean() < 0.1 * spread
        mask = np.arange(ROWS) % 3 == 0
        within = index.search(queries, 10, EVERYTHING, rerank=ROWS, within=mask)
        expected = brute(queries, vectors()[mask], 10, metric)[1]
        np.testing.assert_allclose(within.distances, expected, rtol=1e-5, atol=1e-6)
        for call in (lambda: index.search(queries, 5, radius=1.0), lambda: index.range_search(queries, 1.0)):
            with pytest.raises(ValueError, match="expected an index of metric l2"):
                call()
    assert verify_index(place / "index", deep=True) == []


def test_without_vectors_and_of_any_array(built: tuple[str, Path], tmp_path: Path) -> None:
    metric, place = built
    aggtree.build(vectors(), tmp_path / "i", metric=metric, workers=1, **SMALL)
    for name, digest in contents(place / "index").items():
        if "build-" in name:
            assert contents(tmp_path / "i")[name] == digest
    with aggtree.open(tmp_path / "i") as index:
        few = index.search(vectors(3, seed=1), 5, within=range(40))
    assert ((few.ids >= 0) & (few.ids < 40)).all()
    with pytest.raises(SourceError, match="not the vectors that"):
        aggtree.open(tmp_path / "i", vectors=vectors(seed=3))


def test_the_command_line(built: tuple[str, Path], tmp_path: Path) -> None:
    metric, place = built

    def run(*arguments: object) -> str:
        answer = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
        assert answer.exit_code == 0, answer.output
        return answer.output

    base, query, truth = place / "base.npy", place / "query.npy", tmp_path / "truth.ivecs"
    run("exact", base, query, "-k", 5, "--metric", metric, "--out", truth)
    assert (
        read_ground_truth(truth)[:, 0].tolist()
        == brute(vectors(QUERIES, seed=1), vectors(), 1, metric)[0][:, 0].tolist()
    )
    index = tmp_path / "i"
    run("train", base, index, "--metric", metric, "--workers", 0, *SMALL_ARGUMENTS)
    run("encode", base, index, "--workers", 0)
    run("commit", index, "--workers", 0)
    assert contents(index) == contents(place / "index")
    asked = ("search", index, query, "-k", 5, "--limits", 0, "--rerank", ROWS, "--ground-truth", truth)
    assert json.loads(run(*asked, "--json"))["recall"]["R@1"] == 1
    assert f"metric {metric}" in run("info", index)
    assert "rows of dimension" in run("plan", base, "--metric", metric, *SMALL_ARGUMENTS)


def test_what_has_no_direction_is_reported(built: tuple[str, Path], tmp_path: Path) -> None:
    metric, place = built
    zero = np.zeros(DIMENSION, np.float32)
    with aggtree.open(place / "index") as index:
        if metric == "ip":
            assert (index.search(zero, 5).distances == 0).all()
        else:
            with pytest.raises(ValueError, match="query 0 is all zeros"):
                index.search(zero, 5)
    if metric == "cosine":
        with pytest.raises(ValueError, match="query 0 is all zeros"):
            ExactSearch(zero, 1, "cosine")
        base = vectors()
        base[634] = 0
        with pytest.raises(SourceError, match="row 634"):
            aggtree.build(base, tmp_path / "i", metric="cosine", workers=0, **SMALL)
        aggtree.build(base, tmp_path / "j", metric="cosine", skip_invalid=True, workers=0, **SMALL)
        with aggtree.open(tmp_path / "j", vectors=base) as index:
            assert len(index) == ROWS - 1
            assert 634 not in index.search(vectors(2, seed=1), 40, within=range(600, 640)).ids


def test_wrong_metrics_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="metric 'dot': expected l2 or ip or cosine"):
        aggtree.build(vectors(), tmp_path / "i", metric="dot", workers=0, **SMALL)
    with pytest.raises(ValueError, match="inner products need no norms"):
        aggtree.build(vectors(), tmp_path / "i", metric="ip", norm_bytes=4, workers=0, **SMALL)
