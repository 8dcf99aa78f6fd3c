"""The sieve lists what its twin lists, loses no leaf within a bound, and changes no answer."""

import ctypes
import mmap

import naive
import numpy as np
import pytest
from helpers.random_trees import garbage, make
from helpers.sizes import sized
from helpers.trees import random_codes, random_queries, whole_ranges
from hypothesis import given, settings
from hypothesis import strategies as st

from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.params import SearchParams, TreeParams
from aggtree.engine.scan.leaf_kernels import leaf_values
from aggtree.engine.scan.records import LeafParts, Sieve
from aggtree.engine.scan.scratch import empty_sieve, sieve_index
from aggtree.engine.scan.sieve_kernels import (
    FITTED,
    FULL,
    fit_sieve,
    list_set_bits,
    reset_sieve,
    sieve_leaves,
    sieve_limit,
)
from aggtree.engine.search.metrics import CosineSearcher, InnerProductSearcher
from aggtree.engine.search.searcher import Searcher
from aggtree.engine.simd.instructions.sieve import CAN_SIEVE, READ_AHEAD, SIEVE_BYTES
from aggtree.engine.training.annealing_state import norm_ranges
from aggtree.engine.tree.layout import build_tree

can_sieve = pytest.mark.skipif(not CAN_SIEVE, reason="this processor has no byte permutations (AVX-512 VBMI)")


def state_of(sieve: Sieve) -> dict[str, float]:
    return {name: float(getattr(sieve, name)[0]) for name in ("lowest", "largest", "scale", "nearest")}


def listed(records: np.ndarray, rows: int, size: int, sieve: Sieve, limit: float) -> list[int]:
    padded = np.concatenate([records, np.zeros(64 * size + READ_AHEAD, np.uint8)])
    places = np.empty(max(rows, 1), np.int64)
    index = sieve_index(np.array([size]))[0]
    for start in range(0, rows, 192):  # a part of a piece at a time
        count = min(rows - start, 192)
        sieve_leaves(padded, start * size, start, count, size, index, sieve, np.float32(limit))
    found = list_set_bits(sieve.masks, rows, places)
    return places[:found].tolist()


@can_sieve
@pytest.mark.parametrize("size", range(1, SIEVE_BYTES + 1))
def test_leaves_that_pass_equal_their_twin(size: int) -> None:
    random = np.random.default_rng(size)
    for rows in (1, 7, 63, 64, 65, 300):
        records = random.integers(0, 256, rows * size, dtype=np.uint8)
        sieve = empty_sieve(size)
        sieve.tables[:size] = random.integers(0, 500 // size, (size, 256)).clip(0, 255)
        for limit in (0, 0.5, 100, 200.9, 254.9):
            expected = naive.sieve_leaves(records, rows, size, sieve.tables, np.floor(limit))
            assert listed(records, rows, size, sieve, limit) == expected
            assert naive.list_set_bits(sieve.masks, rows) == expected


@can_sieve
@pytest.mark.parametrize("size", range(1, SIEVE_BYTES + 1))
def test_no_more_is_read_than_was_said(size: int) -> None:
    """Behind the last byte that may be read is a page that may not: reading it would end this process."""
    page, sieve = mmap.PAGESIZE, empty_sieve(size)
    memory = mmap.mmap(-1, 3 * page)
    array = np.frombuffer(memory, np.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert protect(array.ctypes.data + 2 * page, page, 0) == 0
    end = 2 * page - READ_AHEAD
    index = sieve_index(np.array([size]))[0]
    sieve_leaves(array[: 2 * page], end - 64 * size, 0, 64, size, index, sieve, np.float32(9))
    assert sieve.masks[0] == 2**64 - 1


@pytest.mark.parametrize(("norm_bytes", "suffix"), [(1, 8), (2, 3), (1, 1), (1, 16), (1, 0)])
def test_tables_are_those_of_their_twin(norm_bytes: int, suffix: int) -> None:
    random = np.random.default_rng(suffix)
    columns = random.normal(size=256 * (suffix + 1)).astype(np.float32)
    sieve = empty_sieve(norm_bytes + suffix)
    step, room = np.float32(0.01), np.float32(1.5)
    fit_sieve(sieve, columns, norm_bytes, suffix, step, room)
    tables, lowest, scale = naive.fit_sieve(columns, norm_bytes, suffix, float(step), float(room), FITTED)
    assert [sieve.lowest[0], sieve.scale[0]] == pytest.approx([lowest, scale], rel=1e-5)
    found = sieve.tables[: norm_bytes + suffix].astype(int)
    # A number that is nearly whole may be rounded to either side.
    assert (np.abs(found - np.array(tables)) <= 1).all() and (found == np.array(tables)).mean() > 0.99
    assert (sieve.tables[norm_bytes + suffix :] == 0).all()
    for base in (0.0, 0.7, 20.0):
        expected = naive.sieve_limit(lowest, scale, base, float(room))
        assert sieve_limit(sieve, np.float32(base), room) == pytest.approx(expected, abs=0.1)


@can_sieve
@settings(max_examples=sized(60, 5), deadline=None)
@given(
    st.integers(1, 2),
    st.integers(0, 15),
    st.sampled_from([1e-3, 1.0, 1e4]),
    st.sampled_from([0.0, 1e3, 1e6]),
    st.floats(0.001, 0.9),
    st.integers(0, 1000),
)
def test_no_leaf_within_the_bound_is_lost(
    norm_bytes: int, suffix: int, spread: float, offset: float, share: float, seed: int
) -> None:
    """Whatever the rounding: distances of size `offset` that differ by `spread` have few bits left."""
    random = np.random.default_rng(seed)
    size, rows = norm_bytes + suffix, 200
    records = random.integers(0, 256, rows * size, dtype=np.uint8)
    columns = (offset + spread * random.normal(size=256 * suffix)).astype(np.float32)
    step, base = np.float32(spread / 256**norm_bytes), np.float32(offset * random.normal())
    places = np.arange(rows)
    parts = LeafParts(np.array([0, rows]), places[:1], places[:1], np.array([base]))
    values = np.empty(256, np.float32)
    leaf_values(records, parts, 1, size, norm_bytes, step, columns, values)
    bound = np.quantile(values[:rows], share, method="nearest")
    sieve = empty_sieve(size)
    # The tables may have been made for a nearer node, or for a farther one.
    for other in (base, np.float32(base - spread), np.float32(base + spread)):
        fit_sieve(sieve, columns, norm_bytes, suffix, step, bound - other)
        for tighter in (bound, values[:rows].min()):
            limit = sieve_limit(sieve, base, tighter)
            near = listed(records, rows, size, sieve, limit) if limit < FULL else range(rows)
            assert set(near) >= set(np.flatnonzero(values[:rows] <= tighter))


ODD = [(1, -100), (1, np.inf), (1, np.nan), (-1, 9), (-1e30, 9), (-np.inf, 9), (np.inf, 9), (np.nan, 9)]


@pytest.mark.parametrize(("step", "room"), ODD)
def test_what_tells_nothing_makes_no_tables(step: float, room: float) -> None:
    sieve = empty_sieve(3)
    fit_sieve(sieve, np.zeros(512, np.float32), 1, 2, np.float32(step), np.float32(room))
    assert sieve.scale[0] == 0 and sieve_limit(sieve, np.float32(0), np.float32(5)) == FULL


def test_a_node_that_is_too_far_holds_nothing() -> None:
    sieve = empty_sieve(3)
    assert state_of(sieve) == naive.reset_sieve()
    fit_sieve(sieve, np.ones(512, np.float32), 1, 2, np.float32(1), np.float32(50))
    reset = empty_sieve(3)
    for bound, expected in ((60, FULL), (49, FULL), (20, -1)):
        assert sieve_limit(reset, np.float32(30), np.float32(bound)) == FULL
        limit = sieve_limit(sieve, np.float32(30), np.float32(bound))
        assert limit == -1 if expected == -1 else 0 <= limit < FULL
    reset_sieve(sieve)
    assert state_of(sieve) == naive.reset_sieve()


@pytest.mark.parametrize("step", [1.0, 0.0, -0.5, 1e30, -1e30, np.inf, -np.inf, np.nan])
def test_garbage_is_sieved_without_leaving_the_arrays(step: float) -> None:
    kind = {"bucket": 2000, "direct_leaves": 50}
    _, _, dictionaries, tree, _ = make((40, 4, 3, 5), sized(5000, 600), alphabet=4, **kind)
    tree = garbage(tree, 1)._replace(
        child_start=tree.child_start,
        leaf_start=tree.leaf_start,
        norm_step=np.full_like(tree.norm_step, step),
    )
    answers = [
        Searcher(tree, dictionaries, sieve=sieve).search(
            random_queries(sized(20, 4)), 10, SearchParams(limits=(4, 9))
        )
        for sieve in (True, False)
    ]
    assert np.array_equal(answers[0].ids, answers[1].ids)
    assert np.array_equal(answers[0].distances, answers[1].distances)


LARGE = [((40, 4, 3), 1), ((300, *[5] * 8), 1), ((4,) * 16, 2), ((9,) * 20, 1), ((7, 9), 4)]


@pytest.mark.parametrize(("words", "norm_bytes"), LARGE)
def test_large_nodes_give_the_answers_of_the_twin(words: tuple[int, ...], norm_bytes: int) -> None:
    bucket = sized(2000, 200)
    kind = {"bucket": bucket, "direct_leaves": 50, "norm_bytes": norm_bytes}
    codes, ids, dictionaries, _, params = make(words, sized(3000, 300), alphabet=4, seed=1, **kind)
    levels = naive.fill_partition(codes, ids, dictionaries.layout, bucket, 50)
    ranges, search = whole_ranges(len(words), norm_bytes), SearchParams(limits=(3, 20))
    tree = build_tree(codes, ids, dictionaries, params, ranges)
    queries = random_queries(4)
    for k in (1, 30):
        answer, counts = Searcher(tree, dictionaries).search_with_counts(queries, k, search)
        for i, query in enumerate(queries):
            found, nodes, leaves = naive.search_tree(
                levels, query, k, search.per_level(len(words)), dictionaries, params, ranges
            )
            assert answer.ids[i].tolist() == [number for _, number in found]
            assert answer.distances[i].tolist() == [float(distance) for distance, _ in found]
            assert (counts.nodes[i], counts.leaves[i]) == (nodes, leaves)


def test_the_sieve_changes_no_bit_of_an_answer() -> None:
    """On vectors that are no integers, with nodes of many sizes at several levels."""
    random = np.random.default_rng(5)
    words = (20, *[256] * 8)
    dictionaries = Dictionaries(random.normal(size=(sum(words), 24)).astype(np.float32), CodeLayout(words))
    codes = random_codes(words, sized(20_000, 2000), 12, seed=2)
    rows = np.arange(len(codes), dtype=np.uint32)
    ranges = norm_ranges(dictionaries, codes[::7])
    tree = build_tree(
        codes, rows, dictionaries, TreeParams(bucket=sized(300, 30), direct_leaves=sized(40, 10)), ranges
    )
    near = dictionaries.decode(codes[:: sized(600, 400)])
    queries = near + random.normal(size=near.shape).astype(np.float32)
    for searcher in (Searcher, InnerProductSearcher, CosineSearcher):
        sieved, plain = (searcher(tree, dictionaries, sieve=sieve) for sieve in (True, False))
        for k, limits in ((1, (3, 50)), (100, (8, 200)), (100, (0,))):
            params = SearchParams(limits=limits)
            ids, distances = sieved.search(queries, k, params)
            expected = plain.search(queries, k, params)
            assert np.array_equal(ids, expected.ids) and np.array_equal(distances, expected.distances)
