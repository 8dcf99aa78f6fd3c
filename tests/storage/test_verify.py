"""`verify_index` finds every changed byte, and arrays that make no sense although their checksums match."""

import errno
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import naive
import numpy as np
import pytest
from helpers.small_index import make_index, make_sample

from aggtree.engine.params import TreeParams
from aggtree.engine.search.tuned import Tuning
from aggtree.engine.tree.check_kernels import add_leaf_sums, code_sum, disordered_leaf, mark_ids
from aggtree.engine.tree.layout import build_tree, record_sizes
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index import build_report
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.index.dictionary_file import load_dictionaries, save_dictionaries
from aggtree.storage.index.file_record import FileRecord
from aggtree.storage.index.format import DICTIONARIES, MANIFEST, REPORT, TUNING
from aggtree.storage.index.manifest import IndexManifest, commit_manifest
from aggtree.storage.index.reader import open_index
from aggtree.storage.index.tuning import write_tuning
from aggtree.storage.index.writer import file_record
from aggtree.storage.sealed_json import write_sealed
from aggtree.storage.verify import deep as deep_checks
from aggtree.storage.verify import index as verify
from aggtree.storage.verify import norms as norm_checks
from aggtree.storage.verify import structure as structure_checks
from aggtree.storage.verify.index import Damage, verify_index
from bench import record as bench_record
from bench.build import verify as bench_verify

SAMPLES = {
    "wide": make_sample(),
    "narrow": make_sample(333, (7, 256, 3, 5), params=TreeParams(bucket=9, direct_leaves=2, norm_bytes=2)),
    "paper": make_sample(257, (6, 5, 4, 3, 2), params=TreeParams(bucket=1, norm_bytes=4)),
    "one level": make_sample(50, (3,)),
    "one row": make_sample(1, (300, 2)),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_whole_index_has_no_damage(tmp_path, monkeypatch, name):
    monkeypatch.setattr(structure_checks, "ROWS", 17)
    monkeypatch.setattr(structure_checks, "PARENTS", 5)
    monkeypatch.setattr(structure_checks, "NODES", 6)
    manifest = make_index(tmp_path / "i", SAMPLES[name], partitions=1)
    told = []
    assert verify_index(tmp_path / "i", lambda *now: told.append(now), workers=2) == []
    size = sum(record.bytes for record in manifest.all_files)
    assert told[-1] == (size, size)


def test_every_changed_bit_beside_the_index_is_found(tmp_path):
    manifest = make_index(tmp_path / "i")
    report = {"format": build_report.FORMAT, "version": build_report.VERSION, "build": manifest.identity}
    write_sealed(tmp_path / "i" / REPORT, report | {"stages": [], "distortions": [1.5], "rounds": 0})
    write_tuning(tmp_path / "i", Tuning(build=manifest.identity))
    assert verify_index(tmp_path / "i") == []
    for name in (REPORT, TUNING):
        data = (tmp_path / "i" / name).read_bytes()
        for place in range(0, len(data), 7):
            changed = bytearray(data)
            changed[place] ^= 1 << place % 8
            (tmp_path / "i" / name).write_bytes(changed)
            assert [damage.file for damage in verify_index(tmp_path / "i")] == [name], place
        (tmp_path / "i" / name).unlink()
    assert verify_index(tmp_path / "i") == []


def test_every_changed_bit_is_found(tmp_path):
    manifest = make_index(tmp_path / "i")
    random = np.random.default_rng(5)
    files = [MANIFEST, *(record.path for record in manifest.all_files)]
    for name in files:
        path = tmp_path / "i" / name
        data = path.read_bytes()
        for place in random.integers(0, len(data), 8):
            changed = bytearray(data)
            changed[place] ^= 1 << random.integers(0, 8)
            path.write_bytes(changed)
            assert name in {damage.file for damage in verify_index(tmp_path / "i")}, (name, place)
        path.write_bytes(data)
    assert verify_index(tmp_path / "i") == []


@pytest.mark.parametrize("change", ["shorter", "longer", "gone"])
def test_every_file_of_another_size_is_found(tmp_path, change):
    manifest = make_index(tmp_path / "i")
    for record in manifest.all_files:
        path = tmp_path / "i" / record.path
        data = path.read_bytes()
        if change == "gone":
            path.unlink()
        else:
            path.write_bytes(data[:-1] if change == "shorter" else data + b"x")
        assert record.path in {damage.file for damage in verify_index(tmp_path / "i")}
        path.write_bytes(data)


def test_damage_is_named_by_level_and_shard(tmp_path):
    manifest = make_index(tmp_path / "i")
    for name, expected in (
        ("tree/ids", "levels 1 to 3"),
        ("codes.zarr/c/1/0", "codes of rows 200 to 400 (shard 1): encode them again"),
        ("tree/first_labels", "level 1"),
        ("codes.zarr/zarr.json", "checksum does not match"),
        ("codes.zarr/c/0/0", "codes of shard 0: encode it again"),
    ):
        path = tmp_path / "i" / manifest.first_segment.file(*name.split("/")).path
        data = bytearray(path.read_bytes())
        data[0] ^= 1
        path.write_bytes(data)
        damage = [item for item in verify_index(tmp_path / "i") if item.file.endswith(name)][-1]
        assert damage.block == 0
        assert expected in damage.what
        assert str(damage).startswith(f"{damage.file}: block 0: checksum does not match")


def test_no_index_is_an_error_and_no_damage(tmp_path):
    with pytest.raises(IndexFormatError, match="no index here"):
        verify_index(tmp_path)


def test_an_index_replaced_meanwhile_is_not_damaged(tmp_path, monkeypatch):
    make_index(tmp_path / "i", name="old")
    plain = verify._check_segment

    def overtaken(index, segment, progress, workers, *, deep):
        monkeypatch.setattr(verify, "_check_segment", plain)
        make_index(index, name="new")
        return plain(index, segment, progress, workers, deep=deep)

    monkeypatch.setattr(verify, "_check_segment", overtaken)
    assert verify_index(tmp_path / "i") == []


def test_a_block_the_device_does_not_give_is_reported(tmp_path, monkeypatch):
    make_index(tmp_path / "i")

    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(verify.os, "preadv", broken)
    found = verify_index(tmp_path / "i")
    assert found
    assert all("cannot be read: Input/output error" in str(item) for item in found)


def recommitted(index: Path, manifest: IndexManifest, name: str) -> None:
    """Commit an index whose file was changed on purpose, with checksums that fit."""

    def fresh(record: FileRecord) -> FileRecord:
        now = file_record(index, record.path)
        return replace(record, bytes=now.bytes, blocks=now.blocks)

    (segment,) = manifest.segments
    changed = (fresh(record) if record.path.endswith(f"/{name}") else record for record in segment.files)
    commit_manifest(index, replace(manifest, segments=(replace(segment, files=tuple(changed)),)))


def change(element: int, value: float):
    def apply(array, manifest):
        array[element] = value

    return apply


def swap_siblings(array, manifest):
    """Exchange two children of the root's first child that has several."""
    with open_index(manifest) as index:
        first = next(
            i for i in range(1, 400) if index.tree.child_start[i + 1] - index.tree.child_start[i] > 1
        )
        child = int(index.tree.child_start[first])
    array[[child, child + 1]] = array[[child + 1, child]]


def leaves_of(index, level):
    """First leaf and record bytes of a node of a level that has two leaves of different codes."""
    tree = index.tree
    size = index.manifest.first_segment.counts.record_bytes(level)
    for node in range(*index.manifest.first_segment.counts.level_start[level : level + 2]):
        start, stop = (int(leaf) for leaf in tree.leaf_start[node : node + 2])
        place = int(tree.record_start[level]) + (start - int(tree.level_leaf[level])) * size
        pair = tree.records[place : place + 2 * size].reshape(-1, size)
        if stop - start > 1 and (pair[0, 1:] != pair[1, 1:]).any():
            return place, size
    raise AssertionError


def swap_leaves(array, manifest):
    with open_index(manifest) as index:
        place, size = leaves_of(index, 1)
    array[place : place + 2 * size] = np.roll(array[place : place + 2 * size], size)


def swap_equal_codes(array, manifest):
    """Exchange the ids of two leaves of one code."""
    with open_index(manifest) as index:
        first = int(
            index.tree.leaf_start[index.tree.level_start[3]]
        )  # behind the last label suffixes are empty
        pair = next(
            int(start)
            for start, stop in pairwise(index.tree.leaf_start[index.tree.level_start[3] :].tolist())
            if stop - start > 1
        )
    assert pair >= first
    array[[pair, pair + 1]] = array[[pair + 1, pair]]


def leaf_of_a_child(array, manifest):
    """Give a leaf the label of a child of its node, as its next."""
    with open_index(manifest) as index:
        tree = index.tree
        node = next(
            node
            for node in range(1, int(tree.level_start[2]))
            if tree.child_start[node] < tree.child_start[node + 1]
            and tree.leaf_start[node] < tree.leaf_start[node + 1]
        )
        size = index.manifest.first_segment.counts.record_bytes(1)
        place = int(tree.record_start[1]) + int(tree.leaf_start[node]) * size
        array[place + 1] = tree.labels[tree.child_start[node]]


def far_label(array, manifest):
    with open_index(manifest) as index:
        last = int(index.tree.child_start[index.tree.level_start[2]]) - 1
    array[last] = 200


@pytest.mark.parametrize(
    ("name", "apply", "expected"),
    [
        ("child_start", change(0, 2), "2 at the begin of level 0, expected 1"),
        ("child_start", change(3, 2**31), "expected rising numbers"),
        ("child_start", change(-1, 7), "7 at the end"),
        ("leaf_start", change(1, 1), "1 at the begin of level 1, expected 0"),
        ("leaf_start", change(5, 0), "neither children nor leaves|expected rising numbers"),
        ("leaf_start", change(-1, 501), "501 at the end, expected 500"),
        ("labels", change(0, 3), "label 3 of the root"),
        ("norms", change(0, 3), "of the root, expected 0"),
        ("labels", change(1, 99), "first_labels has"),
        ("labels", swap_siblings, "below one parent, expected rising labels"),
        ("labels", far_label, "label 200 of a dictionary of 7 words"),
        ("first_labels", change(0, 299), "expected rising labels"),
        ("norms", change(9, np.nan), "norm nan"),
        ("norms", change(9, -1), "norm -1.0"),
        ("norms", change(9, 1e6), "norm 1e.06, its labels give"),
        ("records", swap_leaves, "not in the order"),
        ("ids", swap_equal_codes, "not in the order"),
        ("records", leaf_of_a_child, "not in the order"),
        ("records", change(0, 3), "of a leaf, its labels give"),
        ("records", change(1, 255), "label 255 of a dictionary of 7 words"),
        ("ids", change(3, 500), "row 500, but there are 500 rows"),
        ("ids", lambda array, index: array.__setitem__(0, array[1]), "it was there before"),
    ],
)
def test_arrays_that_make_no_sense_are_found(tmp_path, name, apply, expected):
    index = tmp_path / "i"
    manifest = make_index(index)
    record = manifest.first_segment.tree_file(name)
    array = np.fromfile(index / record.path, record.dtype)
    apply(array, index)
    array.tofile(index / record.path)
    recommitted(index, manifest, name)
    found = verify_index(index)
    assert any(item.block == 0 for item in found)
    assert any(re.search(expected, item.what) for item in found), found


def test_an_exact_norm_that_is_not_finite_is_found(tmp_path):
    index = tmp_path / "i"
    manifest = make_index(index, SAMPLES["paper"])
    record = manifest.first_segment.tree_file("records")
    array = np.fromfile(index / record.path, record.dtype)
    array[:4] = np.array([np.inf], "<f4").view(np.uint8)
    array.tofile(index / record.path)
    recommitted(index, manifest, "records")
    assert "a norm that is not finite" in verify_index(index)[0].what


def test_words_that_are_not_finite_are_found(tmp_path):
    index = tmp_path / "i"
    manifest = make_index(index)
    path = index / manifest.first_segment.file(DICTIONARIES).path
    dictionaries, ranges = load_dictionaries(path)
    words = dictionaries.words.copy()
    words[3, 2] = np.nan
    save_dictionaries(path, replace(dictionaries, words=words), ranges)
    recommitted(index, manifest, DICTIONARIES)
    assert [item.what for item in verify_index(index)] == [
        "array words is missing or holds a number that is not finite"
    ]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_deep_check_of_a_whole_index_finds_nothing(tmp_path, monkeypatch, name):
    monkeypatch.setattr(norm_checks, "BLOCK_NODES", 7)
    monkeypatch.setattr(deep_checks, "BLOCK_NODES", 7)
    make_index(tmp_path / "i", SAMPLES[name], partitions=1)
    told = []
    assert verify_index(tmp_path / "i", lambda *now: told.append(now), deep=True) == []
    assert told[-1][0] == told[-1][1]


def test_a_deep_check_finds_a_tree_of_other_codes(tmp_path):
    """Codes of rows 210 and 390 exchanged in the store, under checksums that match."""
    sample = make_sample()
    manifest = make_index(tmp_path / "i", sample)
    assert (sample.codes[210] != sample.codes[390]).any()
    store = CodeStore.open(tmp_path / "i" / manifest.first_segment.directory / "codes.zarr")
    codes = sample.codes[200:400].copy()
    codes[[10, 190]] = codes[[190, 10]]
    store.write_shard(1, codes)
    recommitted(tmp_path / "i", manifest, "codes.zarr/c/1/0")
    assert verify_index(tmp_path / "i") == []
    (damage,) = verify_index(tmp_path / "i", deep=True)
    assert "rows 200 to 400: the codes in the tree differ from those in codes.zarr" in str(damage)


def test_damages_are_told_in_order():
    assert sorted([Damage("b", 0, ""), Damage("a", 2, ""), Damage("a", -1, "")])[0] == Damage("a", -1, "")


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 100])
def test_mark_ids_equals_its_twin(dtype, count):
    random = np.random.default_rng(count)
    for limit in (count, count + 5, max(1, count - 1)):
        ids = random.permutation(limit + 2)[:count].astype(dtype)
        for second in (ids, np.concatenate([ids[:3], ids])):
            seen, expected_seen = np.zeros((2, -(-limit // 8)), np.uint8)
            assert mark_ids(second, limit, seen) == naive.mark_ids(second, limit, expected_seen)
            np.testing.assert_array_equal(seen, expected_seen)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("damage", ["none", "ids", "records"])
def test_checks_of_leaves_equal_their_twins(name, damage):
    sample = SAMPLES[name]
    ids = np.arange(len(sample.codes), dtype=np.uint32)
    tree = build_tree(sample.codes, ids, sample.dictionaries, sample.params, sample.norm_ranges)
    if damage != "none":
        tree = tree._replace(**{damage: np.random.default_rng(0).permutation(getattr(tree, damage))})
    norm_bytes = sample.params.norm_bytes
    for level, size in enumerate(record_sizes(sample.dictionaries.layout, norm_bytes).tolist()):
        first, stop = (int(node) for node in tree.level_start[level : level + 2])
        arguments = (tree, level, first, stop, norm_bytes, size)
        assert disordered_leaf(*arguments) == naive.disordered_leaf(*arguments)
        prefixes = np.random.default_rng(1).integers(0, 256, (stop - first, level), np.uint8)
        sums, expected = np.zeros((2, 4), np.uint64)
        for add, to in ((add_leaf_sums, sums), (naive.add_leaf_sums, expected)):
            add(tree, level, first, prefixes, norm_bytes, size, 100, to)
        np.testing.assert_array_equal(sums, expected)


def test_sums_of_codes_equal_their_twin():
    random = np.random.default_rng(0)
    for rows, width in ((0, 3), (1, 1), (100, 9)):
        codes, seen = random.integers(0, 256, (rows, width), np.uint8), random.integers(0, 256, 20, np.uint8)
        assert int(code_sum(codes, 33, seen)) == naive.code_sum(codes, 33, seen)


def test_the_benchmark_runs_on_a_small_index(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_record, "RESULTS", tmp_path)
    assert bench_verify.main(["--work", str(tmp_path), "--rows", "3000", "--rounds", "1"]) == 0
    assert capsys.readouterr().out.count("GB/s, checksums alone") == 2
    assert [line["parameters"]["workers"] for line in bench_record.read("verify")] == [1, 2]
