"""Tuning: searches reach the measured recall; requests beyond the measurements are refused."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.sizes import JIT, sized
from helpers.small_builds import ROWS, SMALL, SMALL_ARGUMENTS, make_ids, vectors
from hypothesis import given
from hypothesis import strategies as st

import aggtree
from aggtree.engine.params import SearchParams
from aggtree.engine.search.tuned import TunedPoint, Tuning, pareto
from aggtree.jobs import tune as tune_job
from aggtree.jobs.cli.main import cli
from aggtree.jobs.cli.tune_command import plot
from aggtree.jobs.running.progress import make_progress
from aggtree.jobs.search import share_found
from aggtree.jobs.tune import QuerySet, Resources, exact_queries, sampled_queries, tune_opened, without
from aggtree.storage.errors import IndexFormatError, SourceError
from aggtree.storage.index.format import TUNING
from aggtree.storage.index.tuning import point_from_json, point_to_json, read_tuning, write_tuning
from aggtree.storage.sealed_json import read_sealed, write_sealed

K, QUERIES = 5, sized(40, 12)
BUDGET = {"threads": 2, "allowed": 2**30}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_job, "TIMED_QUERIES", 3)
    monkeypatch.setattr(tune_job, "TURNS", 2)
    monkeypatch.setattr(tune_job, "BELOW", (0.01, 1.0))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tune")
    np.save(place / "base.npy", vectors())
    np.save(place / "query.npy", vectors(QUERIES, seed=1))
    aggtree.build(place / "base.npy", place / "index", ids=make_ids(), workers=0, **SMALL)
    return place


def truth(queries: np.ndarray, k: int) -> np.ndarray:
    distances = ((queries[:, None].astype(np.int64) - vectors()) ** 2).sum(axis=2)
    rows = np.broadcast_to(np.arange(ROWS), distances.shape)
    return np.lexsort((rows, distances))[:, :k]


def test_a_search_finds_what_was_promised(place: Path) -> None:
    queries = vectors(QUERIES, seed=1)
    with aggtree.open(place / "index") as index, make_progress(False) as progress:
        with pytest.raises(ValueError, match=r"was not tuned; call aggtree\.tune or run `aggtree tune"):
            index.search(queries, K, recall=0.5)
        query_set = exact_queries(index, queries, K, resources=Resources(progress=progress, **BUDGET))
        np.testing.assert_array_equal(query_set.truth, make_ids()[truth(queries, K)])
        points = tune_opened(index, query_set, K, rerank=True, progress=progress)
        assert len(points) > 3 and points[-1].recall > 0.99
        if JIT:  # otherwise codes are so coarse that re-ranking more candidates is always better
            assert any(point.rerank == 0 for point in points) or points[0].rerank == K
        for point in points:
            answer = index.search(queries, K, point.params, rerank=point.rerank)
            assert share_found(answer.ids, query_set.truth) == pytest.approx(point.recall, abs=1e-9)
            shares = [
                len(set(row) & set(true)) / K for row, true in zip(answer.ids, query_set.truth, strict=True)
            ]
            assert point.error == pytest.approx(1.96 * statistics.pstdev(shares) / len(shares) ** 0.5)
            chosen = index.search(queries, K, recall=point.recall - 1e-9)
            np.testing.assert_array_equal(chosen.ids, answer.ids)
            in_time = index.tuning.choose(K, None, point.milliseconds)
            assert in_time.recall >= point.recall
        with pytest.raises(ValueError, match="tuned for k 5, not for 100"):
            index.search(queries, recall=0.5)
        with pytest.raises(ValueError, match=r"recall 1.1: the highest measured recall is (1|0.9)"):
            index.search(queries, K, recall=1.1)
        with pytest.raises(ValueError, match="the fastest measured search takes"):
            index.search(queries, K, time_ms=1e-9)
        for options in ({"rerank": 9}, {"params": SearchParams.unlimited()}, {"time_ms": 3.0}):
            with pytest.raises(ValueError, match="expected one of the three"):
                index.search(queries, K, recall=0.5, **options)
    with aggtree.open(place / "index") as again:
        assert again.tuning.points[K] == points


def test_rows_of_the_index_are_asked_for_others(place: Path) -> None:
    with aggtree.open(place / "index") as index, make_progress(False) as progress:
        query_set = sampled_queries(
            index, QUERIES, K, seed=0, resources=Resources(progress=progress, **BUDGET)
        )
        assert query_set.own is not None
        assert not (query_set.truth == query_set.own[:, None]).any()
        points = tune_job.measured_recalls(index, query_set, K, rerank=True)
        assert points[-1].recall > 0.9
        plain = tune_job.measured_recalls(index, query_set, K, rerank=False)
        assert {point.rerank for point in plain} == {0}
        few = QuerySet(queries=query_set.queries, truth=query_set.truth[:, :2])
        with pytest.raises(SourceError, match="ground truth of 2 neighbours: 5 are needed"):
            tune_job.measured_recalls(index, few, K, rerank=False)


def test_own_ids_are_taken_out_wherever_they_are() -> None:
    found = np.array([[7, 3, 5], [4, 7, 1], [1, 2, 3]])
    assert without(found, np.array([7, 7, 9]), 2).tolist() == [[3, 5], [4, 1], [1, 2]]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=1))
def test_the_best_points_are_those_no_other_beats(pairs: list[tuple[int, int]]) -> None:
    points = [TunedPoint(limits=(1,), rerank=0, recall=r / 5, milliseconds=float(t)) for r, t in pairs]
    best = pareto(points)
    beaten = {
        (found, taken)
        for found, taken in pairs
        if any((r >= found and t < taken) or (r > found and t <= taken) for r, t in pairs)
    }
    assert {(round(5 * p.recall), int(p.milliseconds)) for p in best} == set(pairs) - beaten
    assert list(best) == sorted(best, key=lambda point: point.milliseconds)
    assert len(plot(best)) > 5


def test_it_is_kept_whole_or_refused(tmp_path: Path) -> None:
    point = TunedPoint(limits=(3, 0), rerank=7, recall=0.5, milliseconds=0.25, error=0.01)
    near = TunedPoint(limits=(3, 0), rerank=7, recall=0.5, milliseconds=0.25, pruning_ratio=1.3)
    assert point_from_json(point_to_json(near)) == near and near.params.pruning_ratio == 1.3
    tuning = Tuning(build="0" * 12).with_points(1, [point])
    assert read_tuning(tmp_path, tuning.build) is None
    write_tuning(tmp_path, tuning)
    assert read_tuning(tmp_path, tuning.build) == tuning
    assert read_tuning(tmp_path, "1" * 12) is None
    path = tmp_path / TUNING
    record = read_sealed(path)
    older = {name: value for name, value in point_to_json(point).items() if name != "error"}
    write_sealed(path, record | {"points": {"1": [older]}})
    assert read_tuning(tmp_path, tuning.build).points[1] == (replace(point, error=0.0),)
    write_tuning(tmp_path, tuning)
    path.write_bytes(path.read_bytes().replace(b"0.25", b"0.75"))
    with pytest.raises(IndexFormatError, match="damaged"):
        read_tuning(tmp_path, tuning.build)
    for change in ({"points": {"1": []}}, {"points": 3}, {"format": "x"}, {"version": 2}):
        write_sealed(path, record | change)
        with pytest.raises(IndexFormatError, match=r"call aggtree\.tune or run `aggtree tune` again"):
            read_tuning(tmp_path, tuning.build)


def test_the_command(tmp_path: Path) -> None:
    def run(*arguments: object) -> str:
        answer = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
        assert answer.exit_code == 0, answer.output
        return answer.output

    np.save(tmp_path / "base.npy", vectors())
    np.save(tmp_path / "query.npy", vectors(QUERIES, seed=1))
    np.save(tmp_path / "truth.npy", truth(vectors(QUERIES, seed=1), 10))
    index = tmp_path / "i"
    run("build", tmp_path / "base.npy", index, "--workers", 0, *SMALL_ARGUMENTS)
    queries = ("--queries", tmp_path / "query.npy")
    text = run("tune", index, *queries, "--ground-truth", tmp_path / "truth.npy")
    assert "recall" in text and "logarithmic" in text
    events = [json.loads(line) for line in run("tune", index, *queries, "-k", 3, "--json").splitlines()]
    assert events[-1]["k"] == 3 and events[-1]["points"]
    run("tune", index, "--sample", 20, "-k", 2, "--no-rerank")
    assert "tuned for k 10: recall" in run("info", index)
    asked = ("search", index, tmp_path / "query.npy", "--ground-truth", tmp_path / "truth.npy")
    report = json.loads(run(*asked, "-k", 10, "--recall", 0.9, "--json"))
    assert report["found"] >= 0.9
    assert "of the true 10 nearest, found" in run(*asked, "-k", 10, "--time-ms", 1000)
    failed = CliRunner().invoke(cli, ["tune", str(index), "--ground-truth", "x.npy"])
    assert isinstance(failed.exception, SourceError)
