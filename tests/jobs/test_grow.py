"""An index that grows and shrinks answers as one built of what is there; compacted, it has the same bytes."""

import json
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
from click.testing import CliRunner
from helpers.places import program
from helpers.sizes import JIT, sized
from helpers.small_builds import ROWS, SMALL, contents, vectors
from hypothesis import given
from hypothesis import strategies as st

import aggtree
from aggtree.engine.search import nearest
from aggtree.engine.search.filters import Filter
from aggtree.engine.search.segment_kernels import merge_answers
from aggtree.jobs import tune as tune_job
from aggtree.jobs.append import DRIFTED
from aggtree.jobs.build import continue_build
from aggtree.jobs.cli.main import cli
from aggtree.jobs.running.job_run import RunOptions
from aggtree.jobs.stages import commit as segments
from aggtree.jobs.stages import drift
from aggtree.storage.errors import (
    AggtreeError,
    BuildLockedError,
    BuildMismatchError,
    IndexFormatError,
    SourceError,
)
from aggtree.storage.index.format import MANIFEST, TRANSFORMED_VERSION, TREE
from aggtree.storage.index.manifest import read_manifest
from aggtree.storage.row_bits import deleted_rows, extended, read_bits, unpacked
from aggtree.storage.sealed_json import read_sealed, write_sealed
from aggtree.storage.verify.index import verify_index
from aggtree.storage.work import job_record
from aggtree.storage.work.lock import BuildLock

EVERYTHING = aggtree.SearchParams.unlimited()
CUTS = (0, 1203, 2001, ROWS)
# Exact norms: quantized ones differ a little between trees in which a vector hangs elsewhere.
EXACT = SMALL | {"norm_bytes": 4}
# Words of few training rows give more equal codes, between which rounding decides.
CANDIDATES, AGREE = sized(200, 400), 0.8 if JIT else 0.6
OPTIONS: dict[str, Any] = {name: value for name, value in EXACT.items() if name != "words"}


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 7), st.integers(1, 9), st.integers(0, 9))
def test_merging_equals_its_twin(segments: int, queries: int, lists: int, wanted: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    distances = np.sort(random.integers(0, 4, (segments, queries, lists)).astype(np.float32), axis=2)
    ids = np.sort(random.permutation(segments * queries * lists).reshape(segments, queries, lists), axis=2)
    # Lists of any length: the rest is no answer.
    ids[np.arange(lists) >= random.integers(0, lists + 1, (segments, queries, 1))] = -1
    order = np.lexsort((np.where(ids < 0, 10**9, ids), np.where(ids < 0, 9, distances)), axis=2)
    ids, distances = (np.take_along_axis(array, order, axis=2) for array in (ids, distances))
    out = np.empty((queries, wanted), np.int64), np.empty((queries, wanted), np.float32)
    merge_answers(ids, distances, np.empty(segments, np.int64), *out)
    for expected, found, near in zip(naive.merge_answers(ids, distances, wanted), *out, strict=True):
        assert found.tolist() == [number for _, number in expected] + [-1] * (wanted - len(expected))
        assert near[: len(expected)].tolist() == [distance for distance, _ in expected]


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 9))
def test_bits_of_rows(rows: int, more: int, seed: int) -> None:
    mask = np.random.default_rng(seed).random(rows) < 0.5
    longer = extended(np.packbits(mask, bitorder="little"), rows, more)
    assert unpacked(longer, 0, rows + more).tolist() == [*mask.tolist(), *[True] * more]
    assert deleted_rows(longer, rows + more) == rows - mask.sum()
    for start in range(0, rows + more, 7):
        expected = [*mask.tolist(), *[True] * more][start:]
        assert unpacked(longer, start, rows + more).tolist() == expected


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors in three files and in one; an index grown from the three, and one built from all at once."""
    place = tmp_path_factory.mktemp("grow")
    base = vectors()
    np.save(place / "all.npy", base)
    np.save(place / "ids.npy", own_numbers(np.arange(ROWS)))
    for number, (start, stop) in enumerate(pairwise(CUTS)):
        np.save(place / f"{number}.npy", base[start:stop])
        np.save(place / f"ids{number}.npy", own_numbers(np.arange(start, stop)))
    grow(place, place / "grown")
    aggtree.build(place / "all.npy", place / "whole", dictionaries=place / "grown", workers=0, **OPTIONS)
    return place


def near_rows() -> np.ndarray:
    """Queries that lie near some rows of all segments."""
    random = np.random.default_rng(5)
    return (vectors()[3::160] + random.integers(-3, 4, (20, 12))).clip(0, 255).astype(np.uint8)


def own_numbers(rows: np.ndarray) -> np.ndarray:
    """Own ids in no order."""
    return (rows * 7919) % 100_003 - 50_000


def grow(place: Path, index: Path, *, ids: bool = False, segments: int = 3, **more: Any) -> None:
    """Build the first segment, and append the others."""
    names = [{"ids": place / f"ids{number}.npy"} if ids else {} for number in range(3)]
    aggtree.build(place / "0.npy", index, workers=0, **names[0], **EXACT | more)
    for number in range(1, segments):
        added = aggtree.append(index, place / f"{number}.npy", workers=0, **names[number])
        assert (added.first_row, added.rows) == (CUTS[number], CUTS[number + 1] - CUTS[number])


def same(found: Any, expected: Any, *, to_the_bit: bool = False) -> None:
    """Answers of the same vectors; of equal ones, rounding may put another first."""
    np.testing.assert_allclose(found.distances, expected.distances, rtol=1e-4, atol=0.1)
    if to_the_bit:
        np.testing.assert_array_equal(found.ids, expected.ids)
    assert (found.ids == expected.ids).mean() > AGREE


def build_files(index: Path) -> dict[str, bytes]:
    """The files of the one build of an index."""
    (build,) = index.glob("build-*")
    return {str(path.relative_to(build)): path.read_bytes() for path in build.rglob("*") if path.is_file()}


WAYS: list[dict[str, Any]] = [
    {},
    {"threads": 2},
    {"rerank": 60},
    {"within": range(500, 2500)},
    {"within": range(1100, 1300), "rerank": 30},
    {"radius": 90.0},
]


@pytest.mark.parametrize("asked", WAYS, ids=lambda asked: "-".join(asked) or "plain")
def test_segments_answer_as_one_tree(place: Path, asked: dict[str, Any]) -> None:
    queries = near_rows()
    with aggtree.open(place / "grown") as grown, aggtree.open(place / "whole") as whole:
        assert len(grown) == len(whole) == ROWS
        for block in (queries, queries[0]):
            answer, counts = grown.search_with_counts(block, 10, EVERYTHING, **({"rerank": 0} | asked))
            expected = whole.search(block, 10, EVERYTHING, **({"rerank": 0} | asked))
            same(answer, expected, to_the_bit="rerank" in asked)
            assert len(counts.leaves) == len(answer.ids)
        default = grown.search(queries, 10, **asked), whole.search(queries, 10, **asked)
        assert (default[0].ids == default[1].ids).mean() > AGREE


def test_range_search_looks_into_all_segments(place: Path) -> None:
    queries = near_rows()
    with aggtree.open(place / "grown") as grown, aggtree.open(place / "whole") as whole:
        for options in ({}, {"rerank": True}, {"within": range(900, 2100)}):
            found = grown.range_search(queries, 80.0, EVERYTHING, **options)
            expected = whole.range_search(queries, 80.0, EVERYTHING, **options)
            assert len(found.ids) > 0
            np.testing.assert_array_equal(found.starts, expected.starts)
            same(found, expected)


def test_an_index_of_segments_is_whole(place: Path) -> None:
    assert verify_index(place / "grown", deep=True) == []
    manifest = read_manifest(place / "grown")
    assert [segment.first_row for segment in manifest.segments] == list(CUTS[:-1])
    assert manifest.version == read_manifest(place / "whole").version == TRANSFORMED_VERSION
    with aggtree.open(place / "grown") as grown:
        with pytest.raises(ValueError, match="has 3 trees"):
            _ = grown.tree
        assert grown.bytes_by_part()["tree/ids"] == 4 * ROWS


@pytest.fixture
def grown(place: Path, tmp_path: Path) -> Path:
    """A grown index that a test may change; its vectors are where they were."""
    return Path(shutil.copytree(place / "grown", tmp_path / "index"))


def test_deleted_rows_are_never_found_and_cost_no_answers(
    place: Path, grown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearest, "SCAN_ROWS", 0)  # what is allowed is searched for in the tree
    queries = near_rows()
    gone = np.random.default_rng(1).permutation(ROWS)[:1000]
    with aggtree.open(grown) as before:
        assert aggtree.delete(grown, gone[:600]).rows == ROWS - 600
        result = aggtree.delete(grown, gone[300:])
        assert (result.deleted, result.missing, result.rows) == (400, 300, ROWS - 1000)
        assert len(before) == ROWS and np.isin(gone, before.search(queries, ROWS, EVERYTHING).ids).all()
    allowed = np.ones(ROWS, np.bool_)
    allowed[gone] = False
    some = np.arange(ROWS) % 3 == 0
    with aggtree.open(grown) as index, aggtree.open(place / "whole") as whole:
        assert len(index) == ROWS - 1000
        for asked in WAYS[:3]:
            found = index.search(queries, 10, EVERYTHING, **({"rerank": 0} | asked))
            expected = whole.search(queries, 10, EVERYTHING, **({"rerank": 0, "within": allowed} | asked))
            same(found, expected, to_the_bit="rerank" in asked)
        ready = index.filter(some)
        for within in (some, ready, np.flatnonzero(some), Filter.of_mask(some)):
            found = index.search(queries, 10, EVERYTHING, rerank=ROWS, within=within)
            expected = whole.search(queries, 10, EVERYTHING, rerank=ROWS, within=some & allowed)
            np.testing.assert_array_equal(found.ids, expected.ids)
        assert index.filter(ready) is ready
        assert not np.isin(index.range_search(queries, 150.0, EVERYTHING).ids, gone).any()
        assert (index.search(queries, 10).ids >= 0).all()
    assert verify_index(grown) == []


def test_queries_among_deleted_rows_look_further(grown: Path) -> None:
    base = vectors()
    apart = ((base.astype(np.int64) - base[100]) ** 2).sum(axis=1)
    near = np.sort(np.argsort(apart, kind="stable")[:400])
    aggtree.delete(grown, near)
    narrow = aggtree.SearchParams(limits=(1, 1))
    with aggtree.open(grown) as index:
        found, counts = index.search_with_counts(base[100], 10, narrow, rerank=0)
        assert (found.ids >= 0).all() and not np.isin(found.ids, near).any()
        assert (np.diff(found.distances) >= 0).all() and counts.leaves[0] > 0
        few = index.search(base[100], ROWS, narrow, rerank=0)
    assert (few.ids >= 0).sum() == ROWS - 400


def test_damage_is_not_carried_on(place: Path, grown: Path, tmp_path: Path) -> None:
    aggtree.delete(grown, [3, 4, 5])
    shutil.copytree(grown, tmp_path / "compacted")
    aggtree.compact(tmp_path / "compacted", workers=0)
    (live,) = grown.glob("live-*")
    content = bytearray(live.read_bytes())
    content[9] ^= 4
    live.write_bytes(content)
    for command in (
        lambda: aggtree.delete(grown, [7]),
        lambda: aggtree.append(grown, place / "0.npy", workers=0),
        lambda: aggtree.compact(grown, workers=0),
    ):
        with pytest.raises(AggtreeError, match="live-"):
            command()
    # What was compacted is in no source: it is not made again from one.
    (labels,) = (tmp_path / "compacted").glob("build-*/tree/labels")
    labels.write_bytes(bytes(len(labels.read_bytes())))
    with pytest.raises(AggtreeError, match="compacted"):
        continue_build(tmp_path / "compacted", "commit", RunOptions(workers=0))


def test_repairing_what_is_not_there(place: Path, grown: Path) -> None:
    aggtree.compact(grown, workers=0)
    with pytest.raises(BuildMismatchError, match="no segment"):
        aggtree.append(grown, place / "2.npy", workers=0, repair=True)


def test_either_of_two_segments_of_one_source_is_repaired(place: Path, grown: Path) -> None:
    assert aggtree.append(grown, place / "1.npy", workers=0).first_row == ROWS
    first, _, last = read_manifest(grown).appended_segments
    for segment in (first, last):
        file = grown / segment.directory / TREE / "records"
        whole = file.read_bytes()
        file.write_bytes(bytes(len(whole)))
        assert verify_index(grown)
        aggtree.append(grown, place / "1.npy", workers=0, repair=True)
        assert file.read_bytes() == whole and verify_index(grown) == []


def test_compacting_gives_the_bytes_of_one_build(place: Path, grown: Path) -> None:
    queries = near_rows()
    with aggtree.open(grown) as before:
        expected = before.search(queries, 10, EVERYTHING, rerank=CANDIDATES)
        result = aggtree.compact(grown, workers=0)
        assert result.rows == ROWS
        np.testing.assert_array_equal(
            before.search(queries, 10, EVERYTHING, rerank=CANDIDATES).ids, expected.ids
        )
    assert build_files(grown) == build_files(place / "whole")
    assert sorted(path.name.partition("-")[0] for path in grown.iterdir()) == [
        "build",
        "manifest.json",
        "report.json",
    ]
    with aggtree.open(grown) as index:
        found = index.search(queries, 10, EVERYTHING, rerank=CANDIDATES)
        np.testing.assert_array_equal(found.ids, expected.ids)
    assert aggtree.compact(grown, workers=0).already_built
    assert verify_index(grown, deep=True) == []


def test_compacting_drops_deleted_rows_and_keeps_ids(place: Path, grown: Path) -> None:
    queries = near_rows()
    gone = np.array([*range(700, 1400), 5, ROWS - 1])
    aggtree.delete(grown, gone)
    with aggtree.open(grown) as index:
        expected = index.search(queries, 10, EVERYTHING, rerank=CANDIDATES)
    assert aggtree.compact(grown, workers=0).rows == ROWS - len(gone)
    assert verify_index(grown, deep=True) == []
    with aggtree.open(grown) as index:
        found = index.search(queries, 10, EVERYTHING, rerank=CANDIDATES)
        np.testing.assert_array_equal(found.ids, expected.ids)
        assert np.array_equal(np.sort(index.tree.ids), np.setdiff1d(np.arange(ROWS), gone))
    # As a build that skips these rows.
    floats = vectors().astype(np.float32)
    floats[gone] = np.nan
    np.save(grown.parent / "holes.npy", floats)
    options = OPTIONS | {"skip_invalid": True, "workers": 0, "dictionaries": place / "grown"}
    aggtree.build(grown.parent / "holes.npy", grown.parent / "holes", **options)
    assert build_files(grown) == build_files(grown.parent / "holes")
    # What is gone is gone; what comes gets new numbers.
    assert aggtree.delete(grown, range(700, 710)).missing == 10
    added = aggtree.append(grown, vectors(100, seed=9), workers=0)
    assert added.first_row == ROWS
    with aggtree.open(grown) as index:
        assert len(index) == ROWS - len(gone) + 100
        nearest = index.search(vectors(100, seed=9)[:5], 5, EVERYTHING, rerank=0).ids
        assert (nearest >= ROWS).any() and not np.isin(nearest, gone).any()


def test_own_ids_in_all_segments(place: Path, tmp_path: Path) -> None:
    index = tmp_path / "own"
    grow(place, index, ids=True, segments=2)
    with pytest.raises(BuildMismatchError, match="name those of the new rows by `ids`"):
        aggtree.append(index, place / "2.npy", workers=0)
    taken = np.load(place / "ids2.npy")
    taken[3] = own_numbers(np.array(7))
    with pytest.raises(SourceError, match=f"id {taken[3]} is in the index already"):
        aggtree.append(index, place / "2.npy", ids=taken, workers=0)
    # The id of a deleted vector may be used again.
    assert aggtree.delete(index, [int(taken[3])]).deleted == 1
    aggtree.append(index, place / "2.npy", ids=taken, workers=0, replace=True)
    with pytest.raises(ValueError, match="id 1000000000 is not in the index"):
        aggtree.delete(index, [10**9])
    for _ in range(2):
        with aggtree.open(index) as opened:
            base = vectors()[[7, 2004, 2500]]
            found = opened.search(base, 3, EVERYTHING, rerank=100, within=[int(taken[3]), int(taken[499])])
            assert set(found.ids[:, :2].ravel().tolist()) == {taken[3], taken[499]}
            assert len(opened) == ROWS - 1
            everything = opened.search(base[0], ROWS, EVERYTHING, rerank=0).ids[0]
            expected = np.concatenate([own_numbers(np.arange(CUTS[2])), taken])
            assert set(everything[:-1].tolist()) == set(np.delete(expected, 7).tolist())
        aggtree.compact(index, workers=0)
        assert verify_index(index, deep=True) == []


@pytest.mark.parametrize("metric", [pytest.param("ip", marks=pytest.mark.slow), "cosine"])
def test_metrics_in_all_segments(place: Path, tmp_path: Path, metric: str) -> None:
    norms = {"metric": metric, "norm_bytes": 2}
    grow(place, tmp_path / "grown", **norms)
    options = OPTIONS | norms | {"dictionaries": tmp_path / "grown", "workers": 0}
    aggtree.build(place / "all.npy", tmp_path / "whole", **options)
    queries = vectors(9, seed=5) + 0.5
    with aggtree.open(tmp_path / "grown") as grown, aggtree.open(tmp_path / "whole") as whole:
        for asked in ({}, {"rerank": 50}, {"within": range(900, 1500)}):
            found, expected = (
                index.search(queries, 10, EVERYTHING, **({"rerank": 0} | asked)) for index in (grown, whole)
            )
            np.testing.assert_allclose(found.distances, expected.distances, rtol=1e-3, atol=1e-4)
            assert (found.ids == expected.ids).mean() > AGREE
    aggtree.compact(tmp_path / "grown", workers=0)
    assert build_files(tmp_path / "grown") == build_files(tmp_path / "whole")


def test_the_same_append_is_made_once(place: Path, grown: Path) -> None:
    again = aggtree.append(grown, place / "2.npy", workers=0)
    assert again.already_built and again.first_row == CUTS[2] and len(read_manifest(grown).segments) == 3
    aggtree.delete(grown, [ROWS - 1])
    assert aggtree.append(grown, place / "2.npy", workers=0).first_row == ROWS
    assert len(read_manifest(grown).segments) == 4
    with aggtree.open(grown) as index:
        assert not np.isin(ROWS - 1, index.search(vectors()[ROWS - 1], 200, EVERYTHING).ids)


def test_killed_at_random_operations(place: Path, tmp_path: Path) -> None:
    """Append, delete and compact leave the index whole, and end with the bytes of commands never killed."""
    for name, kills in (("index", 3), ("reference", 0)):
        command = program("reliability.programs.killed_growth", place, tmp_path / name, 4, kills)
        subprocess.run(command, check=True)
    assert contents(tmp_path / "index") == contents(tmp_path / "reference")


def test_what_does_not_fit_is_refused(place: Path, grown: Path) -> None:
    def refused(kind: type[Exception], message: str, **changes: Any) -> None:
        options = {"source": place / "1.npy", "workers": 0} | changes
        with pytest.raises(kind, match=message):
            aggtree.append(grown, options.pop("source"), **options)

    refused(BuildMismatchError, "vectors of dimension 5", source=np.zeros((20, 5), np.uint8))
    refused(BuildMismatchError, "its ids are row numbers", ids=place / "ids1.npy")
    refused(TypeError, "unexpected keyword 'beam'", beam=3)
    with pytest.raises(AggtreeError, match="no index here"):
        aggtree.append(grown / "nothing", place / "1.npy")
    with pytest.raises(AggtreeError, match="no index here"):
        aggtree.delete(grown / "nothing", [1])
    with pytest.raises(ValueError, match="row 3100 is not in the index"):
        aggtree.delete(grown, [ROWS])
    (grown.parent / "ids.txt").write_text("1\n2\nthree\n")
    with pytest.raises(SourceError, match="'three' is no id"):
        aggtree.delete(grown, grown.parent / "ids.txt")
    with BuildLock(grown), pytest.raises(BuildLockedError):
        aggtree.delete(grown, [1])
    aggtree.delete(grown, range(ROWS))
    with aggtree.open(grown) as index:
        assert len(index) == 0 and (index.search(vectors(2), 5).ids == -1).all()
    with pytest.raises(BuildMismatchError, match="every row is deleted"):
        aggtree.compact(grown, workers=0)


def test_moved_vectors_are_named_in_order(place: Path, grown: Path, tmp_path: Path) -> None:
    names = [place / f"{number}.npy" for number in range(3)]
    queries = vectors(5, seed=5)
    for vectors_at in (place / "all.npy", names, "joined:" + ",".join(map(str, names)), vectors()):
        with aggtree.open(grown, vectors=vectors_at) as index:
            ids = index.search(queries, 5, EVERYTHING, rerank=ROWS).ids
            np.testing.assert_array_equal(ids, exact(queries, 5))
    for wrong in (names[::-1], place / "0.npy"):
        with pytest.raises(SourceError, match=r"not the vectors|expected the 3,100"):
            aggtree.open(grown, vectors=wrong)


def exact(queries: np.ndarray, k: int) -> np.ndarray:
    return np.array([[place for _, place in row] for row in naive.merge_rows(queries, vectors(), k)])


def test_drift_is_told_and_training_goes_on(
    place: Path, grown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *_ = read_manifest(grown).segments
    assert first.distortion is not None and second.distortion is not None
    assert 0.5 < second.distortion / first.distortion < DRIFTED
    other = 255 - vectors(1000, seed=77)
    np.save(grown.parent / "other.npy", other)
    arguments = ["append", str(grown), str(grown.parent / "other.npy"), "--workers", "0"]
    answer = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert "the dictionaries do not fit these vectors" in answer.output
    assert f"--dictionaries {grown} --continue" in answer.output
    source = f"joined:{place / 'all.npy'},{grown.parent / 'other.npy'}"
    options = OPTIONS | {"batch_rows": 4100, "train_rows": 4100, "dictionaries": grown, "workers": 0}
    result = aggtree.build(source, grown.parent / "new", continue_training=True, **options)
    assert result.rows == ROWS + 1000
    with aggtree.open(grown) as old, aggtree.open(grown.parent / "new") as new:
        assert not np.array_equal(old.dictionaries.words, new.dictionaries.words)
        rows, found = new.searcher.sampled_vectors(ROWS + 1000)
        new_error = ((new.raw_vectors.take(rows) - found) ** 2)[rows >= ROWS].sum(axis=1).mean()
    assert new_error < read_manifest(grown).segments[-1].distortion
    # Without the report, a sample of the vectors gives about the same.
    monkeypatch.setattr(drift, "read_report", lambda *_: None)
    measured = drift.training_error(place / "whole", read_manifest(place / "whole"))
    assert measured is not None and 0.5 < measured / first.distortion < 1.5


def test_dictionaries_of_another_kind_are_refused(place: Path, tmp_path: Path) -> None:
    for message, options in {
        "leave them out": {"words": 16},
        "are for l2": {"metric": "cosine"},
        "names no index to continue from": {"dictionaries": 3, "continue_training": True},
    }.items():
        with pytest.raises(ValueError, match=message):
            aggtree.build(place / "1.npy", tmp_path / "i", **{"dictionaries": place / "whole"} | options)
    with pytest.raises(ValueError, match="of dimension 5"):
        aggtree.build(np.zeros((9, 5), np.uint8), tmp_path / "i", dictionaries=place / "whole")


def test_the_command_line(place: Path, grown: Path) -> None:
    def run(*arguments: object) -> str:
        answer = CliRunner().invoke(cli, [*map(str, arguments)], catch_exceptions=False)
        assert answer.exit_code == 0, answer.output
        return answer.output

    (grown.parent / "gone.txt").write_text("1\n2\n3\n")
    assert "3 deleted, 3,097 remain" in run("delete", grown, grown.parent / "gone.txt")
    assert "7 deleted, 3 not in the index" in run("delete", grown, "0:10")
    told = run("info", grown)
    assert "10 rows were deleted" in told and "1,203" in told and "mean squared error" in told
    facts = json.loads(run("info", grown, "--json"))
    assert (
        facts["live_rows"] == ROWS - 10
        and len(facts["segments"]) == 2
        and "files" not in facts["segments"][0]
    )
    assert "already contains these vectors, rows 2,001 to 3,099" in run(
        "append", grown, place / "2.npy", "--workers", 0
    )
    assert "one tree of 3,090 rows" in run("compact", grown, "--workers", 0)
    assert "already one tree without deleted rows" in run("compact", grown, "--workers", 0)
    assert "no damage found" in run("verify", grown)
    assert "3,090 rows" in run("info", grown)


def test_tuning_belongs_to_the_trees(place: Path, grown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TIMED_QUERIES": 3, "TURNS": 1, "BELOW": (0.01, 1.0)}.items():
        monkeypatch.setattr(tune_job, name, value)
    aggtree.delete(grown, range(40, 90))
    arguments = ["tune", str(grown), "--sample", str(sized(60, 12)), "-k", "5", "--json"]
    answer = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    points = json.loads(answer.output.splitlines()[-1])["points"]
    assert points[-1]["recall"] > 0.97
    with aggtree.open(grown) as index:
        assert index.search(vectors(3, seed=5), 5, recall=0.9).ids.shape == (3, 5)
    aggtree.delete(grown, range(90, 95))
    with aggtree.open(grown) as index:
        assert index.search(vectors(3, seed=5), 5, recall=0.9).ids.shape == (3, 5)
    aggtree.compact(grown, workers=0)
    with aggtree.open(grown) as index, pytest.raises(ValueError, match="was not tuned"):
        index.search(vectors(3, seed=5), 5, recall=0.9)


def test_unfinished_work_is_kept_from_other_commands(
    place: Path, grown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(segments, "write_live", lambda *_: pytest.fail("stop here"))
        aggtree.delete(grown, [5])
        with pytest.raises(pytest.fail.Exception, match="stop here"):
            aggtree.append(grown, vectors(90, seed=8), workers=0)
    with pytest.raises(BuildMismatchError, match="unfinished"):
        aggtree.compact(grown, workers=0)
    # Deleting and a repeated build leave the work alone; the same command goes on.
    aggtree.delete(grown, [6])
    assert aggtree.build(place / "0.npy", grown, workers=0, **EXACT).already_built
    (work,) = grown.glob("work-*")
    assert job_record.unfinished_jobs(grown)[0].task == "append" and list(work.glob("partitions/*"))
    assert aggtree.append(grown, vectors(90, seed=8), workers=0).first_row == ROWS
    with aggtree.open(grown) as index:
        assert len(index) == ROWS + 88
    live = read_manifest(grown).live
    assert live is not None and live.deleted == 2
    assert [path.name for path in grown.glob("live-*")] == [live.file.path]
    assert not read_bits(grown / live.file.path, 5, 7).any()


def test_parameters_of_no_build_are_refused(place: Path, grown: Path) -> None:
    record = read_sealed(grown / MANIFEST)
    for change in ({"beam": "ten"}, {"words": 3}, {"stray": 0}, {"cooling": "none"}):
        write_sealed(grown / MANIFEST, record | {"parameters": record["parameters"] | change})
        for grow_on in (
            lambda: aggtree.append(grown, place / "1.npy", workers=0),
            lambda: aggtree.compact(grown, workers=0),
        ):
            with pytest.raises(IndexFormatError, match="parameters of no build"):
                grow_on()
    write_sealed(grown / MANIFEST, record | {"source": record["source"] | {"dtype": "none"}})
    with pytest.raises(IndexFormatError, match="vectors of type 'none'"):
        aggtree.compact(grown, workers=0)
