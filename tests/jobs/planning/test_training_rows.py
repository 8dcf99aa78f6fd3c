"""Training reads rows of the whole source, and a wide first dictionary other rows than those behind it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggtree.jobs.planning.training_rows import FIRST_ROWS_PER_WORD, PIECES, batch_ranges, training_rows


def test_batches_cover_all_rows_and_have_one_size() -> None:
    assert batch_ranges(10, 4, 10) == [(0, 4), (4, 8), (6, 10)]
    assert batch_ranges(10, 4, 17) == [(0, 4), (4, 8), (6, 10), (0, 4), (4, 8)]
    assert batch_ranges(3, 100, 5) == [(0, 3), (0, 3)]


def test_fewer_rows_than_the_source_are_spread_over_it() -> None:
    assert batch_ranges(100, 10, 20) == [(20, 30), (70, 80)]
    places = [start for start, _ in batch_ranges(95, 10, 90)]
    assert places == [0, 10, 20, 30, 40, 50, 60, 70, 80]
    assert batch_ranges(100, 10, 1) == [(50, 60)]


@given(
    rows=st.integers(1, 10**10),
    batch_rows=st.integers(1, 200_000),
    batches=st.integers(1, 40),
    words=st.sampled_from([0, 257, 4096, 65_536]),
)
def test_ranges(rows: int, batch_rows: int, batches: int, words: int) -> None:
    found = training_rows(rows, batch_rows, batches * min(rows, batch_rows), words)
    size = min(rows, batch_rows)
    assert all(start >= 0 and stop <= rows and stop - start == size for start, stop in found.batches)
    distinct = sorted(set(found.batches))
    if words == 0 or len(distinct) == 1:
        assert found.first == []
        return
    total = sum(stop - start for start, stop in found.first)
    assert all(0 <= start < stop <= rows and stop - start <= size for start, stop in found.first)
    assert size <= total <= len(distinct) * size
    assert total >= min(FIRST_ROWS_PER_WORD * words, len(distinct) * size)
    if rows // size >= 2 * len(distinct):
        both = sorted(distinct + found.first)
        assert all(one[1] <= other[0] for one, other in pairwise(both))


@given(
    rows=st.integers(1, 10**10),
    batch_rows=st.integers(1, 200_000),
    words=st.sampled_from([0, 257, 4096, 65_536]),
)
def test_the_only_batch_is_spread_over_the_source(rows: int, batch_rows: int, words: int) -> None:
    batch_rows = min(rows, batch_rows)
    found = training_rows(rows, batch_rows, batch_rows, words, spread=True)
    assert all(0 <= start < stop <= rows for start, stop in found.batches + found.first)
    assert found.count == 1
    assert found.batch_rows <= min(rows, batch_rows)
    assert found.batch_rows > min(rows, batch_rows) - PIECES
    ordered = sorted(found.batches)
    assert all(one[1] <= other[0] for one, other in pairwise(ordered))
    if found.pieces > 1:
        assert ordered[0][0] <= rows / PIECES
        assert ordered[-1][1] >= rows - rows / PIECES
        first, wanted = sum(stop - start for start, stop in found.first), FIRST_ROWS_PER_WORD * words
        assert first == 0 if wanted <= batch_rows else first >= min(rows - batch_rows, wanted)


@pytest.mark.parametrize("rows", [5_000_000, 10**9])
def test_every_part_of_a_large_source_is_represented(rows: int) -> None:
    found = training_rows(rows, 100_000, 2_000_000, 4096)
    for ranges in (found.batches, found.first):
        gaps = [later - earlier for (_, earlier), (later, _) in pairwise([(0, 0), *ranges, (rows, rows)])]
        assert max(gaps) <= rows / 20 + 100_000
