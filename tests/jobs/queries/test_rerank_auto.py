"""Searches re-rank by default if the vectors are available, and report it if they are not."""

import logging
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.sizes import sized
from helpers.small_builds import SMALL, vectors

import aggtree
from aggtree.engine.search.request import SearchRequest, default_candidates
from aggtree.jobs.cli.main import cli

QUERIES = vectors(sized(20, 6), seed=1)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    np.save(tmp_path / "base.npy", vectors())
    aggtree.build(tmp_path / "base.npy", tmp_path / "index", workers=0, **SMALL)
    return tmp_path


def test_a_default_search_returns_exact_distances(place: Path) -> None:
    with aggtree.open(place / "index") as index:
        chosen = index.resolved(SearchRequest(k=10))
        assert isinstance(chosen.rerank, int) and chosen.rerank > 10 and chosen.params == index.params
        found = index.search(QUERIES, 10)
        same = index.search(QUERIES, 10, index.params, rerank=chosen.rerank)
        np.testing.assert_array_equal(found.ids, same.ids)
        np.testing.assert_array_equal(found.distances, same.distances)
        differences = QUERIES[:, None].astype(np.float64) - vectors()[found.ids]
        np.testing.assert_array_equal(found.distances, (differences**2).sum(axis=2))
        plain = index.search(QUERIES, 10, rerank=0)
        assert (plain.distances != found.distances).any()
        assert index.searcher.default_params == index.resolved(SearchRequest(rerank=0)).params
        own = aggtree.SearchParams(limits=(3, 9))
        assert index.resolved(SearchRequest(params=own)).params == own


def test_more_candidates_for_more_answers_and_for_shorter_codes() -> None:
    counts = [default_candidates(k, 2.0) for k in (1, 10, 100)]
    assert counts == [31, 105, 400]
    assert default_candidates(10, 0.5) > 2 * 100 > default_candidates(10, 1.2) == 105
    assert default_candidates(10, 1e-9) == default_candidates(10, 0.1)


def test_vectors_that_are_gone_are_reported_once(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    (place / "base.npy").rename(place / "moved.npy")
    with aggtree.open(place / "index") as index, caplog.at_level(logging.WARNING, "aggtree"):
        found = index.search(QUERIES, 10)
        index.search(QUERIES, 10)
        np.testing.assert_array_equal(found.ids, index.search(QUERIES, 10, rerank=0).ids)
    (message,) = caplog.messages
    assert message.startswith("answers are not re-ranked: ") and "no such file" in message
    with aggtree.open(place / "index", vectors=place / "moved.npy") as index:
        assert index.resolved(SearchRequest(k=10)).rerank


def test_rows_that_cannot_be_read_in_place_are_not_read(
    place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors().ravel()), vectors().shape[1])
    pa.parquet.write_table(pa.table({"v": column}), tmp_path / "base.parquet")
    aggtree.build(vectors(), tmp_path / "of-array", workers=0, **SMALL)
    with (
        aggtree.open(place / "index", vectors=tmp_path / "base.parquet") as of_parquet,
        aggtree.open(tmp_path / "of-array") as of_array,
        caplog.at_level(logging.WARNING, "aggtree"),
    ):
        for index in (of_parquet, of_array):
            assert index.resolved(SearchRequest(k=10)).rerank == 0
    assert not caplog.messages
    with aggtree.open(tmp_path / "of-array", vectors=vectors()) as index:
        assert index.resolved(SearchRequest(k=10)).rerank


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_floats_are_compared_as_they_are_stored(tmp_path: Path, kind: str) -> None:
    floats = (vectors().astype(np.float32) - 100) / 16  # exact in both
    if kind == "float16":
        halves, exact = floats.astype(np.float16), floats
    else:
        bits = floats.view(np.uint32) >> 16
        halves, exact = bits.astype(np.uint16).view("V2"), (bits << 16).view(np.float32)
    np.save(tmp_path / "base.npy", halves)
    aggtree.build(tmp_path / "base.npy", tmp_path / "index", workers=0, metric="cosine", **SMALL)
    with aggtree.open(tmp_path / "index") as index:
        assert index.raw_vectors.in_place
        found = index.search(exact[:9], 5, aggtree.SearchParams.unlimited(), rerank=len(exact))
    units = exact.astype(np.float64) / np.linalg.norm(exact.astype(np.float64), axis=1, keepdims=True)
    nearest = np.sort(1 - units[:9] @ units.T, axis=1)[:, :5]
    np.testing.assert_allclose(found.distances, nearest, atol=1e-6)


def test_the_command_line_states_what_is_re_ranked(place: Path) -> None:
    np.save(place / "query.npy", QUERIES)
    arguments = ["search", str(place / "index"), str(place / "query.npy"), "-k", "10"]
    said = CliRunner().invoke(cli, arguments, catch_exceptions=False).output
    with aggtree.open(place / "index") as index:
        count = index.resolved(SearchRequest(k=10)).rerank
    assert f"the best {count} re-ranked" in said
    assert "re-ranked" not in CliRunner().invoke(cli, [*arguments, "--rerank", "0"]).output
    refused = CliRunner().invoke(cli, [*arguments, "--rerank", "many"])
    assert refused.exit_code == 2 and "expected a number of candidates, or auto" in refused.output
    info = CliRunner().invoke(cli, ["info", str(place / "index")], catch_exceptions=False).output
    assert f"re-ranks {count} candidates by the vectors by default" in info
