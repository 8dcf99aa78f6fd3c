"""A tree equals its brute-force twin, and does not depend on the partitions it was joined from."""

from itertools import pairwise

import naive
import numpy as np
import pytest
from helpers.trees import LAYOUTS, random_codes, random_dictionaries, whole_ranges
from hypothesis import given, settings
from hypothesis import strategies as st

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.params import TreeParams
from aggtree.engine.tree.build_kernels import common_labels, hang_levels, level_counts
from aggtree.engine.tree.code_order import shared_around, sort_codes
from aggtree.engine.tree.layout import (
    Tree,
    build_tree,
    build_tree_partition,
    check_tree,
    join_partitions,
    tree_shape,
)

trees = st.tuples(
    st.sampled_from(LAYOUTS), st.integers(1, 120), st.sampled_from([1, 2, 3, 300]), st.integers(0, 50)
)
params = st.builds(
    lambda bucket, direct_leaves, size: TreeParams(
        bucket=bucket, direct_leaves=min(bucket, direct_leaves), norm_bytes=size
    ),
    st.sampled_from([1, 2, 5, 64]),
    st.sampled_from([1, 3]),
    st.sampled_from([1, 2, 4]),
)


def same(a: Tree, b: Tree) -> bool:
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@settings(max_examples=80, deadline=None)
@given(trees, params)
def test_tree_equals_its_twin(case: tuple[tuple[int, ...], int, int, int], settings_: TreeParams) -> None:
    words, rows, alphabet, seed = case
    codes = random_codes(words, rows, alphabet, seed)
    ids = np.random.default_rng(seed).permutation(rows).astype(np.uint32)
    dictionaries, ranges = random_dictionaries(words, seed), whole_ranges(len(words))
    layout = dictionaries.layout
    tree = build_tree(codes, ids, dictionaries, settings_, ranges)
    assert check_tree(tree, layout) == settings_.norm_bytes
    levels = naive.fill_partition(codes, ids, layout, settings_.bucket, settings_.direct_leaves)
    nodes = [node for level in levels for node in level]
    assert tree.level_start.tolist() == np.cumsum([0, *(len(level) for level in levels)]).tolist()
    assert tree.first_labels.tolist() == [node.prefix[0] for node in levels[1]]
    assert tree.labels.tolist() == [0] + [node.prefix[-1] % 256 for node in nodes[1:]]
    norms = [np.sum(naive.reconstruction(node.prefix, dictionaries) ** 2) for node in nodes]
    assert tree.norms.tolist() == norms
    assert np.diff(tree.child_start).tolist() == [len(node.children) for node in nodes]
    assert np.diff(tree.leaf_start).tolist() == [len(node.leaves) for node in nodes]
    assert tree.child_start[0] == 1
    assert tree.ids.tolist() == [number for node in nodes for _, number in node.leaves]
    assert bytes(tree.records) == b"".join(
        record(tree, node, row, dictionaries, settings_, ranges) for node in nodes for row, _ in node.leaves
    )


def record(tree, node, row, dictionaries, settings_, ranges) -> bytes:
    """Bytes of a leaf from the norm its twin gives back."""
    level = len(node.prefix)
    norm = np.float32(naive.stored_norm(node, row, dictionaries, settings_, ranges))
    if settings_.norm_bytes == 4:
        head = norm.tobytes()
    else:
        base = np.sum(naive.reconstruction(node.prefix, dictionaries) ** 2)
        number = round((norm - base - tree.norm_low[level]) / tree.norm_step[level])
        head = number.to_bytes(settings_.norm_bytes, "little")
    code = dictionaries.layout.pack(np.array([row]))[0]
    return head + bytes(code[dictionaries.layout.prefix_bytes(level) :])


def neighbours(codes: np.ndarray, start: int, stop: int, layout: CodeLayout) -> tuple[np.ndarray, np.ndarray]:
    """Rows before and after a range of sorted codes that share labels with its ends."""
    rows = len(codes)
    before, _ = shared_around(codes, np.array([start]), codes[[min(start, rows - 1)]], codes[:1], layout)
    _, after = shared_around(codes, np.array([stop]), codes[:1], codes[[max(stop - 1, 0)]], layout)
    return before[0], after[0]


@settings(max_examples=120, deadline=None)
@given(trees, params, st.lists(st.integers(0, 120), max_size=5))
def test_any_split_into_parts_joins_to_the_same_bytes(
    case: tuple[tuple[int, ...], int, int, int], settings_: TreeParams, cuts: list[int]
) -> None:
    words, rows, alphabet, seed = case
    dictionaries, ranges = random_dictionaries(words, seed), whole_ranges(len(words))
    layout = dictionaries.layout
    codes, ids = sort_codes(random_codes(words, rows, alphabet, seed), np.arange(rows, dtype=np.uint32))
    ends = [0, *sorted(min(cut, rows) for cut in cuts), rows]
    partitions = [
        build_tree_partition(
            codes[start:stop],
            ids[start:stop],
            dictionaries,
            settings_,
            ranges,
            *neighbours(codes, start, stop, layout),
        )
        for start, stop in pairwise(ends)
    ]
    whole = build_tree_partition(codes, ids, dictionaries, settings_, ranges)
    assert same(
        join_partitions(partitions, layout, settings_, ranges),
        join_partitions([whole], layout, settings_, ranges),
    )


@pytest.mark.parametrize("words", LAYOUTS)
def test_row_kernels_equal_their_twins(words: tuple[int, ...]) -> None:
    layout = CodeLayout(words)
    codes, ids = sort_codes(random_codes(words, 97, 3), np.arange(97, dtype=np.uint32))
    common, hang = np.zeros(97, np.int8), np.empty(97, np.int8)
    assert common_labels(codes, ids, np.array(words), int(layout.wide), common) == -1
    assert common[1:].tolist() == naive.common_labels(codes, layout)
    common[0] = -1
    none = np.zeros(layout.levels + 1, np.int64)
    hang_levels(common, none, none, 5, 2, np.empty(97, np.bool_), hang)
    assert hang.tolist() == naive.hang_levels(codes, layout, 5, 2)
    nodes, leaves = np.zeros((2, layout.levels + 1), np.int64)
    level_counts(common, hang, nodes, leaves)
    assert (nodes.tolist(), leaves.tolist()) == naive.level_counts(codes, layout, 5, 2)


def test_a_billion_leaves_and_more_are_numbered_in_64_bits() -> None:
    layout = CodeLayout((256,) * 2)
    nodes, leaves = np.array([[1, 256, 9], [0, 0, 2**20]]), np.array([[0, 0, 2**31], [0, 5, 2**31]])
    shape = tree_shape(nodes, leaves, layout, 1)
    assert (shape.start_dtype, shape.id_dtype) == (np.uint64, np.uint64)
    assert shape.first_leaf[1].tolist() == [0, 0, 5 + 2**31]
    assert shape.first_node[1].tolist() == [1, 257, 257 + 9, 257 + 9 + 2**20]
    assert shape.record_start[-1] == 5 * 2 + 2**32
    small = tree_shape(nodes, leaves // 2, layout, 1)
    assert (small.start_dtype, small.id_dtype) == (np.uint32, np.uint32)


def test_wrong_rows_are_refused() -> None:
    dictionaries, ranges = random_dictionaries((4, 4)), whole_ranges(2)
    ids = np.arange(2, dtype=np.uint32)
    bad = {"out of order": [[3, 0], [1, 0]], "no dictionary knows": [[1, 0], [1, 4]]}
    for codes in bad.values():
        with pytest.raises(ValueError, match="row 1 of the sorted codes"):
            build_tree_partition(np.array(codes, np.uint8), ids, dictionaries, TreeParams(), ranges)
    with pytest.raises(ValueError, match="codes of 3 bytes"):
        build_tree_partition(np.zeros((2, 3), np.uint8), ids, dictionaries, TreeParams(), ranges)
    with pytest.raises(ValueError, match="norm ranges"):
        build_tree_partition(np.zeros((2, 2), np.uint8), ids, dictionaries, TreeParams(), ranges[1:])
    with pytest.raises(ValueError, match="falling counts"):
        build_tree_partition(
            np.zeros((2, 2), np.uint8), ids, dictionaries, TreeParams(), ranges, np.array([0, 1, 1])
        )
    with pytest.raises(ValueError, match="no rows"):
        build_tree(np.zeros((0, 2), np.uint8), ids[:0], dictionaries, TreeParams(), ranges)
