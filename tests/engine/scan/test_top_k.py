"""Lists of the best and the leaf scan equal their brute-force twins, many equal entries included."""

import naive
import numpy as np
import pytest
from helpers.sizes import sized
from hypothesis import given, settings
from hypothesis import strategies as st

from aggtree.engine.scan.leaf_kernels import leaf_values, passing
from aggtree.engine.scan.records import Best, LeafParts
from aggtree.engine.scan.top_k_kernels import (
    NO_BOUND,
    add_best,
    copy_best,
    cut_best,
    cut_beyond,
    distance_of,
    pruning_bound,
    rank_bound,
    rank_of,
    sort_best,
)
from aggtree.engine.tree.sort_kernels import sort_numbers

NO_NAMES = np.empty(0, np.uint64)


def random_list(count: int, spread: int, seed: int) -> Best:
    random = np.random.default_rng(seed)
    return Best(
        random.integers(0, spread, count).astype(np.int32),
        random.permutation(count).astype(np.uint64) + 2**40,
    )


def entries(best: Best, count: int) -> list[tuple[int, int]]:
    return list(zip(best.ranks[:count].tolist(), best.numbers[:count].tolist(), strict=True))


lists = st.tuples(st.integers(1, 300), st.sampled_from([1, 2, 40, 2**30]), st.integers(0, 99))


@settings(max_examples=sized(100, 20), deadline=None)
@given(lists, st.integers(1, 300), st.sampled_from([0, 3, 50]))
def test_a_cut_keeps_the_best(case: tuple[int, int, int], keep: int, spare: int) -> None:
    best = random_list(*case)
    count = case[0]
    before = entries(best, count)
    if keep <= count:
        bound, within = rank_bound(best.ranks, count, keep, spare)
        assert within == sum(rank <= bound for rank, _ in before) >= keep
        assert within <= keep + spare or bound == naive.rank_bound(best.ranks.tolist(), keep)
    kept, bound = cut_best(best, count, keep, spare, NO_NAMES)
    after = sorted(entries(best, kept))
    assert min(keep, count) <= kept <= keep + spare
    assert after == naive.cut_best(*zip(*before, strict=True), kept)
    assert all(rank <= bound for rank, _ in after)


@pytest.mark.parametrize("pruning_ratio", [1.0, 1.25, 3.0, np.inf])
@pytest.mark.parametrize(("count", "spread"), [(0, 1), (1, 9), (7, 50), (10, 50), (11, 4), (300, 1000)])
def test_a_pruning_ratio_cuts_what_is_far(count: int, spread: int, pruning_ratio: float) -> None:
    # Integers, whose sums are exact; no mean of ten of them times a ratio is one but by a wide margin.
    distances = np.random.default_rng(count).integers(0, spread, count).astype(np.float32)
    ranks = np.array([rank_of(distance) for distance in distances], np.int32)
    best = Best(ranks.copy(), np.arange(count, dtype=np.uint64))
    kept = cut_beyond(best, count, np.float32(pruning_ratio))
    expected = np.flatnonzero(naive.cut_beyond(distances, pruning_ratio))
    assert best.numbers[:kept].tolist() == expected.tolist()
    assert best.ranks[:kept].tolist() == ranks[expected].tolist()
    assert kept > 0 or count == 0


@pytest.mark.parametrize("pruning_ratio", [1.0, 1.25, 3.0, np.inf])
@pytest.mark.parametrize(("count", "spread"), [(31, 50), (32, 50), (33, 2), (100, 1000), (2000, 10**6)])
def test_a_pruning_bound_is_beyond_what_is_kept(count: int, spread: int, pruning_ratio: float) -> None:
    distances = np.random.default_rng(count).integers(1, spread, count).astype(np.float32)
    ranks = np.array([rank_of(distance) for distance in distances], np.int32)
    bound = pruning_bound(ranks, count, np.float32(pruning_ratio), np.empty(32, np.int32))
    kept = naive.cut_beyond(distances, pruning_ratio)
    assert (ranks[kept] <= bound).all()
    low, high = naive.pruning_bound(distances, pruning_ratio, 32)
    assert rank_of(np.float32(low)) <= bound <= rank_of(np.float32(high))


@settings(max_examples=sized(60, 20), deadline=None)
@given(lists, st.integers(1, 300))
def test_equal_ranks_are_cut_by_name(case: tuple[int, int, int], keep: int) -> None:
    best = random_list(*case)
    best.numbers[:] -= np.uint64(2**40)
    names = np.random.default_rng(keep).permutation(case[0]).astype(np.uint32)
    before = [(rank, int(names[number])) for rank, number in entries(best, case[0])]
    kept, _ = cut_best(best, case[0], keep, 0, names)
    after = [(rank, int(names[number])) for rank, number in entries(best, kept)]
    assert sorted(after) == naive.cut_best(*zip(*before, strict=True), keep)


@settings(max_examples=sized(60, 20), deadline=None)
@given(lists, st.integers(1, 40))
def test_adding_keeps_the_best(case: tuple[int, int, int], keep: int) -> None:
    source = random_list(*case)
    best = Best(np.empty(2 * keep + 3, np.int32), np.empty(2 * keep + 3, np.uint64))
    count, bound = 0, NO_BOUND
    for rank, number in zip(source.ranks, source.numbers, strict=True):
        count, bound = add_best(best, count, bound, rank, number, keep, NO_NAMES)
    count, _ = cut_best(best, count, keep, 0, NO_NAMES)
    assert sorted(entries(best, count)) == naive.add_best(entries(source, case[0]), keep)


@settings(max_examples=sized(60, 20), deadline=None)
@given(lists)
def test_sorting_orders_by_rank_then_number(case: tuple[int, int, int]) -> None:
    best, spare = random_list(*case), random_list(*case)
    before = entries(best, case[0])
    sort_best(best, case[0], np.empty(case[0] + 1, np.int32), spare)
    assert entries(best, case[0]) == naive.sort_best(*zip(*before, strict=True))


@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
def test_sorting_numbers_equals_its_twin(kind: type) -> None:
    random = np.random.default_rng(1)
    names = random.permutation(300).astype(kind)
    for count in (0, 1, 2, 3, 10, 257):
        for known in (names[:0], names):
            numbers = random.permutation(300)[:count].astype(np.uint64)
            expected = naive.sort_numbers(numbers, known)
            sort_numbers(numbers, known)
            assert numbers.tolist() == expected


def test_copying_takes_what_it_should() -> None:
    source, target = random_list(9, 50, 1), random_list(9, 50, 2)
    copy_best(source, target, 4)
    for copied, expected in zip(target, naive.copy_best(source, 4), strict=True):
        assert np.array_equal(copied[:4], expected)
    assert entries(target, 9)[4:] == entries(random_list(9, 50, 2), 9)[4:]


def test_ranks_order_as_distances_do() -> None:
    distances = np.array([-1, 0, 1e-30, 0.5, 1, 1e30, np.inf], np.float32)
    ranks = [rank_of(distance) for distance in distances]
    assert ranks == [naive.rank_of(distance) for distance in distances] == sorted(ranks)
    assert [distance_of(rank) for rank in ranks] == [naive.distance_of(rank) for rank in ranks]


@pytest.mark.parametrize("norm_bytes", [1, 2, 4])
@pytest.mark.parametrize("suffix", [0, 1, 4, 5, 6, 7, 8, 9, 15])
def test_leaf_values_equal_their_twin(norm_bytes: int, suffix: int) -> None:
    random = np.random.default_rng(suffix)
    size, rows = norm_bytes + suffix, 23
    records = random.integers(0, 256, rows * size, dtype=np.uint8)
    if norm_bytes == 4:
        records.reshape(rows, size)[:, :4] = (
            random.integers(0, 99, rows).astype(np.float32)[:, None].view(np.uint8)
        )
    columns = random.integers(-50, 50, 256 * max(suffix, 1)).astype(np.float32)
    out = np.full(32, -1, np.float32)
    for spans in (((0, rows),), ((3, rows),), ((0, 4),), ((5, 6), (0, 9), (20, rows), (1, 2))):
        leaves = [leaf for start, stop in spans for leaf in range(start, stop)]
        bases = [7 + start for start, stop in spans for _ in range(start, stop)]
        parts = LeafParts(
            places=np.cumsum([0] + [stop - start for start, stop in spans]),
            leaves=np.array([start for start, _ in spans]),
            records=np.array([start * size for start, _ in spans]),
            bases=np.array([7 + start for start, _ in spans], np.float32),
        )
        leaf_values(records, parts, len(spans), size, norm_bytes, np.float32(2), columns, out)
        places = [leaf * size for leaf in leaves]
        expected = naive.leaf_values(records, places, size, norm_bytes, bases, 2, columns)
        assert out[: len(leaves)].tolist() == expected


@pytest.mark.parametrize("suffix", [4, 5, 6, 7, 8, 9])
def test_the_value_of_a_leaf_depends_on_no_other(suffix: int) -> None:
    """At the end of the array records cannot be read by whole words; the sums are the same, to the bit."""
    random = np.random.default_rng(suffix)
    size, rows = 1 + suffix, 40
    records = random.integers(0, 256, rows * size + 16, dtype=np.uint8)
    columns = random.normal(size=256 * suffix).astype(np.float32)
    places, found = np.arange(rows + 1), []
    for end in (rows * size, len(records)):
        together = LeafParts(places[[0, rows]], places[:1], places[:1], np.full(1, 0.7, np.float32))
        alone = LeafParts(places, places, places * size, np.full(rows, 0.7, np.float32))
        for parts, count in ((together, 1), (alone, rows)):
            found.append(np.empty(rows, np.float32))
            leaf_values(records[:end], parts, count, size, 1, np.float32(0.3), columns, found[-1])
    assert all(np.array_equal(values, found[0]) for values in found)


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_passing_equals_its_twin(kind: type) -> None:
    values = np.random.default_rng(3).integers(0, 9, 256).astype(kind)
    places = np.empty(256, np.int64)
    for count in (0, 1, 15, 16, 17, 100, 256):
        for bound in (-1, 0, 4, 9):
            found = passing(values, count, kind(bound), places)
            assert places[:found].tolist() == naive.passing(values[:count], bound)
