"""Sorting codes equals sorting byte strings; ranks of splitters equal counting."""

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.tree.code_order import ranks_below, shared_around, sort_codes
from aggtree.engine.tree.code_order_kernels import (
    DIGITS,
    WORD_DIGITS,
    digit_counts,
    gather_rows,
    order_equal_codes,
    pack_words,
    radix_pass,
    shared_rows,
    sort_runs,
)


def random_codes(rows: int, width: int, alphabet: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    codes = random.integers(0, alphabet, (rows, width), dtype=np.uint8)
    return codes, random.permutation(3 * rows)[:rows].astype(np.uint32)


cases = st.tuples(
    st.integers(0, 70),
    st.sampled_from([1, 2, 7, 8, 9, 16, 17, 66]),
    st.sampled_from([1, 2, 256]),
    st.integers(0, 99),
)


@settings(max_examples=60, deadline=None)
@given(cases)
def test_sorting_equals_sorting_byte_strings(case: tuple[int, int, int, int]) -> None:
    codes, ids = random_codes(*case)
    for kind in (np.uint32, np.uint64):
        sorted_codes, sorted_ids = sort_codes(codes, ids.astype(kind))
        expected_codes, expected_ids = naive.sort_codes(codes, ids)
        assert [bytes(code) for code in sorted_codes] == expected_codes
        assert sorted_ids.tolist() == expected_ids
        assert sorted_ids.dtype == kind


@pytest.mark.parametrize(("width", "alphabet"), [(3, 2), (9, 2), (12, 1), (9, 256), (17, 3)])
def test_many_rows_with_the_same_leading_bytes(width: int, alphabet: int) -> None:
    codes, ids = random_codes(20_000, width, alphabet, 4)
    codes[::3, :-1] = 7
    sorted_codes, sorted_ids = sort_codes(codes, ids)
    expected_codes, expected_ids = naive.sort_codes(codes, ids)
    assert sorted_codes.tobytes() == b"".join(expected_codes)
    assert sorted_ids.tolist() == expected_ids


@pytest.mark.parametrize("rows", [1, 2, 30, 500])
def test_short_runs_are_sorted_and_long_ones_left(rows: int) -> None:
    codes, _ = random_codes(rows, 10, 2, rows)
    order = np.arange(rows, dtype=np.uint32)
    keys = np.empty(rows, np.uint64)
    pack_words(codes, order, 0, 8, keys)
    long_runs = np.empty((9, 2), np.int64)
    assert sort_runs(codes, keys, order, 63, rows, long_runs) == 0
    assert order.tolist() == naive.sort_runs(codes, range(rows))
    assert sort_runs(codes, keys, order, 63, rows - 1, long_runs) == 1
    assert long_runs[0].tolist() == [0, rows]


def test_ids_above_32_bits_survive() -> None:
    ids = np.array([2**63 + 5, 2**63 + 1, 3], np.uint64)
    _, sorted_ids = sort_codes(np.zeros((3, 2), np.uint8), ids)
    assert sorted_ids.tolist() == [3, 2**63 + 1, 2**63 + 5]


def test_each_kernel_equals_its_twin() -> None:
    codes, ids = random_codes(301, 9, 5, 1)
    order = np.random.default_rng(2).permutation(301).astype(np.uint32)
    keys = np.empty(301, np.uint64)
    pack_words(codes, order, 2, 9, keys)
    assert keys.tolist() == naive.pack_words(codes, order, 2, 9)
    counts = np.zeros((WORD_DIGITS, DIGITS), np.int64)
    digit_counts(keys, counts)
    assert (counts == naive.digit_counts(keys)).all()
    keys_out, order_out = np.empty_like(keys), np.empty_like(order)
    radix_pass(keys, order, 3, np.cumsum(counts[3]) - counts[3], keys_out, order_out)
    expected_keys, expected_order = naive.radix_pass(keys, order, 3)
    assert keys_out.tolist() == expected_keys
    assert order_out.tolist() == expected_order
    gathered = np.empty_like(codes)
    gather_rows(codes, order, gathered)
    assert (gathered == naive.gather_rows(codes, order)).all()
    few = np.sort(codes[:, :1] % 3, axis=0)
    own = ids.copy()
    order_equal_codes(few, own)
    assert own.tolist() == naive.order_equal_codes(few, ids)


@settings(max_examples=40, deadline=None)
@given(cases, st.integers(0, 9))
def test_ranks_equal_counting(case: tuple[int, int, int, int], seed: int) -> None:
    codes, ids = sort_codes(*random_codes(*case))
    splits, split_ids = random_codes(7, case[1], case[2], seed)
    ranks = ranks_below(codes, ids, splits, split_ids)
    assert ranks.tolist() == naive.lower_bounds(codes, ids, splits, split_ids)


@pytest.mark.parametrize("words", [(4,) * 5, (700, 3, 3)])
def test_shared_rows_are_counted_per_level(words: tuple[int, ...]) -> None:
    layout = CodeLayout(words)
    random = np.random.default_rng(3)
    labels = np.stack([random.integers(0, min(size, 3), 200) for size in words], axis=1)
    codes, _ = sort_codes(layout.pack(labels), np.arange(200, dtype=np.uint32))
    ranks = np.array([0, 1, 77, 199, 200])
    firsts, lasts = codes[np.minimum(ranks, 199)], codes[np.maximum(ranks - 1, 0)]
    sizes = [layout.prefix_bytes(level) for level in range(layout.levels + 1)]
    counts = shared_around(codes, ranks, firsts, lasts, layout)
    assert [found.tolist() for found in counts] == list(naive.shared_rows(codes, ranks, firsts, lasts, sizes))


def test_shared_rows_are_found_far_away() -> None:
    codes = np.repeat(np.arange(9, dtype=np.uint8), 1001)[:, None]
    ranks = np.array([1, 1001, 4321, 8008, 9008])
    firsts, lasts = codes[ranks], codes[ranks - 1]
    before, after = np.zeros((2, 5, 2), np.int64)
    shared_rows(codes, ranks, firsts, lasts, np.array([0, 1]), before, after)
    assert (before.tolist(), after.tolist()) == naive.shared_rows(codes, ranks, firsts, lasts, [0, 1])


def test_bad_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="expected uint8"):
        sort_codes(np.zeros((3, 2), np.int16), np.arange(3, dtype=np.uint32))
    with pytest.raises(ValueError, match="one for each of 3"):
        sort_codes(np.zeros((3, 2), np.uint8), np.arange(4, dtype=np.uint32))
    with pytest.raises(ValueError, match="expected uint32 or uint64"):
        sort_codes(np.zeros((3, 2), np.uint8), np.arange(3, dtype=np.int64))
