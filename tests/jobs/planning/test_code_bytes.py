"""How long codes are: by the dimension and type of the vectors, or by the size of the index."""

from pathlib import Path

import numpy as np
import pytest
from helpers.sizes import sized

import aggtree
from aggtree.jobs.planning import costs
from aggtree.jobs.planning.defaults import EMBEDDING_ROWS, default_code_bytes
from aggtree.jobs.planning.recipe import Choices, Recipe, make_recipe
from aggtree.storage.sources.array import ArraySource


def source(rows: int, dimension: int, kind: str) -> ArraySource:
    """Rows that take no memory."""
    return ArraySource(np.broadcast_to(np.zeros(1, kind), (rows, dimension)))


def recipe(rows: int, dimension: int, kind: str, **choices: object) -> Recipe:
    return make_recipe(source(rows, dimension, kind), Choices(**choices))[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dimension", "expected"),
    [(16, 8), (100, 25), (128, 32), (256, 32), (384, 48), (768, 64), (1536, 64), (3072, 64)],
)
def test_bytes_follow_the_dimension(dimension: int, expected: int) -> None:
    assert default_code_bytes(dimension) == expected
    chosen = recipe(100_000, dimension, "float32", metric="cosine")
    assert chosen.tree.planes and len(chosen.words) == 1 + 2 * expected


def test_bytes_and_few_rows_have_dictionaries_of_256_words() -> None:
    assert not recipe(100_000, 128, "uint8").tree.planes
    assert not recipe(EMBEDDING_ROWS - 1, 128, "float32").tree.planes
    assert recipe(EMBEDDING_ROWS, 128, "float32").tree.planes


def test_a_choice_of_words_or_of_the_tree_stays() -> None:
    for choices in ({"words": "1024,256x8"}, {"dictionaries": 8}, {"bucket": 64}, {"norm_bytes": 4}):
        assert not recipe(100_000, 128, "float32", **choices).tree.planes


@pytest.mark.parametrize("kind", ["float32", "uint8"])
@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_the_longest_codes_that_fit_a_size(kind: str, metric: str) -> None:
    rows, dimension = 1_000_000, 96

    def size(bytes_per_vector: int) -> int:
        made = recipe(rows, dimension, kind, metric=metric, bytes_per_vector=bytes_per_vector)
        return costs.index_bytes(made.workload(rows, dimension, kind))

    for wanted in (2, 17, 64, 128):
        for spare in (0, 1000):
            chosen = recipe(rows, dimension, kind, metric=metric, size=size(wanted) + spare)
            assert len(chosen.words) - 1 == 2 * (wanted - (metric == "l2"))
    with pytest.raises(ValueError, match=r"size: 1,000,000 rows take at least \d+MiB"):
        recipe(rows, dimension, kind, metric=metric, size=size(2) - 1)


def test_size_at_the_front_door(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(sized(5000, 500), 16)).astype(np.float32)
    np.save(tmp_path / "base.npy", rows)
    planned = aggtree.plan(tmp_path / "base.npy", size="400KiB", workers=0)
    assert planned.plan.index_bytes <= 400 * 1024
    sizes = {other.bytes_per_vector: other.index_bytes for other in planned.alternatives}
    assert list(sizes) == [8, 16, 32, 64, 128] and sorted(sizes.values()) == list(sizes.values())
    with pytest.raises(ValueError, match="size 'much': expected a size such as 4GiB"):
        aggtree.plan(tmp_path / "base.npy", size="much")
    with pytest.raises(ValueError, match="leave out bytes_per_vector"):
        aggtree.plan(tmp_path / "base.npy", size="1GiB", bytes_per_vector=8)
    with pytest.raises(ValueError, match="leave out words"):
        aggtree.plan(tmp_path / "base.npy", size="1GiB", words="16x8")
