"""Requests are checked once, and no k, query or thread brings a searcher out of step."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from helpers.random_trees import make
from helpers.trees import DIMENSION, random_queries, whole_ranges
from numpy.typing import NDArray

from aggtree.engine.params import SearchParams
from aggtree.engine.search import nearest
from aggtree.engine.search.filters import Filter, row_bits
from aggtree.engine.search.metrics import make_searcher
from aggtree.engine.search.nearest import RowReader, SearchSpace, find_nearest
from aggtree.engine.search.ranges import find_within_radius
from aggtree.engine.search.request import SearchRequest, chosen_params
from aggtree.engine.search.searcher import Searcher
from aggtree.engine.search.segments import Segment, SegmentedSearcher
from aggtree.engine.search.tuned import TunedPoint, Tuning
from aggtree.engine.tree.layout import build_tree

ROWS = 300
EVERYTHING = SearchParams.unlimited()


class NoVectors:
    """An index whose vectors are gone."""

    def open(self) -> RowReader:
        raise ValueError("the vectors are gone")

    def open_if_present(self) -> None:
        return None

    def open_in_place(self) -> None:
        return None


def searcher(metric: Any = "l2") -> Searcher:
    """Of a tree whose ids are rows 0..ROWS - 1."""
    codes, _, dictionaries, _, params = make((9, 8, 7), ROWS, bucket=4, norm_bytes=1)
    rows = np.arange(ROWS, dtype=np.uint32)
    tree = build_tree(codes, rows, dictionaries, params, whole_ranges(3))
    return make_searcher(metric, tree, dictionaries)


def space(live: NDArray[np.bool_] | None = None, trees: int = 1) -> SearchSpace:
    """One tree, or the same one several times, of which some rows were deleted."""
    one = searcher()
    many = SegmentedSearcher([Segment(one, ROWS * number) for number in range(trees)])
    return SearchSpace(
        searcher=one if trees == 1 else many,
        metric="l2",
        rows=trees * ROWS if live is None else int(live.sum()),
        vectors=NoVectors(),
        live=None if live is None else row_bits(np.packbits(live, bitorder="little")),
    )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"k": 0}, "k 0: expected 1 or more"),
        ({"threads": 0}, "threads 0: expected 1 or more"),
        ({"k": 10, "rerank": 9}, r"rerank 9: expected k \(10\) or more"),
        ({"rerank": -1}, "rerank -1"),
        ({"radius": -1.0}, "radius -1.0: expected 0 or more"),
        ({"radius": float("nan")}, "radius nan: expected 0 or more"),
        ({"recall": 0.9, "time_ms": 1.0}, "expected one of the three"),
        ({"recall": 0.9, "rerank": 100}, "expected one of the three"),
        ({"time_ms": 0.9, "params": EVERYTHING}, "expected one of the three"),
    ],
)
def test_wrong_requests_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SearchRequest(**asked)


def test_a_request_without_limits_gets_the_default() -> None:
    default = SearchParams(limits=(3, 9))
    assert chosen_params(None, default) == chosen_params(SearchParams(), default) == default
    assert chosen_params(EVERYTHING, default) == EVERYTHING


def test_a_tuned_request_gets_measured_parameters() -> None:
    fast = TunedPoint(limits=(2,), rerank=0, recall=0.5, milliseconds=0.1)
    good = TunedPoint(limits=(9,), rerank=50, recall=0.9, milliseconds=0.4, pruning_ratio=1.5)
    tuning = Tuning(build="0" * 12).with_points(10, [good, fast])
    applied = tuning.apply(SearchRequest(k=10, recall=0.8, threads=2))
    assert applied == SearchRequest(k=10, params=good.params, rerank=50, threads=2)
    assert tuning.apply(SearchRequest(k=10, time_ms=0.2)).params == fast.params


@pytest.mark.parametrize("trees", [1, 2])
@pytest.mark.parametrize("share", [None, 0.6, 0.0])
def test_k_beyond_the_rows_is_padded_and_not_searched_for(trees: int, share: float | None) -> None:
    rows = trees * ROWS
    live = None if share is None else np.random.default_rng(0).random(rows) < share
    searched = space(live, trees)
    queries = random_queries(3)
    for k in (searched.rows + 1, 40 * rows):
        found, counts = find_nearest(searched, queries, SearchRequest(k=k, params=EVERYTHING))
        assert found.ids.shape == found.distances.shape == (3, k)
        assert found.ids.dtype == np.int64 and found.distances.dtype == np.float32
        assert (found.ids[:, : searched.rows] >= 0).all() and (found.ids[:, searched.rows :] == -1).all()
        assert (found.distances[:, searched.rows :] == np.inf).all()
        assert len(counts.nodes) == 3
    if searched.rows:
        exact, _ = find_nearest(searched, queries, SearchRequest(k=searched.rows, params=EVERYTHING))
        np.testing.assert_array_equal(found.ids[:, : searched.rows], exact.ids)
    plans = [key for one in _searchers(searched) for key in one._plans]
    assert all(k <= ROWS for _, k in plans)


def _searchers(searched: SearchSpace) -> list[Searcher]:
    trees = searched.searcher
    return [trees] if isinstance(trees, Searcher) else [segment.searcher for segment in trees.segments]


def test_an_answer_no_memory_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for k in (10**9, 2**31):
        with pytest.raises(ValueError, match=rf"k {k}: 1 queries times k .* 300 rows: choose a smaller k"):
            find_nearest(space(), random_queries(1), SearchRequest(k=k))
    monkeypatch.setattr(nearest, "MAX_ANSWERS", 100)
    assert find_nearest(space(), random_queries(2), SearchRequest(k=50))[0].ids.shape == (2, 50)
    with pytest.raises(ValueError, match="k 51: 2 queries"):
        find_nearest(space(), random_queries(2), SearchRequest(k=51))


@pytest.mark.parametrize("large", [np.float32(3e38), np.float64(3e38), np.int64(2**62)])
def test_queries_whose_distances_overflow_are_refused(large: Any) -> None:
    queries = random_queries(3).astype(np.asarray(large).dtype)
    queries[1] = large
    few = Filter.of_rows(np.arange(5), ROWS)
    for request in (SearchRequest(k=5), SearchRequest(k=5, within=few), SearchRequest(radius=3.0)):
        ask = find_within_radius if request.radius is not None else find_nearest
        with pytest.raises(ValueError, match=r"query 1 is too long: .* overflow float32"):
            ask(space(), queries, request)
    # As long as can be: no distance is infinite or zero.
    queries = np.full((1, DIMENSION), np.sqrt(2.0**125 / DIMENSION) * 0.999)
    found, _ = find_nearest(space(), queries, SearchRequest(k=5, params=EVERYTHING))
    assert (found.ids >= 0).all() and np.isfinite(found.distances).all() and (found.distances > 1e37).all()


@pytest.mark.parametrize("metric", ["ip", "cosine"])
def test_other_metrics_answer_queries_of_any_length(metric: str) -> None:
    one = searcher(metric)
    directions = random_queries(4)
    directions /= np.abs(directions).max(axis=1, keepdims=True)
    expected = one.search(directions, 9, EVERYTHING)
    found = one.search(directions * np.float32(3e38), 9, EVERYTHING)
    assert (found.ids == expected.ids).mean() > 0.9
    assert not np.isnan(found.distances).any()
    for wrong in (np.nan, np.inf, 1e39):
        with pytest.raises(ValueError, match="query 0 holds NaN, infinity or a number too large"):
            one.search(np.full(DIMENSION, wrong), 9)


def test_radii_that_overflow_leave_nothing_out() -> None:
    queries = random_queries(2)
    for radius in (1e30, 1e300, np.inf):
        found, _ = find_nearest(space(), queries, SearchRequest(k=ROWS, params=EVERYTHING, radius=radius))
        assert (found.ids >= 0).all()
        every = find_within_radius(space(), queries, SearchRequest(params=EVERYTHING, radius=radius))
        assert len(every.ids) == 2 * ROWS


def test_no_row_allowed_is_no_answer() -> None:
    none, queries = Filter.of_rows(np.empty(0, np.int64), ROWS), random_queries(2)
    found, counts = find_nearest(space(), queries, SearchRequest(k=3, within=none))
    assert found.ids.tolist() == [[-1] * 3] * 2 and counts.leaves.tolist() == [0, 0]
    every = find_within_radius(space(), queries, SearchRequest(radius=9.0, within=none))
    assert every.starts.tolist() == [0, 0, 0] and len(every.ids) == len(every.distances) == 0
    with pytest.raises(ValueError, match="without a radius"):
        find_within_radius(space(), queries, SearchRequest())
    with pytest.raises(ValueError, match="the vectors are gone"):
        find_nearest(space(), queries, SearchRequest(k=3, rerank=9))


def test_plans_cleared_by_another_thread_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    one, queries = searcher(), random_queries(1)

    class Forgetful(dict[Any, Any]):
        def __setitem__(self, key: object, value: object) -> None:
            """As if another thread cleared it at once."""

    monkeypatch.setattr(one, "_plans", Forgetful())
    assert one.search(queries, 5).ids.shape == (1, 5)


def test_many_threads_with_many_k_answer_alike() -> None:
    one, queries = searcher(), random_queries(1)
    expected = one.search(queries, 60)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def ask(thread: int) -> bool:
        random = np.random.default_rng(thread)
        answers = [(k, one.search(queries, k).ids) for k in random.integers(1, 60, 150).tolist()]
        return all(np.array_equal(ids, expected.ids[:, :k]) for k, ids in answers)

    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(ask, range(8)))
    finally:
        sys.setswitchinterval(interval)
