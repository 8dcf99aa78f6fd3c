"""An open index besides searching: its state, its vectors, newer commits, other threads and processes."""

import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.small_builds import DIMENSION, ROWS, SMALL, make_ids, vectors

import aggtree
from aggtree.engine.params import SearchParams
from aggtree.engine.search import nearest
from aggtree.engine.search.searcher import Searcher
from aggtree.jobs.cli.main import cli
from aggtree.storage.errors import IndexFormatError, SourceError
from aggtree.storage.index import reader

EVERYTHING = SearchParams.unlimited()
FIRST = 2000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of rows, and one with own ids."""
    place = tmp_path_factory.mktemp("index_object")
    np.save(place / "base.npy", vectors())
    aggtree.build(place / "base.npy", place / "rows", workers=0, **SMALL)
    aggtree.build(place / "base.npy", place / "own", ids=make_ids(), workers=0, **SMALL)
    return place


def queries() -> np.ndarray:
    return vectors(9, seed=1)


def test_an_index_has_default_parameters(place: Path) -> None:
    with aggtree.open(place / "rows") as index:
        assert index.metric == "l2"
        # Twice as many nodes as without re-ranking.
        assert index.params == index.searcher.default_params.scaled(2)
        np.testing.assert_array_equal(
            index.search(queries(), 9).ids, index.search(queries(), 9, index.params).ids
        )
    assert (index.metric, index.rows) == ("l2", ROWS)  # still there when it is closed
    for ask in (lambda: index.params, lambda: index.reconstruct([1]), index.refresh, index.warm):
        with pytest.raises(ValueError, match="the index is closed"):
            ask()


def test_more_answers_than_rows(place: Path) -> None:
    with aggtree.open(place / "own") as index:
        many = index.search(queries(), ROWS + 70, EVERYTHING)
        every = index.search(queries(), ROWS, EVERYTHING)
        exact = index.search(queries(), ROWS + 70, EVERYTHING, rerank=2 * ROWS, within=range(2**62))
        with pytest.raises(ValueError, match=r"k 1000000000: 9 queries .* choose a smaller k"):
            index.search(queries(), 10**9)
        with pytest.raises(ValueError, match="radius nan: expected 0 or more"):
            index.search(queries(), 3, radius=float("nan"))
        # Answered in the right order; its squared distances are beyond float32.
        distant = index.search(np.full(DIMENSION, 3e38), 3)
        assert (distant.distances == np.inf).all() and (distant.ids != -1).all()
    np.testing.assert_array_equal(many.ids[:, :ROWS], every.ids)
    assert (many.ids[:, ROWS:] == -1).all() and (many.distances[:, ROWS:] == np.inf).all()
    positive = int((make_ids() >= 0).sum())
    assert exact.ids.shape == (9, ROWS + 70) and ((exact.ids >= 0).sum(axis=1) == positive).all()
    answer = CliRunner().invoke(
        cli, ["search", str(place / "rows"), str(place / "base.npy"), "-k", "1000000000"]
    )
    assert "choose a smaller k" in str(answer.exception)


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_codes_give_vectors_back(metric: str, tmp_path: Path) -> None:
    aggtree.build(vectors(), tmp_path / "i", metric=metric, workers=0, **SMALL)
    with aggtree.open(tmp_path / "i", vectors=vectors()) as index:
        ids = np.random.default_rng(0).permutation(ROWS)[:500]
        found = index.reconstruct(ids)
        assert found.shape == (500, DIMENSION) and found.dtype == np.float32
        rows, expected = index.searcher.sampled_vectors(ROWS)
        np.testing.assert_allclose(found, expected[np.searchsorted(rows, ids)], rtol=1e-4, atol=1e-3)
        np.testing.assert_array_equal(index.reconstruct(int(ids[7])), found[7:8])
        assert index.reconstruct([]).shape == (0, DIMENSION)


def test_ids_without_a_vector_are_named(place: Path, tmp_path: Path) -> None:
    own = make_ids()
    with aggtree.open(place / "own") as index, aggtree.open(place / "rows") as rows:
        np.testing.assert_array_equal(index.reconstruct(own[[5, 900, 5]]), rows.reconstruct([5, 900, 5]))
        for wrong in ([own[0], 7], [7]):
            with pytest.raises(ValueError, match="id 7 is not in the index"):
                index.reconstruct(wrong)
        for wrong in ([3, ROWS], np.array([2**64 - 1], np.uint64), [-1]):
            with pytest.raises(ValueError, match=r"id (3100|-1|18446744073709551615) is not in the index"):
                rows.reconstruct(wrong)
        for wrong in ([0.5], [[1, 2]], ["a"]):
            with pytest.raises(ValueError, match=r"expected integers of shape \(n,\)"):
                rows.reconstruct(wrong)


def test_reconstructions_of_a_grown_index(tmp_path: Path) -> None:
    index, base, ids = tmp_path / "i", vectors(), make_ids()
    codes = f"file://{tmp_path / 'codes.zarr'}"
    aggtree.build(base[:FIRST], index, ids=ids[:FIRST], workers=0, codes=codes, **SMALL)
    aggtree.append(index, base[FIRST:-1], ids=ids[FIRST:-1], workers=0)
    with aggtree.open(index) as opened:
        every = opened.reconstruct(ids[:-1])
    aggtree.delete(index, ids[[3, FIRST + 5]])
    # The id of a deleted row belongs to another row now.
    aggtree.append(index, base[-1:], ids=ids[3:4], workers=0)
    kept = np.setdiff1d(np.arange(ROWS - 1), [3, FIRST + 5])[::-1]
    for _ in range(2):
        with aggtree.open(index) as opened:
            np.testing.assert_array_equal(opened.reconstruct(ids[kept]), every[kept])
            again = opened.reconstruct(ids[3:4])[0]
            assert ((again - base[-1]) ** 2).sum() < ((again - base[3].astype(int)) ** 2).sum()
            with pytest.raises(ValueError, match=f"id {ids[FIRST + 5]} is not in the index"):
                opened.reconstruct(ids[[2, FIRST + 5]])
        aggtree.compact(index, workers=0)


def test_codes_of_another_index_are_refused(tmp_path: Path) -> None:
    codes = f"file://{tmp_path / 'codes.zarr'}"
    aggtree.build(vectors(), tmp_path / "i", workers=0, codes=codes, **SMALL)
    metadata = tmp_path / "codes.zarr" / "zarr.json"
    with aggtree.open(tmp_path / "i") as index:
        metadata.write_text(metadata.read_text().replace(index.manifest.first_segment.build, "0" * 12))
        with pytest.raises(IndexFormatError, match="not the codes of"):
            index.reconstruct([1])


def test_every_commit_is_taken_up(tmp_path: Path) -> None:
    path, base = tmp_path / "i", vectors()
    np.save(tmp_path / "first.npy", base[:FIRST])
    np.save(tmp_path / "second.npy", base[FIRST:])
    aggtree.build(tmp_path / "first.npy", path, workers=0, **SMALL)

    def same_as_opened_now() -> None:
        with aggtree.open(path) as new:
            assert (len(index), index.manifest) == (len(new), new.manifest)
            for options in ({}, {"rerank": 50}, {"within": range(50, 1500)}, {"threads": 2}):
                np.testing.assert_array_equal(
                    index.search(queries(), 10, **options).ids, new.search(queries(), 10, **options).ids
                )

    with aggtree.open(path) as index:
        assert not index.refresh() and not index.refresh()
        first, ready = index.searcher, index.filter(range(100))
        aggtree.append(path, tmp_path / "second.npy", workers=0)
        assert len(index) == FIRST
        assert index.refresh() and not index.refresh()
        assert first in [segment.searcher for segment in index.searcher.segments]  # not opened again
        same_as_opened_now()
        with pytest.raises(ValueError, match="a filter of 2000 rows for an index of 3100: make it again"):
            index.search(queries(), 5, within=ready)
        ready = index.filter(range(100))
        near = index.search(queries(), 3, within=ready).ids
        aggtree.delete(path, np.unique(near))
        assert index.refresh()
        same_as_opened_now()
        # A filter made before the delete lets no deleted row through.
        assert not np.isin(index.search(queries(), 3, within=ready).ids, near).any()
        aggtree.compact(path, workers=0)
        assert index.refresh()
        same_as_opened_now()
        aggtree.build(tmp_path / "second.npy", path, metric="ip", replace=True, workers=0, **SMALL)
        assert index.refresh() and index.metric == "ip" and len(index) == ROWS - FIRST
        same_as_opened_now()


def test_looking_for_nothing_new_reads_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with aggtree.open(place / "rows") as index:
        monkeypatch.setattr(reader, "read_manifest", lambda path: pytest.fail("read"))
        assert not index.refresh()


def test_a_manifest_written_again_is_no_change(place: Path, tmp_path: Path) -> None:
    aggtree.build(place / "base.npy", tmp_path / "i", workers=0, **SMALL)
    with aggtree.open(tmp_path / "i") as index:
        manifest = tmp_path / "i" / "manifest.json"
        (tmp_path / "copy").write_bytes(manifest.read_bytes())
        (tmp_path / "copy").replace(manifest)
        before = index.searcher
        assert not index.refresh() and index.searcher is before
        manifest.unlink()
        with pytest.raises(IndexFormatError, match="no index here"):
            index.refresh()
        assert index.search(queries(), 3).ids.shape == (9, 3)


def test_searches_under_way_see_one_state(tmp_path: Path) -> None:
    path, base, ids = tmp_path / "i", vectors(), make_ids()
    np.save(tmp_path / "all.npy", base)
    aggtree.build(base[:FIRST], path, ids=ids[:FIRST], workers=0, **SMALL)
    stop, found = threading.Event(), []
    states: list[np.ndarray] = []

    def remember_state() -> None:
        with aggtree.open(path) as now:
            states.append(now.search(queries(), 10).ids)

    def ask() -> None:
        while not stop.is_set():
            found.append(index.search(queries(), 10).ids)

    remember_state()
    with aggtree.open(path) as index:
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for change in (
                lambda: aggtree.delete(path, states[0][:, :3].ravel()),
                lambda: aggtree.append(path, base[FIRST:], ids=ids[FIRST:], workers=0),
                lambda: aggtree.compact(path, workers=0),
            ):
                change()
                remember_state()
                assert index.refresh()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        np.testing.assert_array_equal(index.search(queries(), 10).ids, states[-1])
    assert found and all(any(np.array_equal(one, state) for state in states) for one in found)


@pytest.mark.parametrize("options", [{}, {"rerank": 30}, {"within": range(2**62)}, {"radius": 1e4}])
def test_closing_while_a_search_is_under_way(
    place: Path, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearest, "SCAN_ROWS", 0)  # what is allowed is searched for in the tree
    index = aggtree.open(place / "own")
    expected = index.search(queries(), 5, EVERYTHING, **options)
    search = Searcher.search_with_counts

    def close_and_search(*arguments: object) -> object:
        index.close()
        return search(*arguments)

    monkeypatch.setattr(Searcher, "search_with_counts", close_and_search)
    np.testing.assert_array_equal(index.search(queries(), 5, EVERYTHING, **options).ids, expected.ids)
    with pytest.raises(ValueError, match="the index is closed"):
        index.search(queries(), 5)


def test_closing_gives_the_files_back(place: Path) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    with aggtree.open(place / "own") as index:
        index.search(queries(), 5, rerank=10)
        index.range_search(queries(), 9.0, rerank=True)
        assert open_files() > before
    assert open_files() == before


def test_another_process_opens_the_same_index(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggtree.build(place / "base.npy", tmp_path / "i", workers=0, **SMALL)
    np.save(tmp_path / "moved.npy", vectors())
    monkeypatch.chdir(tmp_path)
    named = {"named": "moved.npy", "list": ["moved.npy"], "nothing": None, "array": vectors()}
    opened = {name: aggtree.open("i", vectors=given) for name, given in named.items()}
    monkeypatch.chdir("/")
    for name, index in opened.items():
        assert index.path == tmp_path / "i"
        with index, pickle.loads(pickle.dumps(index)) as other:
            assert other.path == index.path and len(other) == ROWS
            expected = index.search(queries(), 5, rerank=50)
            np.testing.assert_array_equal(other.search(queries(), 5, rerank=50).ids, expected.ids)
            where = str(tmp_path / "moved.npy") if name in ("named", "list") else str(place / "base.npy")
            assert other.raw_vectors.source.spec == where
    aggtree.build(vectors(), tmp_path / "array", workers=0, **SMALL)
    with aggtree.open(tmp_path / "array", vectors=vectors()) as index:
        other = pickle.loads(pickle.dumps(index))
    with pytest.raises(SourceError, match="pass their location"):
        other.search(queries(), 5, rerank=50)


def test_notebooks_show_a_table(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "<b>&.index"
    aggtree.build(place / "base.npy", path, workers=0, **SMALL)
    aggtree.delete(path, [1, 2, 3])
    with aggtree.open(path) as index:
        pass
    shown = index._repr_html_()
    assert "<b>" not in shown and "&lt;b&gt;&amp;.index" in shown
    for fact in ("3,097", "l2", "16+16+16", "bytes per vector", "segments", "deleted rows</th><td>3<"):
        assert fact in shown
