"""Re-ranked answers are the exact order of the candidates, whatever source the vectors are read from."""

from pathlib import Path

import naive
import numpy as np
import pytest
from helpers.flat_vectors import flat
from helpers.small_builds import DIMENSION, ROWS, SMALL, vectors
from hypothesis import given, settings
from hypothesis import strategies as st

import aggtree
from aggtree.engine.exact.neighbours_kernels import touch_rows
from aggtree.engine.params import SearchParams
from aggtree.engine.search.rerank import Reranker
from aggtree.storage.errors import SourceError
from aggtree.storage.index.opened import memory_maps, raw_vectors
from aggtree.storage.sources.base import open_source
from aggtree.storage.sources.formats.vecs import write_vecs

EVERYTHING = SearchParams.unlimited()


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([np.uint8, np.int8, np.float32, np.float16]),
    st.sampled_from([np.uint8, np.float32, np.float64, np.int32]),
    st.integers(1, 40),
    st.sampled_from([1, 7, 16, 130]),
    st.sampled_from([1, 4, 60]),
    st.integers(1, 3),
)
def test_ranking_equals_its_twin(
    stored: type, asked: type, rows: int, dimension: int, k: int, threads: int
) -> None:
    random = np.random.default_rng(rows)
    base = random.integers(0, 4, (rows, dimension)).astype(stored)
    queries = random.integers(0, 4, (5, dimension)).astype(asked)
    if rows % 2 and np.dtype(asked).kind == "f":
        queries += 0.25
    candidates = np.stack([random.permutation(rows + 3) for _ in range(5)]) - 1
    answer = Reranker().rank(queries, flat(base), candidates, k, threads=threads)
    for i, expected in enumerate(naive.rank_candidates(queries, base, candidates, k)):
        pad = k - len(expected)
        assert answer.ids[i].tolist() == [number for _, number in expected] + [-1] * pad
        assert answer.distances[i].tolist() == [distance for distance, _ in expected] + [np.inf] * pad


def test_bytes_are_exact_where_float32_is_not() -> None:
    base = np.zeros((3, 60_000), np.uint8)
    base[:2] = 255
    base[1, 0] = 254
    answer = Reranker().rank(np.zeros(60_000, np.uint8), flat(base), np.array([[0, 1, 2]]), 3)
    assert answer.ids.tolist() == [[2, 1, 0]]


def test_touching_reads_every_page() -> None:
    base = vectors(9, 50)
    rows = np.array([-1, 0, 3, 8, 9])
    assert touch_rows(flat(base), rows, 16) == naive.touch_rows(base, rows, 16)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rerank")
    (place / "base.bvecs").write_bytes(write_vecs(vectors(), "bvecs"))
    aggtree.build(place / "base.bvecs", place / "index", workers=0, **SMALL)
    return place


def exact(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    answers = naive.merge_rows(queries, vectors(), k)
    both = np.array(answers)
    return both[:, :, 1].astype(np.int64), both[:, :, 0]


def test_all_candidates_give_the_exact_answer(place: Path) -> None:
    queries = vectors(20, seed=1)
    ids, distances = exact(queries, 10)
    with aggtree.open(place / "index") as index:
        for threads in (1, 3):
            answer = index.search(queries, 10, EVERYTHING, threads, rerank=ROWS)
            np.testing.assert_array_equal(answer.ids, ids)
            np.testing.assert_array_equal(answer.distances, distances)
        # The exact best of 50 candidates are those of all candidates that were among the 50.
        candidates = index.search(queries, 50, index.params, rerank=0).ids
        few = index.search(queries, 10, rerank=50)
        one = index.search(queries[7], 10, rerank=50)
    expected = naive.rank_candidates(queries, vectors(), candidates, 10)
    assert few.ids.tolist() == [[number for _, number in row] for row in expected]
    assert one.ids.tolist() == [few.ids[7].tolist()]


def save(rows: np.ndarray, path: Path) -> object:
    """Write rows in the format of the name, and name them."""
    match path.suffix:
        case ".npy":
            np.save(path, np.asfortranarray(rows) if "fortran" in path.name else rows)
        case ".u8bin":
            path.write_bytes(np.array(rows.shape, "<u4").tobytes() + rows.tobytes())
        case ".zarr":
            import zarr

            zarr.create_array(str(path), data=rows, chunks=(500, rows.shape[1]))
        case ".parquet":
            import pyarrow as pa
            import pyarrow.parquet

            column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
            pa.parquet.write_table(pa.table({"v": column}), path, row_group_size=700)
        case ".array":
            return rows
        case "":
            path.mkdir()
            np.save(path / "1.npy", rows[:1000])
            np.save(path / "2.npy", rows[1000:])
    return path


@pytest.mark.parametrize(
    "name", ["a.npy", "fortran.npy", "a.u8bin", "a.zarr", "a.parquet", "a.array", "directory"]
)
def test_vectors_that_moved_into_any_format(
    name: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = save(vectors(), tmp_path / name)
    queries = vectors(20, seed=1)
    ids, distances = exact(queries, 10)
    # Several blocks of queries, and for mapped files the way of those larger than memory.
    monkeypatch.setattr(raw_vectors, "GATHER_BYTES", 3 * ROWS * DIMENSION)
    monkeypatch.setattr(memory_maps, "physical_memory", lambda: 1)
    with aggtree.open(place / "index", vectors=moved) as index:
        answer = index.search(queries, 10, EVERYTHING, 2, rerank=ROWS)
    np.testing.assert_array_equal(answer.ids, ids)
    np.testing.assert_array_equal(answer.distances, distances)


def test_floats_are_compared_exactly(tmp_path: Path) -> None:
    base, queries = vectors().astype(np.float32) / 7, vectors(9, seed=1).astype(np.float32) / 7
    (tmp_path / "base.fvecs").write_bytes(write_vecs(base, "fvecs"))
    aggtree.build(tmp_path / "base.fvecs", tmp_path / "index", workers=0, **SMALL)
    with aggtree.open(tmp_path / "index") as index:
        answer = index.search(queries, 10, EVERYTHING, rerank=ROWS)
    expected = naive.merge_rows(queries, base, 10)
    assert answer.ids.tolist() == [[number for _, number in row] for row in expected]
    np.testing.assert_allclose(answer.distances, [[d for d, _ in row] for row in expected], rtol=1e-6)


def test_what_is_missing_is_reported(place: Path, tmp_path: Path) -> None:
    queries = vectors(2, seed=1)
    with aggtree.open(place / "index") as index, pytest.raises(ValueError, match="rerank 5: expected k"):
        index.search(queries, 10, rerank=5)
    changed = vectors()
    changed[-1, -1] ^= 1
    with pytest.raises(SourceError, match=r"not the vectors that .* was built from .crc32c"):
        aggtree.open(place / "index", vectors=changed)
    with pytest.raises(SourceError, match="rows 3100 → 3099"):
        aggtree.open(place / "index", vectors=vectors()[:-1])
    with pytest.raises(SourceError, match="no such file"):
        aggtree.open(place / "index", vectors=tmp_path / "nothing.bvecs")
    (tmp_path / "base.bvecs").write_bytes((place / "base.bvecs").read_bytes())
    aggtree.build(tmp_path / "base.bvecs", tmp_path / "index", workers=0, **SMALL)
    (tmp_path / "base.bvecs").unlink()
    with aggtree.open(tmp_path / "index") as index:
        assert index.search(queries, 3).ids.shape == (2, 3)
        with pytest.raises(SourceError, match=r"if they moved, pass their location .*bvecs: no such file"):
            index.search(queries, 3, rerank=9)
    aggtree.build(vectors(), tmp_path / "other", workers=0, **SMALL)
    with aggtree.open(tmp_path / "other") as index, pytest.raises(SourceError, match="built from an array"):
        index.search(queries, 3, rerank=9)


def test_a_file_that_is_cut_while_it_is_open_is_refused(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "base.bvecs"
    path.write_bytes((place / "base.bvecs").read_bytes())
    with aggtree.open(place / "index", vectors=path) as index:
        index.search(vectors(2), 3, rerank=9)
        with path.open("r+b") as file:
            file.truncate(100)
        with pytest.raises(SourceError, match="became shorter"):
            index.search(vectors(2), 3, rerank=9)


def test_the_place_survives_stages_run_apart(place: Path, tmp_path: Path) -> None:
    from aggtree.jobs.build import build, continue_build
    from aggtree.jobs.running.job_run import RunOptions

    options = RunOptions(workers=0)
    build(place / "base.bvecs", tmp_path / "i", workers=0, only_train=True, **SMALL)
    moved = tmp_path / "moved.bvecs"
    moved.write_bytes((place / "base.bvecs").read_bytes())
    continue_build(tmp_path / "i", "encode", options, open_source(moved))
    continue_build(tmp_path / "i", "commit", options)
    with aggtree.open(tmp_path / "i") as index:
        assert index.manifest.first_segment.vectors == str(moved)
        assert index.search(vectors()[:2], 3, rerank=9).distances[0, 0] == 0
    (next(tmp_path.glob("i/build-*")) / "tree" / "ids").unlink()
    continue_build(tmp_path / "i", "commit", options)
    with aggtree.open(tmp_path / "i") as index:
        assert index.manifest.first_segment.vectors == str(moved)
