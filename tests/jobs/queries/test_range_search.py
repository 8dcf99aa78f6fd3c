"""Range search finds all within the radius: of the reconstructions, or exactly, of the vectors themselves."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.small_builds import ROWS, SMALL, make_ids, vectors

import aggtree
from aggtree.engine.params import SearchParams
from aggtree.engine.search import nearest, ranges
from aggtree.engine.search.ranges import RangeAnswer
from aggtree.jobs.cli.main import cli

EVERYTHING = SearchParams.unlimited()
RADII = [0.0, 40.0, 90.0, 1e4]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("range")
    np.save(place / "base.npy", vectors())
    np.save(place / "query.npy", queries())
    aggtree.build(place / "base.npy", place / "rows", workers=0, **SMALL)
    aggtree.build(place / "base.npy", place / "own", ids=make_ids(), workers=0, **SMALL)
    return place


def queries() -> np.ndarray:
    return np.concatenate([vectors(6, seed=1), vectors()[:2]])


def lists(answer: RangeAnswer) -> list[list[tuple[float, int]]]:
    assert answer.starts[0] == 0 and answer.starts[-1] == len(answer.ids) == len(answer.distances)
    pairs = list(zip(answer.distances.tolist(), answer.ids.tolist(), strict=True))
    return [pairs[start:stop] for start, stop in zip(answer.starts[:-1], answer.starts[1:], strict=True)]


def exact(radius: float, mask: np.ndarray | None = None) -> list[list[tuple[float, int]]]:
    distances = ((queries()[:, None].astype(np.int64) - vectors()) ** 2).sum(axis=2)
    rows = np.arange(ROWS) if mask is None else np.flatnonzero(mask)
    return [
        sorted((float(near[row]), int(row)) for row in rows if near[row] <= radius**2) for near in distances
    ]


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("share", [None, 0.02, 0.5])
def test_with_the_vectors_it_is_exact(
    place: Path, radius: float, share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Queries are repeated for more answers, and both kinds of filters are used.
    monkeypatch.setattr(ranges, "FIRST_ANSWERS", 3)
    monkeypatch.setattr(nearest, "SCAN_ROWS", 50)
    mask = None if share is None else np.random.default_rng(0).random(ROWS) < share
    with aggtree.open(place / "rows") as index, aggtree.open(place / "own") as own:
        found = lists(index.range_search(queries(), radius, EVERYTHING, 2, rerank=True, within=mask))
        assert found == exact(radius, mask)
        own_answer = own.range_search(queries(), radius, EVERYTHING, rerank=True, within=mask)
    ids = make_ids()
    assert lists(own_answer) == [[(d, int(ids[row])) for d, row in row_list] for row_list in found]


@pytest.mark.parametrize("radius", RADII)
def test_without_them_it_is_that_of_the_reconstructions(
    place: Path, radius: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "FIRST_ANSWERS", 5)
    with aggtree.open(place / "rows") as index:
        every = index.search(queries(), ROWS, EVERYTHING, rerank=0)
        found = lists(index.range_search(queries(), radius, EVERYTHING))
        one = lists(index.range_search(queries()[3], radius, EVERYTHING))
    for i, pairs in enumerate(found):
        inside = every.distances[i] <= radius**2
        assert [number for _, number in pairs] == every.ids[i][inside].tolist()
    assert one == [found[3]]


def test_the_k_nearest_within_a_radius(place: Path) -> None:
    with aggtree.open(place / "rows") as index:
        near = index.search(queries(), 10, EVERYTHING, rerank=ROWS, radius=60.0)
        for radius in (-1.0, float("nan")):
            with pytest.raises(ValueError, match=r"radius .*: expected 0 or more"):
                index.range_search(queries(), radius)
    for ids, distances, inside in zip(*near, exact(60.0), strict=True):
        expected = inside[:10]
        assert ids.tolist() == [row for _, row in expected] + [-1] * (10 - len(expected))
        assert distances.dtype == np.float32 and (distances[len(expected) :] == np.inf).all()


def test_the_command_writes_all_answers(place: Path, tmp_path: Path) -> None:
    def run(*arguments: object) -> tuple[int, str]:
        answer = CliRunner().invoke(cli, ["search", *(str(argument) for argument in arguments)])
        return answer.exit_code, answer.output

    out = tmp_path / "answers.npz"
    options = ("--radius", 60, "--rerank", 100, "--limits", 0)
    code, text = run(place / "rows", place / "query.npy", *options, "--out", out)
    assert code == 0 and "answers per query" in text
    with np.load(out) as stored:
        answer = RangeAnswer(stored["starts"], stored["ids"], stored["distances"])
    assert lists(answer) == exact(60.0)
    assert run(place / "rows", place / "query.npy", *options, "--json")[0] == 0
    result = CliRunner().invoke(
        cli, ["search", str(place / "rows"), str(place / "query.npy"), "--radius", "6", "--out", "a.ivecs"]
    )
    assert result.exit_code != 0 and "are written to .npz files" in str(result.exception)
