"""Search equals its brute-force twin, unlimited search the exhaustive ranking; garbage never crashes it."""

from concurrent.futures import ThreadPoolExecutor

import naive
import numpy as np
import pytest
from helpers.random_trees import garbage, make, vectors
from helpers.trees import DIMENSION, LAYOUTS, random_queries, whole_ranges
from hypothesis import given, settings
from hypothesis import strategies as st

from aggtree.engine.params import SearchParams
from aggtree.engine.scan.records import TableWords
from aggtree.engine.scan.table_kernels import FEW, LANES, TILE_ROWS, distance_tables
from aggtree.engine.search.request import default_search
from aggtree.engine.search.searcher import Searcher
from aggtree.engine.tree.layout import build_tree

cases = st.tuples(
    st.sampled_from(LAYOUTS), st.integers(1, 150), st.sampled_from([1, 2, 3, 300]), st.integers(0, 50)
)


@settings(max_examples=60, deadline=None)
@given(
    cases,
    st.sampled_from([(1, 1, 4), (5, 2, 4), (5, 1, 1), (64, 8, 1), (2, 2, 2)]),
    st.lists(st.sampled_from([0, 1, 2, 3, 7]), min_size=1, max_size=5),
    st.sampled_from([1, 3, 40]),
    st.sampled_from([np.inf, 1.0, 1.3711]),
)
def test_search_equals_its_twin(
    case: tuple, tree_kind: tuple[int, int, int], limits: list[int], k: int, pruning_ratio: float
) -> None:
    words, rows, alphabet, seed = case
    bucket, direct_leaves, size = tree_kind
    codes, ids, dictionaries, _, params = make(
        words, rows, alphabet, seed, bucket=bucket, direct_leaves=direct_leaves, norm_bytes=size
    )
    ranges = whole_ranges(len(words), size)
    tree = build_tree(codes, ids, dictionaries, params, ranges)
    levels = naive.fill_partition(codes, ids, dictionaries.layout, bucket, direct_leaves)
    search = SearchParams(limits=tuple(limits), pruning_ratio=pruning_ratio)
    queries = random_queries(3, seed)
    answer, counts = Searcher(tree, dictionaries).search_with_counts(queries, k, search)
    for i, query in enumerate(queries):
        found, nodes, leaves = naive.search_tree(
            levels,
            query,
            k,
            search.per_level(len(words)),
            dictionaries,
            params,
            ranges,
            pruning_ratio=pruning_ratio,
        )
        assert answer.ids[i].tolist() == [number for _, number in found] + [-1] * (k - len(found))
        assert answer.distances[i].tolist() == [float(d) for d, _ in found] + [np.inf] * (k - len(found))
        assert (counts.nodes[i], counts.leaves[i]) == (nodes, leaves)


@pytest.mark.parametrize("words", LAYOUTS)
@pytest.mark.parametrize("bucket", [1, 16])
def test_unlimited_search_is_the_exhaustive_ranking(words: tuple[int, ...], bucket: int) -> None:
    codes, ids, dictionaries, tree, _ = make(words, 2000, bucket=bucket, norm_bytes=4)
    queries = random_queries(5)
    answer = Searcher(tree, dictionaries).search(queries, 300, SearchParams.unlimited())
    every = ((queries[:, None] - vectors(codes, dictionaries)) ** 2).sum(axis=2)
    for i in range(5):
        order = np.lexsort((ids, every[i]))[:300]
        assert answer.ids[i].tolist() == ids[order].tolist()
        assert answer.distances[i].tolist() == every[i][order].tolist()


def test_many_equal_vectors_among_others() -> None:
    codes, ids, dictionaries, _, params = make((3,) * 4, 5000)
    codes[1000:] = codes[0]
    tree = build_tree(codes, ids, dictionaries, params, whole_ranges(4))
    query = vectors(codes[:1], dictionaries)[0]
    answer = Searcher(tree, dictionaries).search(query, 50, SearchParams.unlimited())
    same = np.sort(ids[(codes == codes[0]).all(axis=1)])
    assert answer.ids[0].tolist() == same[:50].tolist()


def test_ids_of_64_bits_survive() -> None:
    codes, ids, dictionaries, _, params = make((5,) * 3, 60)
    wide = ids.astype(np.uint64) + 2**40
    tree = build_tree(codes, wide, dictionaries, params, whole_ranges(3))
    narrow = build_tree(codes, ids, dictionaries, params, whole_ranges(3))
    queries = random_queries(4)
    a, b = (Searcher(t, dictionaries).search(queries, 60, SearchParams.unlimited()) for t in (tree, narrow))
    assert (a.ids == b.ids + 2**40).all()
    assert (a.distances == b.distances).all()


def test_64_bit_offsets_give_the_same_answers() -> None:
    _, _, dictionaries, tree, _ = make((5,) * 5, 900, bucket=4)
    big = tree._replace(
        child_start=tree.child_start.astype(np.uint64), leaf_start=tree.leaf_start.astype(np.uint64)
    )
    queries = random_queries(9)
    a, b = (Searcher(t, dictionaries).search(queries, 20) for t in (tree, big))
    assert (a.ids == b.ids).all()


def test_one_by_one_batch_and_threads_agree() -> None:
    _, _, dictionaries, tree, _ = make((300, 9, 9, 9), 3000, bucket=8)
    searcher = Searcher(tree, dictionaries)
    queries = np.random.default_rng(1).normal(size=(203, DIMENSION)).astype(np.float32)
    params = SearchParams(limits=(20, 40))
    batch = searcher.search(queries, 10, params)
    for threads in (2, 3):
        other = searcher.search(queries, 10, params, threads=threads)
        assert np.array_equal(batch.ids, other.ids)
        assert np.array_equal(batch.distances, other.distances)
    single = [searcher.search(query, 10, params) for query in queries]
    assert np.array_equal(batch.ids, np.concatenate([answer.ids for answer in single]))
    assert np.array_equal(batch.distances, np.concatenate([answer.distances for answer in single]))
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda query: searcher.search(query, 10, params).ids, queries))
    assert np.array_equal(batch.ids, np.concatenate(together))


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int32, np.float16, np.float64])
def test_queries_of_any_number_type(kind: type) -> None:
    _, _, dictionaries, tree, _ = make((5,) * 3, 100)
    queries = np.abs(random_queries(3))
    searcher = Searcher(tree, dictionaries)
    assert np.array_equal(searcher.search(queries.astype(kind), 5).ids, searcher.search(queries, 5).ids)
    assert searcher.search(queries[0].tolist(), 5).ids.shape == (1, 5)


@pytest.mark.parametrize(
    ("queries", "k", "message"),
    [
        (np.zeros((2, DIMENSION + 1)), 1, "expected"),
        (np.zeros((1, 2, DIMENSION)), 1, "expected"),
        (np.zeros((0, DIMENSION)), 1, "no queries"),
        (np.zeros(0), 1, "expected"),
        (np.array([[0.0] * DIMENSION, [np.nan] * DIMENSION]), 1, "query 1 holds NaN"),
        (np.full(DIMENSION, np.inf), 1, "query 0 holds NaN, infinity"),
        (np.full(DIMENSION, 1e300), 1, "too large"),
        (np.zeros(DIMENSION), 0, "k 0"),
        (np.zeros(DIMENSION, complex), 1, "type complex128"),
        (["a"] * DIMENSION, 1, "expected integers or floats"),
    ],
)
def test_bad_queries_are_refused(queries: object, k: int, message: str) -> None:
    _, _, dictionaries, tree, _ = make((5,) * 3, 10)
    with pytest.raises(ValueError, match=message):
        Searcher(tree, dictionaries).search(queries, k)


def test_bad_threads_and_arrays_are_refused() -> None:
    _, _, dictionaries, tree, _ = make((5,) * 3, 10)
    with pytest.raises(ValueError, match="threads 0"):
        Searcher(tree, dictionaries).search(np.zeros(DIMENSION), 1, threads=0)
    broken = {
        "ids": tree.ids[:-1],
        "labels": tree.labels[1:],
        "child_start": tree.child_start[1:],
        "records": tree.records[3:],
        "first_labels": tree.first_labels + np.uint16(5),
        "level_start": tree.level_start[::-1],
    }
    for name, array in broken.items():
        with pytest.raises(ValueError, match=r"expected|do not fit"):
            Searcher(tree._replace(**{name: array}), dictionaries)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
def test_garbage_is_searched_without_leaving_the_arrays(seed: int, kind: type) -> None:
    words = LAYOUTS[seed % len(LAYOUTS)]
    _, _, dictionaries, tree, _ = make(words, 200, 3, bucket=2, norm_bytes=(1, 2, 4)[seed % 3])
    tree = tree._replace(child_start=tree.child_start.astype(kind), leaf_start=tree.leaf_start.astype(kind))
    searcher = Searcher(garbage(tree, seed), dictionaries)
    for limits in ((0,), (2, 5), (1,)):
        answer, counts = searcher.search_with_counts(random_queries(3), 10, SearchParams(limits=limits))
        assert answer.ids.shape == (3, 10)
        assert counts.leaves.max() <= len(tree.ids) and counts.nodes.max() <= len(tree.labels)
        allowed = {-1, *searcher.tree.ids.astype(np.int64).tolist()}
        assert set(answer.ids.ravel().tolist()) <= allowed


def test_a_node_that_claims_everything_costs_one_pass() -> None:
    """Each node names all children of its level, or all leaves: a query looks at each of them once."""
    words = (9, 8, 7)
    _, _, dictionaries, tree, _ = make(words, 3000, bucket=2)
    child_start, leaf_start = tree.child_start.copy(), tree.leaf_start.copy()
    child_start[::2], leaf_start[::2] = 0, 0
    child_start[1::2], leaf_start[1::2] = len(tree.labels), len(tree.ids)
    searcher = Searcher(tree._replace(child_start=child_start, leaf_start=leaf_start), dictionaries)
    for limits in ((0,), (4, 16)):
        _, counts = searcher.search_with_counts(random_queries(5), 10, SearchParams(limits=limits))
        assert counts.leaves.max() <= 3000 and counts.nodes.max() <= len(tree.labels)
        assert counts.nodes.min() > 9


def test_tables_equal_their_twin() -> None:
    random = np.random.default_rng(0)
    for count, dimension, panels in ((1, 8, 1), (FEW, 24, 41), (3 * TILE_ROWS, 16, 17)):
        queries = random.integers(-9, 9, (count, dimension)).astype(np.float32)
        rows = random.integers(-9, 9, (dimension, panels * LANES)).astype(np.float32)
        start = random.integers(-9, 9, panels * LANES).astype(np.float32)
        by_panel = np.ascontiguousarray(rows.reshape(dimension, panels, LANES).transpose(1, 0, 2))
        tables, squares = np.empty((count, panels * LANES), np.float32), np.empty(count, np.float32)
        distance_tables(queries, TableWords(rows, by_panel, start), tables, squares)
        expected, expected_squares = naive.distance_tables(queries, rows, start)
        assert (tables == expected).all()
        assert (squares == expected_squares).all()


def test_how_far_a_search_looks() -> None:
    params = SearchParams(limits=(64, 512), pruning_ratio=1.2)
    assert params.scaled(4) == SearchParams(limits=(256, 512), pruning_ratio=1.4)
    assert SearchParams(limits=(0, 9)).scaled(0.1) == SearchParams(limits=(0, 9))
    for bad, message in (
        (((1, 2), 0.9), "0.9: expected 1"),
        (((), 1.5), "without limits"),
        (((3,), np.nan), "nan"),
    ):
        with pytest.raises(ValueError, match=message):
            SearchParams(limits=bad[0], pruning_ratio=bad[1])


def test_default_limits_grow_with_the_first_dictionary() -> None:
    wide = [default_search(words) for words in (257, 1024, 4096, 16_384, 65_536)]
    firsts = [params.limits[0] for params in wide]
    assert firsts == sorted(firsts)
    assert (firsts[0], firsts[-1]) == (55, 102)
    assert all(1 < params.pruning_ratio < 2 for params in wide)
    _, _, dictionaries, tree, _ = make((5,) * 3, 100)
    searcher = Searcher(tree, dictionaries)
    assert searcher.default_params == default_search(5)
    queries = random_queries(3)
    assert np.array_equal(
        searcher.search(queries, 9).ids, searcher.search(queries, 9, searcher.default_params).ids
    )
