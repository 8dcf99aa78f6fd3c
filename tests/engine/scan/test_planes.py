"""Leaves in planes: packed and unpacked, scanned as their twins state, with distances of the codes."""

import naive
import numpy as np
import pytest
from helpers.random_trees import garbage
from helpers.sizes import sized
from helpers.trees import random_codes, random_queries
from hypothesis import given, settings
from hypothesis import strategies as st

from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.params import SearchParams, TreeParams
from aggtree.engine.scan.first_level import byte_words, panels_of
from aggtree.engine.scan.records import TableWords
from aggtree.engine.scan.table_kernels import byte_tables
from aggtree.engine.search.metrics import make_searcher
from aggtree.engine.tree.layout import build_tree
from aggtree.engine.tree.planes import allows_planes, pack_planes, plane_bytes, plane_count, unpack_leaves
from aggtree.engine.tree.unpacked import node_blocks, unpacked

WORDS = [(5, 16), (300, *[16] * 9), (40, 3, 16, 7), (256, *[16] * 32), (9, *[2] * 5)]
METRICS = ["l2", "ip", "cosine"]
OFFSET = 100.0
"""Keeps the distances of the twin above zero, below which ranks are all the same."""


def make(words: tuple[int, ...], rows: int, metric: str, seed: int = 0) -> tuple:
    """Codes, dictionaries of words of every length, and their tree in planes."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(sum(words), 11)) / len(words)
    values[: words[0]] *= 3
    dictionaries = Dictionaries(values.astype(np.float32), CodeLayout(words))
    codes = random_codes(words, rows, 300, seed)
    ids = random.permutation(2 * rows)[:rows].astype(np.uint32)
    params = TreeParams(planes=True, norm_bytes=int(metric == "l2"))
    ranges = np.tile(np.array([[-4, 4]], np.float32), (len(words) + 1, 1))
    return codes, ids, dictionaries, build_tree(codes, ids, dictionaries, params, ranges), params


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100), st.integers(1, 40), st.integers(0, 1), st.integers(0, 9))
def test_what_is_packed_is_unpacked(rows: int, labels: int, norm_bytes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    stored = random.integers(0, 16, (rows, norm_bytes + labels)).astype(np.uint8)
    stored[:, :norm_bytes] = random.integers(0, 256, (rows, norm_bytes))
    layout = CodeLayout((300, *[16] * labels))
    packed = pack_planes(stored, norm_bytes)
    assert len(packed) + 32 == plane_bytes(rows, layout, norm_bytes)
    order = random.permutation(rows)
    np.testing.assert_array_equal(unpack_leaves(packed, order, layout, norm_bytes), stored[order])


def test_which_codes_fit() -> None:
    assert [allows_planes(CodeLayout(words)) for words in ((300, 16, 3), (5, 17), (16,), (16, 16))] == [
        *(True, False, False, True)
    ]
    assert plane_count(CodeLayout((300, *[16] * 9)), 1) == 6


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("words", WORDS, ids=str)
@pytest.mark.parametrize(("limit", "ratio"), [(0, np.inf), (3, np.inf), (20, 1.2)])
def test_search_equals_its_twin(words: tuple[int, ...], metric: str, limit: int, ratio: float) -> None:
    if metric == "ip" and ratio < np.inf:
        pytest.skip("ratios of inner products are meaningless")
    codes, ids, dictionaries, tree, params = make(words, sized(700, 90), metric)
    searcher = make_searcher(metric, tree, dictionaries, planes=True)
    queries = random_queries(5)
    if metric == "cosine":
        queries /= np.sqrt((queries**2).sum(axis=1, keepdims=True))
    k = 13
    answer, counts = searcher.search_with_counts(
        queries, k, SearchParams(limits=(limit,), pruning_ratio=ratio)
    )
    labels = np.array([naive.labels_of(code, dictionaries.layout) for code in codes])
    for row, query in enumerate(queries):
        nodes, columns = twin_nodes(metric, query, labels, ids, dictionaries, params)
        step = 8 / 255 if metric == "l2" else 0.0
        expected = naive.search_planes(nodes, query, k, limit, ratio, columns, step)
        distances = [distance - OFFSET for distance, _ in expected]
        if metric == "ip":
            length = np.sqrt((query**2).sum())
            distances = [length * (distance - 1) / 2 for distance in distances]
        elif metric == "cosine":
            distances = [distance / 2 for distance in distances]
        found = answer.distances[row][answer.ids[row] >= 0]
        np.testing.assert_allclose(found, np.sort(distances), rtol=2e-3, atol=2e-3)
        assert counts.leaves[row] <= len(codes)


def in_bytes(words: np.ndarray, query: np.ndarray) -> np.ndarray:
    """-2 q·w of each word, of both rounded to bytes."""
    columns = -2 * words.T.astype(np.float32)
    return naive.byte_tables(query[None].astype(np.float32), columns, np.float32(0))[0][0]


def twin_nodes(
    metric: str,
    query: np.ndarray,
    labels: np.ndarray,
    ids: np.ndarray,
    dictionaries: Dictionaries,
    params: TreeParams,
) -> tuple[list[tuple], np.ndarray]:
    """Nodes of level 1 as the twin takes them, and the columns of the other dictionaries."""
    scaled = query / np.sqrt((query**2).sum()) if metric == "ip" else query
    columns = []
    for number in range(1, dictionaries.layout.levels):
        part = dictionaries.part(number)
        padded = np.concatenate((part, np.repeat(part[:1], 16 - len(part), axis=0)))
        columns.append(in_bytes(padded, scaled))
    nodes = []
    for label in np.unique(labels[:, 0]):
        chosen = np.flatnonzero(labels[:, 0] == label)
        word = dictionaries.part(0)[label].astype(np.float64)
        length = np.sqrt((word**2).sum())
        product = float(in_bytes(word[None], scaled)[0])
        apart = (scaled**2).sum() + (word**2).sum() + product
        distance, rest, norms = apart, apart, None
        if metric == "ip":
            distance = rest = 1 + product
            distance += OFFSET
        elif metric == "cosine":
            distance = 2 + product / length
            rest = 2 + product
        else:
            vectors = dictionaries.decode(dictionaries.layout.pack(labels[chosen])).astype(np.float64)
            above = (vectors**2).sum(axis=1) - (word**2).sum()
            norms = np.clip(np.floor((above + 4) / (8 / 255) + 0.5), 0, 255).astype(np.uint8)
            rest = apart - 4
        nodes.append((distance, rest + OFFSET, ids[chosen], labels[chosen, 1:], norms))
    return nodes, np.concatenate(columns).astype(np.float32)


@pytest.mark.parametrize("metric", METRICS)
def test_unlimited_search_ranks_the_reconstructions(metric: str) -> None:
    codes, ids, dictionaries, tree, _ = make((60, *[16] * 12), sized(900, 80), metric)
    searcher = make_searcher(metric, tree, dictionaries, planes=True)
    queries = random_queries(4)
    answer = searcher.search(queries, len(codes), SearchParams.unlimited())
    vectors = dictionaries.decode(codes)
    longest = sum(np.sqrt((dictionaries.part(number) ** 2).sum(axis=1).max()) for number in range(13))
    for row, query in enumerate(queries):
        # Words and query are multiplied in bytes: each is off by half a unit in each of 11 dimensions.
        length = 1 if metric == "cosine" else np.sqrt((query**2).sum())
        tolerance = 2 * length * longest * np.sqrt(11) / 127 + (8 / 255 if metric == "l2" else 0)
        assert sorted(answer.ids[row]) == sorted(ids)
        if metric == "l2":
            exact = ((vectors - query) ** 2).sum(axis=1)
        elif metric == "ip":
            exact = -(vectors @ query)
        else:
            exact = 1 - vectors @ query / np.sqrt((query**2).sum())
        by_id = dict(zip(ids.tolist(), exact.tolist(), strict=True))
        expected = [by_id[number] for number in answer.ids[row].tolist()]
        np.testing.assert_allclose(answer.distances[row], expected, atol=tolerance)
        assert (np.diff(answer.distances[row]) >= 0).all()


def test_filtered_answers_come_from_the_allowed_rows() -> None:
    from aggtree.engine.scan.records import RowBits

    _, ids, dictionaries, tree, _ = make((60, *[16] * 12), 400, "cosine")
    searcher = make_searcher("cosine", tree, dictionaries, planes=True)
    allowed = np.zeros(1 + ids.max(), np.bool_)
    allowed[ids[::3]] = True
    bits = np.packbits(allowed, bitorder="little")
    bits.flags.writeable = False
    within = RowBits(bits, np.uint64(0), False)
    answer, _ = searcher.search_with_counts(random_queries(3), 50, SearchParams.unlimited(), within=within)
    assert (answer.ids >= 0).all() and allowed[answer.ids].all()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("seed", range(3))
def test_garbage_never_crashes(metric: str, seed: int) -> None:
    _, _, dictionaries, tree, _ = make((60, *[16] * 7), 300, metric, seed)
    searcher = make_searcher(metric, garbage(tree, seed), dictionaries, planes=True)
    with np.errstate(all="ignore"):
        answer = searcher.search(random_queries(4), 9, SearchParams.unlimited())
    assert answer.ids.shape == (4, 9)


@pytest.mark.parametrize("norm_bytes", [0, 1])
def test_unpacked_leaves_are_where_others_are(norm_bytes: int) -> None:
    metric = "l2" if norm_bytes else "cosine"
    _, _, dictionaries, tree, _ = make((60, *[16] * 7), 333, metric)
    nodes = int(tree.level_start[2])
    layout, size = dictionaries.layout, norm_bytes + 7
    seen = []
    for first, stop, leaf, last in node_blocks(tree, 1, nodes):
        rows = unpacked(tree, leaf, last, layout, norm_bytes)
        whole = unpack_leaves(tree.records, np.arange(leaf, last), layout, norm_bytes)
        start = rows.record_start[1] - rows.level_leaf[1] * size
        for number in (leaf, last - 1):
            place = start + number * size
            np.testing.assert_array_equal(rows.records[place : place + size], whole[number - leaf])
        seen += range(first, stop)
    assert seen == list(range(1, nodes))


def test_what_cannot_be_in_planes_is_refused() -> None:
    _, _, dictionaries, tree, _ = make((60, *[16] * 7), 50, "l2")
    with pytest.raises(ValueError, match="records of shape"):
        make_searcher("l2", tree._replace(records=tree.records[:-1]), dictionaries, planes=True)
    with pytest.raises(ValueError, match="norm_bytes 2"):
        TreeParams(planes=True, norm_bytes=2)
    with pytest.raises(ValueError, match="norm_bytes 0"):
        TreeParams(norm_bytes=0)


@pytest.mark.parametrize("columns", [16, 128, 300])
@pytest.mark.parametrize("dimension", [8, 24, 104])
def test_tables_in_bytes(columns: int, dimension: int) -> None:
    random = np.random.default_rng(columns)
    rows = random.normal(size=(dimension, columns)).astype(np.float32)
    rows[:, 1] = 0
    rows[:, 2] *= 1e-20
    queries = random.normal(size=(3, dimension)).astype(np.float32)
    start = random.normal(size=columns).astype(np.float32)
    words = byte_words(TableWords(rows, panels_of(rows[:, : columns // 16 * 16]), start))
    tables, squares = np.empty((3, len(words.start)), np.float32), np.empty(3, np.float32)
    byte_tables(queries, words, np.empty(dimension, np.int8), tables, squares)
    expected, expected_squares = naive.byte_tables(queries, rows, start)
    np.testing.assert_allclose(tables[:, :columns], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(squares, expected_squares, rtol=1e-6)
    exact = start + queries.astype(np.float64) @ rows
    lengths = np.sqrt((queries**2).sum(axis=1))[:, None] * np.sqrt((rows**2).sum(axis=0))
    assert (np.abs(tables[:, :columns] - exact) <= lengths * np.sqrt(dimension) / 127 + 1e-5).all()
