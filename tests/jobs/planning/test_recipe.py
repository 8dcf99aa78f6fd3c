"""A recipe nests the parameters of the engine, and is one flat record on disk."""

import numpy as np
import pytest
from helpers.small_builds import SMALL, recipe_of

from aggtree.engine.params import AnnealingParams, TreeParams
from aggtree.jobs.planning.defaults import QUALITIES
from aggtree.jobs.planning.recipe import Choices, Recipe, choose_recipe, make_recipe
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.sources.array import ArraySource

FLAT = {
    "words": [16, 16, 16],
    "beam": 4,
    "seed": 0,
    "cooling": "joint",
    "batch_rows": SMALL["batch_rows"],
    "train_rows": SMALL["train_rows"],
    "shard_rows": 700,
    "bucket": 8,
    "stray": 1,
    "norm_bytes": 1,
    "skip_invalid": False,
}
"""What builds of every release remember of these parameters: their ids are computed from it."""


def test_the_record_on_disk_is_flat_and_leaves_later_defaults_out() -> None:
    recipe = Recipe.from_json(FLAT)
    assert recipe.to_json() == FLAT
    assert recipe.annealing == AnnealingParams(words=(16,) * 3, beam=4)
    assert recipe.tree == TreeParams(bucket=8)
    made = recipe_of(**SMALL)
    assert made.to_json() == FLAT | {"early_rows": 20, "early_beam": 4}
    assert Recipe.from_json(made.to_json()) == made


def test_quality_decides_rounds_that_the_user_did_not_choose() -> None:
    rounds = {name: choose_recipe(10**6, Choices(quality=name)).annealing.rounds for name in QUALITIES}
    assert rounds["fast"] < rounds["default"] < rounds["best"]
    chosen = choose_recipe(10**6, Choices(annealing=AnnealingParams(rounds=3), quality="best")).annealing
    assert chosen.rounds == 3 and chosen.early_rows == 0
    kmeans = choose_recipe(10**6, Choices(annealing=AnnealingParams(cooling="kmeans"))).annealing
    assert kmeans.early_rows == 0
    with pytest.raises(ValueError, match="quality 'good': expected default or fast or best"):
        choose_recipe(10**6, Choices(quality="good"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "more",
    [
        {"metric": "cosine"},
        {"taken": "0123456789ab"},
        {"taken": "0123456789ab", "continued": True},
        {"rounds": 3, "tolerance": 0.01},
    ],
)
def test_what_is_not_the_default_is_kept(more: dict[str, object]) -> None:
    recipe = Recipe.from_json(FLAT | more)
    assert recipe.to_json() == FLAT | more
    assert Recipe.from_json(recipe.flat()) == recipe


@pytest.mark.parametrize("name", ["beam", "bucket", "batch_rows", "words"])
def test_a_record_without_a_value_is_refused(name: str) -> None:
    record = {key: value for key, value in FLAT.items() if key != name}
    with pytest.raises(IndexFormatError, match=name):
        Recipe.from_json(record)


@pytest.mark.parametrize(
    ("words", "dictionaries", "expected"),
    [
        ("4096,256x2", None, (4096, 256, 256)),
        ((64, 32), None, (64, 32)),
        ([64, 32], 2, (64, 32)),
        (32, 3, (32,) * 3),
        ("32", 3, (32,) * 3),
        ("256", None, (256,) * 8),
        (None, 2, (256, 256)),
        (None, None, (256,) * 8),
    ],
)
def test_words_are_given_in_several_ways(
    words: str | int | tuple[int, ...] | None, dictionaries: int | None, expected: tuple[int, ...]
) -> None:
    assert choose_recipe(10_000, Choices(words=words, dictionaries=dictionaries)).words == expected


@pytest.mark.parametrize(
    ("rows", "choices", "expected"),
    [
        (6000, {"words": "5000,8x2", "train_rows": 3000}, "3,000 rows to train on cannot teach 5,000 words"),
        (6000, {"words": "16,8x2", "train_rows": 10}, "10 rows .* cannot teach 16 words: raise train_rows"),
        (
            900_000,
            {"words": "256x2", "batch_rows": 100},
            "100 rows .* teach 256 words: raise train_rows",
        ),
        (900_000, {"words": "300,256", "batch_rows": 100}, "100 rows .* cannot teach 256 words"),
        (40, {"words": "50,8"}, "40 rows .* cannot teach 50 words: add vectors or use fewer words"),
    ],
)
def test_too_few_rows_to_train_on_are_refused_by_the_plan(rows, choices, expected) -> None:
    source = ArraySource(np.zeros((rows, 1), np.uint8))
    with pytest.raises(ValueError, match=expected) as error:
        make_recipe(source, Choices(**choices))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("rows", [2, 40, 300, 100_000])
@pytest.mark.parametrize("choices", [{}, {"bytes_per_vector": 8}, {"train_rows": 1000}])
def test_defaults_are_never_refused(rows, choices) -> None:
    make_recipe(ArraySource(np.zeros((rows, 1), np.uint8)), Choices(**choices))
