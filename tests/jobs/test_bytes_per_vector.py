"""Codes chosen by their bytes: leaves in planes, from the build to every way an index is used."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.sizes import sized
from helpers.small_builds import contents, recipe_of, vectors

import aggtree
from aggtree.jobs.cli.main import cli
from aggtree.jobs.planning import plan
from aggtree.storage.index.format import PLANES_VERSION, TRANSFORMED_VERSION, TREE
from aggtree.storage.index.manifest import read_manifest

TRAIN_ROWS, BEAM = sized(2000, 300), sized(4, 2)
OPTIONS: dict[str, Any] = {"bytes_per_vector": 6, "train_rows": TRAIN_ROWS, "shard_rows": 700, "beam": BEAM}
QUERIES = vectors(20, seed=1)


@pytest.fixture(scope="module", params=["l2", "ip", "cosine"])
def metric(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("planes")
    np.save(place / "base.npy", vectors())
    np.save(place / "more.npy", vectors(500, seed=2))
    return place


@pytest.fixture(scope="module")
def index(place: Path, metric: str) -> Path:
    made = place / f"{metric}.index"
    aggtree.build(place / "base.npy", made, metric=metric, workers=0, **OPTIONS)
    return made


def exact(rows: np.ndarray, metric: str, k: int) -> np.ndarray:
    base, queries = rows.astype(np.float64), QUERIES.astype(np.float64)
    if metric == "cosine":
        base /= np.sqrt((base**2).sum(axis=1, keepdims=True))
    products = queries @ base.T
    scores = -products if metric != "l2" else (base**2).sum(axis=1) - 2 * products
    return np.argsort(scores, axis=1, kind="stable")[:, :k]


def share(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.mean([len({*a} & {*b}) / len(b) for a, b in zip(found, truth, strict=True)]))


def test_what_is_chosen() -> None:
    recipe = recipe_of(3100, bytes_per_vector=6, metric="cosine")
    assert recipe.tree.planes and recipe.tree.norm_bytes == 0
    assert recipe.words[1:] == (16,) * 12 and recipe.annealing.stage == 16
    assert recipe_of(3100, bytes_per_vector=6).words[1:] == (16,) * 10  # and a byte of norm
    assert recipe_of(200_000, bytes_per_vector=32, metric="ip").words == (1024, *[16] * 64)
    for words in ("1024,16x32", None):  # as they were before there were planes
        plain = recipe_of(200_000, words=words, metric="ip")
        assert not {"planes", "stage"} & plain.to_json().keys() and plain.train_rows == 200_000
    for name, value in (("bucket", 5), ("direct_leaves", 2), ("norm_bytes", 4)):
        with pytest.raises(ValueError, match=f"{name} {value}: does not apply to leaves in planes"):
            recipe_of(3100, bytes_per_vector=6, **{name: value})
    for wrong in (0, 1, 129):
        with pytest.raises(ValueError, match=f"bytes_per_vector {wrong}: expected 2 to 128"):
            recipe_of(3100, bytes_per_vector=wrong)
    with pytest.raises(ValueError, match="leave out words"):
        recipe_of(3100, bytes_per_vector=6, words="16x8")


def test_the_bytes_do_not_depend_on_workers_or_partitions(
    place: Path, index: Path, metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MIN_PARTITION_ROWS", 100)
    monkeypatch.setattr(plan, "MAX_PARTITION_ROWS", 301)
    aggtree.build(place / "base.npy", tmp_path / "index", metric=metric, workers=2, **OPTIONS)
    assert contents(tmp_path / "index") == contents(index)


def test_the_index_is_whole(index: Path, metric: str) -> None:
    manifest = read_manifest(index)
    assert manifest.first_segment.planes
    assert manifest.version == (PLANES_VERSION if metric == "cosine" else TRANSFORMED_VERSION)
    assert aggtree.verify(index, deep=True) == []
    with aggtree.open(index) as opened:
        records = opened.bytes_by_part()[f"{TREE}/records"]
        assert records == -(-len(opened) // 32) * 32 * 6 + 32
        rebuilt = opened.reconstruct(np.arange(50))
        assert rebuilt.shape == (50, 12)


def test_answers(index: Path, metric: str) -> None:
    with aggtree.open(index) as opened:
        everything = aggtree.SearchParams.unlimited()
        ranked = opened.search(QUERIES, 10, everything, rerank=200)
        assert share(ranked.ids, exact(vectors(), metric, 10)) >= 0.9
        single = [opened.search(query, 10).ids[0] for query in QUERIES]
        np.testing.assert_array_equal(opened.search(QUERIES, 10).ids, single)
        some = np.arange(0, 3100, 7)
        assert np.isin(opened.search(QUERIES, 10, within=some).ids, some).all()


def test_it_grows_and_shrinks(place: Path, index: Path, metric: str, tmp_path: Path) -> None:
    import shutil

    grown = tmp_path / "grown"
    shutil.copytree(index, grown)
    aggtree.append(grown, place / "more.npy", workers=0)
    aggtree.delete(grown, range(100, 200))
    with aggtree.open(grown) as opened:
        before = opened.search(QUERIES, 10, aggtree.SearchParams.unlimited(), rerank=0)
        assert len(opened) == 3500 and not np.isin(before.ids, np.arange(100, 200)).any()
        assert (before.ids >= 3100).any() or metric == "ip"
    aggtree.compact(grown, workers=0)
    assert aggtree.verify(grown, deep=True) == []
    with aggtree.open(grown) as opened:
        after = opened.search(QUERIES, 10, aggtree.SearchParams.unlimited(), rerank=0)
    # Of each tree the nearest by integer tables are ranked: a few more of two trees than of one.
    assert share(after.ids, before.ids) >= 0.98


def test_reused_dictionaries_make_the_same_codes(
    place: Path, index: Path, metric: str, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    aggtree.build(place / "base.npy", again, metric=metric, dictionaries=index, workers=0, beam=BEAM)
    assert read_manifest(again).first_segment.planes
    for old, new in zip(*(sorted(path.glob("build-*/tree/*")) for path in (index, again)), strict=True):
        assert old.read_bytes() == new.read_bytes(), old.name


def test_damage_is_found_and_repaired(place: Path, index: Path, metric: str, tmp_path: Path) -> None:
    import shutil

    damaged = tmp_path / "damaged"
    shutil.copytree(index, damaged)
    (records,) = damaged.glob("build-*/tree/records")
    content = bytearray(records.read_bytes())
    content[777] ^= 0x21
    records.write_bytes(content)
    assert any("records" in str(damage) for damage in aggtree.verify(damaged))
    aggtree.build(place / "base.npy", damaged, metric=metric, workers=0, repair=True, **OPTIONS)
    assert contents(damaged) == contents(index)


def test_the_command(place: Path, tmp_path: Path) -> None:
    arguments = ["build", str(place / "base.npy"), str(tmp_path / "index"), "--bytes-per-vector", "6"]
    arguments += ["--metric", "cosine", "--shard-rows", "700"]
    arguments += ["--train-rows", str(TRAIN_ROWS), "--beam", str(BEAM)]
    answer = CliRunner().invoke(cli, [*arguments, "--workers", "0"], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    wrong = CliRunner().invoke(cli, [*arguments[:4], "1000"])
    assert wrong.exit_code != 0
