"""The first level in two stages: equal to its twin, exhaustive when nothing is cut, good when it is."""

import naive
import numpy as np
import pytest
from helpers.sizes import sized
from helpers.trees import DIMENSION, random_codes, random_dictionaries, random_queries, whole_ranges

from aggtree.engine.params import SearchParams, TreeParams
from aggtree.engine.scan.first_level import (
    FirstGroups,
    as_quads,
    check_groups,
    cluster,
    group_nodes,
    group_probes,
    group_pruning_ratio,
    lay_out_groups,
    members_of,
)
from aggtree.engine.scan.first_level_kernels import (
    LEAST,
    nearest_nodes,
    order_pairs,
    probe_groups,
    query_bytes,
    score_group,
)
from aggtree.engine.scan.records import FirstLevel, FirstScratch
from aggtree.engine.scan.scratch import empty_list
from aggtree.engine.scan.table_kernels import multiply_columns
from aggtree.engine.search.metrics import CosineSearcher, InnerProductSearcher
from aggtree.engine.search.searcher import Searcher
from aggtree.engine.simd.vector_code import LANES
from aggtree.engine.tree.layout import build_tree

LIMITED = SearchParams(limits=(25,))


def level_of(groups: FirstGroups, words: np.ndarray, norms: np.ndarray) -> FirstLevel:
    """A level with one node per word."""
    labels = np.arange(len(words), dtype=np.uint16)
    counts = members_of(groups)
    return FirstLevel(len(words), len(counts), groups.group_start, counts, *groups[2:], words, labels, norms)


def differences_of(groups: FirstGroups, group: int, rows: int) -> np.ndarray:
    """Differences (rows, columns) of one group, from its quads."""
    start, stop = groups.group_start[group : group + 2]
    quads = groups.quads[rows * start : rows * stop].reshape(rows // 4, -1, 4)
    return (quads.transpose(0, 2, 1).reshape(rows, -1) ^ np.uint8(128)).view(np.int8)


@pytest.mark.parametrize(("limit", "probes"), [(1, 1), (5, 3), (40, 7), (300, 7), (9, 2)])
def test_two_stages_equal_their_twin(limit: int, probes: int) -> None:
    random = np.random.default_rng(limit)
    # Differences of at most 127, which some word of each group has: they are kept exactly, in steps of 1.
    words = random.integers(-60, 61, (120, DIMENSION)).astype(np.float32)
    labels = random.permutation(np.arange(120) % 7)
    centres = random.integers(-60, 61, (7, DIMENSION)).astype(np.float32)
    for group, centre in enumerate(centres):
        words[np.flatnonzero(labels == group)[0], 0] = centre[0] + 127
    groups = lay_out_groups(words, np.vecdot(words, words), labels, centres)
    assert (groups.steps == 1).all()
    first = level_of(groups, words, np.vecdot(words, words))
    queries = random_queries(5, limit)
    padding = -DIMENSION % 8
    scratch = FirstScratch(
        ranks=np.empty((5, 128 + LANES), np.int32),
        places=np.empty(128, np.int64),
        columns=np.empty(128, np.int64),
        minima=np.empty(LEAST, np.int32),
        queries=np.empty((5, DIMENSION + padding), np.int8),
        units=np.empty(5, np.float32),
        sums=np.empty(5, np.int32),
        groups=empty_list(90),
        chosen=np.empty((5, probes), np.int64),
        counts=np.empty(5, np.int64),
        starts=np.empty((5, probes + 1), np.int64),
        near=np.empty((5, limit), np.uint64),
        near_counts=np.empty(5, np.int64),
        pair_queries=np.empty(5 * probes, np.int64),
        pair_places=np.empty(5 * probes, np.int64),
        ends=np.empty(8, np.int64),
        no_names=np.empty(0, np.uint64),
    )
    everywhere = np.float32(np.inf)
    padded = np.pad(queries, ((0, 0), (0, padding)))
    scores = np.vecdot(centres, centres) - 2 * queries @ centres.T
    squares = np.vecdot(queries, queries)
    twins = naive.probe_groups(queries, words, labels, scores, limit, probes)
    for together in (5, 1):
        for start in range(0, 5, together):
            asked = slice(start, start + together)
            probe_groups(
                first,
                padded[asked],
                scores[asked],
                squares[asked],
                limit,
                everywhere,
                probes,
                everywhere,
                scratch,
                empty_list(2 * limit + 64),
            )
            for row, number in enumerate(range(start, start + together)):
                nodes = empty_list(2 * limit + 64)
                query, square = queries[number], squares[number]
                kept, scored = nearest_nodes(
                    first, padded[number], scores[number], square, limit, everywhere, scratch, row, nodes
                )
                expected, inside = twins[number]
                assert set(nodes.numbers[:kept].tolist()) == set(expected)
                assert scored == 7 + inside
                for rank, node in zip(nodes.ranks[:kept], nodes.numbers[:kept], strict=True):
                    assert naive.distance_of(rank) == np.sum((query - words[node]) ** 2)


@pytest.mark.parametrize("rows", [0, 1, 2, 9])
def test_queries_and_groups_are_paired_by_group(rows: int) -> None:
    random = np.random.default_rng(rows)
    counts = random.integers(0, 6, rows)
    chosen = np.sort([random.permutation(11)[:5] for _ in range(rows)] or np.empty((0, 5), int), axis=1)
    queries, places, ends = (np.empty(size, np.int64) for size in (5 * rows, 5 * rows, 12))
    found = order_pairs(chosen, counts, rows, ends, queries, places)
    pairs = np.stack([queries[:found], places[:found]], axis=1)
    assert pairs.tolist() == naive.order_pairs(chosen, counts)


def test_words_are_kept_to_half_a_step() -> None:
    random = np.random.default_rng(2)
    words = random.normal(size=(90, 11)).astype(np.float32)
    centres, labels = cluster(words, 4)
    norms = np.vecdot(words, words)
    groups = lay_out_groups(words, norms, labels, centres)
    check_groups(groups, 90, 11)
    for group, (centre, step) in enumerate(zip(centres, groups.steps, strict=True)):
        start, stop = groups.group_start[group : group + 2]
        numbers, offsets = groups.numbers[start:stop], groups.offsets[start:stop]
        members = numbers[numbers >= 0]
        assert sorted(members.tolist()) == np.flatnonzero(labels == group).tolist()
        block = differences_of(groups, group, 16)
        assert not block[11:].any() and not block[:, len(members) :].any()
        kept = centre + step * block[:11, : len(members)].T
        assert np.abs(kept - words[members]).max() <= 0.501 * step
        expected = norms[members] - np.sum(centre**2)
        assert np.allclose(-2 * step * offsets[: len(members)], expected, rtol=1e-4, atol=1e-4)


def test_one_query_times_columns() -> None:
    random = np.random.default_rng(0)
    for dimension, columns in ((8, 1), (16, 700), (24, 513)):
        query, start = (random.integers(-9, 9, size).astype(np.float32) for size in (dimension, columns))
        rows = random.integers(-9, 9, (dimension, columns)).astype(np.float32)
        table = np.empty(columns, np.float32)
        multiply_columns(query, rows, start, table)
        assert (table == naive.multiply_columns(query, rows, start)).all()


@pytest.mark.parametrize(
    "query",
    [
        [0.0] * 8,
        [-3.0] * 8,
        [1e-30, -1e-30] * 4,
        [1e-45] * 8,
        [0, 1, 2, 254, 3, 127, 128, 255],
        [1e38, -1e38] * 4,
    ],
)
def test_a_query_in_bytes(query: list[float]) -> None:
    values, out = np.array(query, np.float32), np.empty(8, np.int8)
    unit, total = query_bytes(values, out)
    assert total == out.sum(dtype=int)
    expected, expected_unit = naive.query_bytes(values)
    assert unit == np.float32(expected_unit) and np.abs(out - expected.astype(int)).max() <= 1
    assert np.abs(values - unit * out.astype(np.float64)).max() <= 0.501 * unit


@pytest.mark.parametrize("columns", [16, 32, 48, 64, 80, 96, 112, 144])
@pytest.mark.parametrize("dimension", [8, 24, 128, 968])
def test_scores_of_a_group(dimension: int, columns: int) -> None:
    random = np.random.default_rng(columns)
    query = random.integers(-127, 128, dimension).astype(np.int8)
    differences = random.integers(-127, 128, (dimension, columns)).astype(np.int8)
    query[:4], differences[:4] = -127, random.choice([-127, 127], (4, columns))
    offsets = random.normal(size=columns).astype(np.float32)
    base, step, unit = np.float32(dimension), np.float32(-0.5), np.float32(0.01)
    ranks = np.full(columns + 9, -7, np.int32)
    quads = as_quads(differences)
    assert quads.tolist() == naive.as_quads(differences)
    shaped, total = quads.reshape(dimension // 4, columns, 4), np.int32(query.sum(dtype=int))
    score_group(query, total, shaped, offsets, base, step, unit, ranks, 5)
    expected = naive.score_group(query, differences, offsets, base, step, unit)
    found = np.array([naive.distance_of(rank) for rank in ranks[5 : 5 + columns]])
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-5 * dimension)
    assert (found == 0).any() and (found > 0).any()
    assert (ranks[:5] == -7).all() and (ranks[5 + columns :] == -7).all()


def test_a_grouped_level_answers_like_a_whole_one() -> None:
    words = (700, 6, 6)
    dictionaries, codes = random_dictionaries(words), random_codes(words, 4000, 700)
    ids = np.arange(4000, dtype=np.uint32)
    tree = build_tree(codes, ids, dictionaries, TreeParams(bucket=8, norm_bytes=4), whole_ranges(3))
    whole, in_groups = Searcher(tree, dictionaries), Searcher(tree, dictionaries, one_stage=100)
    queries = random_queries(9)
    a, b = (searcher.search(queries, 50, SearchParams.unlimited()) for searcher in (whole, in_groups))
    assert np.array_equal(a.ids, b.ids)
    assert np.array_equal(a.distances, b.distances)
    counts = in_groups.search_with_counts(queries, 50, SearchParams(limits=(3,)))[1]
    assert (counts.leaves > 0).all()


@pytest.mark.parametrize("kind", [Searcher, InnerProductSearcher, CosineSearcher])
def test_a_grouped_level_keeps_the_nodes_of_a_whole_one(kind: type[Searcher]) -> None:
    words = (700, 6, 6)
    dictionaries, codes = random_dictionaries(words), random_codes(words, 4000, 700)
    dictionaries.words[:300] *= 5  # words of very different lengths
    ids = np.arange(4000, dtype=np.uint32)
    tree = build_tree(codes, ids, dictionaries, TreeParams(bucket=8), whole_ranges(3))
    queries = random_queries(30)
    # All groups are looked into, so rounding alone can change which nodes are kept.
    found = [kind(tree, dictionaries, one_stage=size).search(queries, 40, LIMITED).ids for size in (4096, 9)]
    shared = [np.isin(a, b).mean() for a, b in zip(*found, strict=True)]
    assert np.mean(shared) > 0.97


@pytest.mark.parametrize("kind", [Searcher, InnerProductSearcher, CosineSearcher])
@pytest.mark.parametrize(("count", "threads"), [(63, 1), (64, 1), (sized(201, 70), 1), (sized(201, 70), 3)])
def test_near_queries_of_a_batch_come_together(kind: type[Searcher], count: int, threads: int) -> None:
    words = (5000, 6, 6)
    dictionaries, codes = random_dictionaries(words), random_codes(words, 6000, 5000)
    tree = build_tree(codes, np.arange(6000, dtype=np.uint32), dictionaries, TreeParams(), whole_ranges(3))
    searcher, queries = kind(tree, dictionaries), random_queries(count)
    together = searcher.search_with_counts(queries, 7, LIMITED, threads)
    alone = [searcher.search_with_counts(query, 7, LIMITED) for query in queries]
    assert np.array_equal(together[0].ids, np.concatenate([answer.ids for answer, _ in alone]))
    assert np.array_equal(together[0].distances, np.concatenate([answer.distances for answer, _ in alone]))
    assert together[1].leaves.tolist() == [counts.leaves[0] for _, counts in alone]


def test_a_group_may_have_many_columns_of_no_node() -> None:
    """A file is free to have them, and a query must not write behind its memory then."""
    words = (700, 6, 6)
    dictionaries, codes = random_dictionaries(words), random_codes(words, 4000, 700)
    tree = build_tree(codes, np.arange(4000, dtype=np.uint32), dictionaries, TreeParams(), whole_ranges(3))
    groups = group_nodes(tree.first_labels, tree.norms[1 : 1 + len(tree.first_labels)], dictionaries)
    size, last, more = -(-DIMENSION // 8) * 8, int(groups.group_start[-2]), 100_000 * LANES
    block = differences_of(groups, len(groups.steps) - 1, size)
    wide = groups._replace(
        group_start=np.append(groups.group_start[:-1], groups.group_start[-1] + more),
        quads=np.append(groups.quads[: last * size], as_quads(np.pad(block, ((0, 0), (0, more))))),
        offsets=np.pad(groups.offsets, (0, more)),
        numbers=np.pad(groups.numbers, (0, more), constant_values=-1),
    )
    queries = random_queries(9)
    a, b = (Searcher(tree, dictionaries, groups=kind).search(queries, 30, LIMITED) for kind in (groups, wide))
    assert np.array_equal(a.ids, b.ids) and np.array_equal(a.distances, b.distances)


def test_more_words_are_looked_into_for_more_nodes() -> None:
    words = np.random.default_rng(1).normal(size=(20_000, 8)).astype(np.float32)
    centres, labels = cluster(words, 78)
    norms = np.vecdot(words, words)
    groups = lay_out_groups(words, norms, labels, centres)
    first = level_of(groups, words, norms)
    probes = [group_probes(first, limit, np.inf) for limit in (1, 64, 128, 10_000, 20_000)]
    assert probes == sorted(probes)
    assert 1 <= probes[0] < len(centres) == probes[-1]
    # With a pruning ratio there may be more groups, but far ones are pruned; never when all nodes are kept.
    assert group_probes(first, 128, 1.25) > group_probes(first, 128, np.inf)
    assert 1.25 < group_pruning_ratio(first, 128, 1.25) < group_pruning_ratio(first, 20_000, 1.25) == np.inf
    assert sorted(groups.numbers[groups.numbers >= 0].tolist()) == list(range(20_000))


def test_equal_words_make_one_group() -> None:
    centres, labels = cluster(np.ones((500, 8), np.float32), 5)
    assert len(centres) == 1
    assert set(labels.tolist()) == {0}
    groups = lay_out_groups(np.ones((500, 8), np.float32), np.full(500, 8, np.float32), labels, centres)
    assert (groups.steps > 0).all() and (groups.quads == 128).all() and not groups.offsets.any()
