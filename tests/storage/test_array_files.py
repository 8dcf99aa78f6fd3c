"""Array files: dictionaries, checkpoints and runs come back as they were, and damage is an error."""

import json

import numpy as np
import pytest
from helpers.small_index import make_sample
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.storage import array_file
from aggtree.storage.array_file import ArrayFile, write_arrays
from aggtree.storage.checksums import crc32c
from aggtree.storage.errors import AggtreeError, DiskError, IndexFormatError
from aggtree.storage.index.dictionary_file import load_dictionaries, load_state, save_dictionaries, save_state
from aggtree.storage.work.runs import open_run, read_slice, write_run

DTYPES = ["|b1", "|i1", "|u1", "<i2", ">u2", "<i4", "<u4", ">i8", "<u8", "<f2", "<f4", "<f8"]


@given(
    arrays=st.dictionaries(
        st.text(max_size=5),
        st.sampled_from(DTYPES).flatmap(
            lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=5))
        ),
        max_size=4,
    )
)
@settings(max_examples=50, deadline=None)
def test_any_arrays_come_back(tmp_path_factory, arrays):
    path = tmp_path_factory.mktemp("arrays") / "f"
    checksums = write_arrays(path, "test", arrays, {"note": [1, "x"]})
    assert checksums.bytes == path.stat().st_size
    with ArrayFile(path, "test") as file:
        file.check()
        assert file.fields == {"note": [1, "x"]}
        assert set(file.names) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(file.array(name), array)
            assert file.array(name).dtype == array.dtype.newbyteorder("<")
            if array.ndim:
                np.testing.assert_array_equal(file.read(name, 1, 3), array[1:3])
                assert sum(len(block) for block in file.blocks(name, 2)) == len(array)


def test_arrays_stay_valid_after_closing(tmp_path):
    write_arrays(tmp_path / "f", "test", {"x": np.arange(10_000)})
    with ArrayFile(tmp_path / "f", "test") as file:
        array = file.array("x")
    assert array.sum() == 49_995_000
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_objects_are_not_stored(tmp_path):
    with pytest.raises(TypeError, match="only numbers"):
        write_arrays(tmp_path / "f", "test", {"x": np.array(["a"])})


@pytest.fixture
def small_file(tmp_path):
    write_arrays(tmp_path / "f", "test", {"x": np.arange(100), "y": np.ones((3, 4), np.float32)}, {"a": 1})
    return tmp_path / "f"


def test_every_truncation_is_refused(small_file):
    data = small_file.read_bytes()
    for length in range(0, len(data), 7):
        small_file.write_bytes(data[:length])
        with pytest.raises(IndexFormatError, match=r"damaged|truncated"):
            ArrayFile(small_file, "test")


def test_every_changed_bit_is_found_by_check(small_file):
    data = small_file.read_bytes()
    with ArrayFile(small_file, "test") as file:
        used = {place for p in file._places.values() for place in range(p.offset, p.offset + p.bytes)}
        padding = set(range(min(used), len(data))) - used
    for place in range(0, len(data), 3):
        changed = bytearray(data)
        changed[place] ^= 1 << (place % 8)
        small_file.write_bytes(changed)
        if place in padding:
            continue
        with pytest.raises(IndexFormatError), ArrayFile(small_file, "test") as file:
            file.check()


def test_another_kind_of_file_is_refused(small_file):
    with pytest.raises(IndexFormatError, match="a file of kind 'test', expected 'run'"):
        open_run(small_file)
    with pytest.raises(DiskError, match="no such file"):
        open_run(small_file.with_name("nowhere"))
    with pytest.raises(AggtreeError):
        open_run(small_file.parent)
    with ArrayFile(small_file, "test") as file, pytest.raises(IndexFormatError, match="has no array z"):
        file.array("z")


HOSTILE = [
    {"shape": [10**15]},
    {"shape": [-1]},
    {"shape": [True]},
    {"shape": [2**40, 2**40]},
    {"shape": 100},
    {"shape": [1] * 100},
    {"offset": 0},
    {"offset": 10**9},
    {"offset": "0"},
    {"offset": 1.5},
    {"dtype": "|O"},
    {"dtype": "<f16"},
    {"dtype": ["<f4", 3]},
    {"crc32c": ""},
    {"crc32c": "xx"},
    {"crc32c": 5},
    {"name": ["x"]},
]


@pytest.mark.parametrize("change", HOSTILE, ids=str)
def test_a_hostile_header_is_refused(small_file, monkeypatch, change):
    """Headers whose own checksum is right, but which lie."""
    plain = array_file._header

    def lying(kind, arrays, fields):
        text = plain(kind, arrays, fields)[16:]
        header = json.loads(text)
        header["arrays"][0].update(change)
        text = json.dumps(header).encode().ljust(len(text))
        return array_file.MAGIC + len(text).to_bytes(4, "little") + crc32c(text).to_bytes(4, "little") + text

    monkeypatch.setattr(array_file, "_header", lying)
    write_arrays(small_file, "test", {"x": np.arange(100)})
    with pytest.raises(IndexFormatError):
        ArrayFile(small_file, "test")


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_arbitrary_bytes_are_no_array_file(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "arbitrary"
    for start in (b"", array_file.MAGIC, array_file.MAGIC + b"\x10\x00\x00\x00"):
        path.write_bytes(start + data)
        with pytest.raises(IndexFormatError):
            ArrayFile(path, "test")


# ---------------------------------------------------------------------------------------------------


def test_dictionaries_come_back(tmp_path):
    sample = make_sample()
    save_dictionaries(tmp_path / "d", sample.dictionaries, sample.norm_ranges)
    dictionaries, ranges = load_dictionaries(tmp_path / "d")
    assert dictionaries.layout == sample.dictionaries.layout
    np.testing.assert_array_equal(dictionaries.words, sample.dictionaries.words)
    np.testing.assert_array_equal(ranges, sample.norm_ranges)


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": np.array([300, 8, 16])},
        {"sizes": np.array([300, -7, 30])},
        {"sizes": np.array([7, 300, 16])},
        {"sizes": np.array([], np.int64)},
        {"sizes": np.array([2**62, 2**62, 2**62, 2**62])},
        {"sizes": np.array([1.0])},
        {"words": np.zeros((323, 0), np.float32)},
        {"words": np.zeros((323, 5))},
        {"norm_ranges": np.zeros((3, 2), np.float32)},
        {"norm_ranges": None},
    ],
    ids=str,
)
def test_dictionaries_that_contradict_themselves_are_refused(tmp_path, change):
    sample = make_sample()
    arrays = {
        "sizes": np.array([300, 7, 16]),
        "words": sample.dictionaries.words,
        "norm_ranges": sample.norm_ranges,
    } | change
    write_arrays(tmp_path / "d", "dictionaries", {name: a for name, a in arrays.items() if a is not None})
    with pytest.raises(IndexFormatError, match=str(tmp_path)):
        load_dictionaries(tmp_path / "d")


def test_norm_ranges_of_other_dictionaries_are_not_saved(tmp_path):
    dictionaries = Dictionaries(np.zeros((4, 2), np.float32), CodeLayout((2, 2)))
    with pytest.raises(IndexFormatError, match="norm ranges"):
        save_dictionaries(tmp_path / "d", dictionaries, np.zeros((2, 2), np.float32))


def test_a_checkpoint_comes_back_writable_and_checked(tmp_path):
    state = {"round": np.int64(3), "gram": np.random.default_rng(0).random((9, 9)), "flags": np.array([True])}
    save_state(tmp_path / "s", state)
    loaded = load_state(tmp_path / "s")
    loaded["gram"][0, 0] += 0
    assert set(loaded) == set(state)
    for name, array in state.items():
        np.testing.assert_array_equal(loaded[name], array)
    data = bytearray((tmp_path / "s").read_bytes())
    data[-1] ^= 1
    (tmp_path / "s").write_bytes(data)
    with pytest.raises(IndexFormatError, match="array flags"):
        load_state(tmp_path / "s")


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_runs_come_back(tmp_path, dtype):
    random = np.random.default_rng(0)
    codes, ids = random.integers(0, 256, (1001, 9), np.uint8), np.arange(1001, dtype=dtype)
    write_run(tmp_path / "r", codes, ids)
    with open_run(tmp_path / "r") as run:
        run.check()
        assert run.count == 1001
        np.testing.assert_array_equal(run.codes, codes)
        np.testing.assert_array_equal(run.ids, ids)
        places = np.array(run.places)
    own_codes, own_ids = np.empty((200, 9), np.uint8), np.empty(200, dtype)
    read_slice(tmp_path / "r", places, 500, own_codes, own_ids)
    np.testing.assert_array_equal(own_codes, codes[500:700])
    np.testing.assert_array_equal(own_ids, ids[500:700])
    with pytest.raises(IndexFormatError, match="shorter than"):
        read_slice(tmp_path / "r", places, 900, own_codes, own_ids)


def test_an_empty_run_is_a_run(tmp_path):
    write_run(tmp_path / "r", np.empty((0, 3), np.uint8), np.empty(0, np.uint32))
    with open_run(tmp_path / "r") as run:
        assert run.count == 0
        assert run.codes.shape == (0, 3)


@pytest.mark.parametrize(
    ("codes", "ids"),
    [
        (np.zeros((3, 2), np.uint8), np.zeros(2, np.uint32)),
        (np.zeros((3, 2), np.uint8), np.zeros(3, np.int64)),
        (np.zeros((3, 2), np.int8), np.zeros(3, np.uint32)),
        (np.zeros(3, np.uint8), np.zeros(3, np.uint32)),
    ],
)
def test_what_is_no_run_is_neither_written_nor_read(tmp_path, codes, ids):
    with pytest.raises(ValueError, match="run of codes"):
        write_run(tmp_path / "r", codes, ids)
    write_arrays(tmp_path / "r", "run", {"codes": codes, "ids": ids})
    with pytest.raises(IndexFormatError, match="are no run"):
        open_run(tmp_path / "r")
