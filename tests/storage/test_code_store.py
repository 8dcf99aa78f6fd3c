"""Codes in zarr shards: readable by plain zarr, written whole, damage located."""

import json
import os

import numpy as np
import pytest
import zarr
from helpers.failing_disk import FailingDisk
from hypothesis import given, settings
from hypothesis import strategies as st

from aggtree.storage import atomic
from aggtree.storage.errors import AggtreeError, DiskError, IndexFormatError
from aggtree.storage.index.code_store import CodeStore, ShardRecord, create_code_store


def random_codes(rows, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, width), np.uint8)


def fill(store, codes):
    return {i: store.write_shard(i, codes[slice(*store.shard_range(i))]) for i in range(store.shards)}


@pytest.mark.parametrize("remote", [False, True])
def test_codes_come_back(tmp_path, remote):
    location = f"memory://{tmp_path}/codes.zarr" if remote else tmp_path / "codes.zarr"
    codes = random_codes(2345, 9)
    codes[1000:1200] = 0  # chunks of zeros are stored too
    records = fill(create_code_store(location, 2345, 9, shard_rows=1000, chunk_rows=100), codes)
    store = CodeStore.open(location)
    assert (store.rows, store.width, store.shard_rows, store.chunk_rows, store.shards) == (
        2345,
        9,
        1000,
        100,
        3,
    )
    np.testing.assert_array_equal(store.read(0, 2345), codes)
    np.testing.assert_array_equal(store.read(987, 2001), codes[987:2001])
    assert store.read(7, 7).shape == (0, 9)
    assert store.present(records) == {0, 1, 2}
    assert all(store.check_shard(record) for record in records.values())
    assert [record.rows for record in records.values()] == [1000, 1000, 345]


def test_plain_zarr_reads_the_store(tmp_path):
    codes = random_codes(250, 3)
    fill(create_code_store(tmp_path / "codes.zarr", 250, 3, shard_rows=100, chunk_rows=50), codes)
    array = zarr.open(str(tmp_path / "codes.zarr"), mode="r")
    assert (array.shape, array.dtype, array.shards, array.chunks) == ((250, 3), np.uint8, (100, 3), (50, 3))
    np.testing.assert_array_equal(array[:], codes)


def test_the_bytes_are_those_zarr_would_have_written(tmp_path):
    codes = random_codes(250, 3)
    fill(create_code_store(tmp_path / "ours", 250, 3, shard_rows=100, chunk_rows=50), codes)
    array = zarr.create_array(
        str(tmp_path / "theirs"),
        shape=(250, 3),
        dtype="uint8",
        shards=(100, 3),
        chunks=(50, 3),
        compressors=[zarr.codecs.Crc32cCodec()],
        fill_value=0,
    )
    array[:] = codes
    for shard in ("c/0/0", "c/1/0", "c/2/0"):
        assert (tmp_path / "theirs" / shard).read_bytes() == (tmp_path / "ours" / shard).read_bytes()
    ours, theirs = (json.loads((tmp_path / name / "zarr.json").read_text()) for name in ("ours", "theirs"))
    assert {name: theirs[name] for name in ours} == ours


@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 5)),
    chunk=st.integers(1, 12),
    chunks=st.integers(1, 4),
    ends=st.tuples(st.integers(0, 40), st.integers(0, 40)),
)
@settings(max_examples=25, deadline=None)
def test_any_shape_comes_back(tmp_path_factory, shape, chunk, chunks, ends):
    path = tmp_path_factory.mktemp("codes") / "codes.zarr"
    store = create_code_store(path, *shape, shard_rows=chunk * chunks, chunk_rows=chunk)
    codes = random_codes(*shape)
    fill(store, codes)
    start, stop = sorted(min(end, len(codes)) for end in ends)
    np.testing.assert_array_equal(CodeStore.open(path).read(start, stop), codes[start:stop])


def test_few_rows_take_few_bytes(tmp_path):
    store = create_code_store(tmp_path / "codes.zarr", 10, 8)
    assert fill(store, random_codes(10, 8))[0].bytes < 200


def test_a_record_survives_json(tmp_path):
    store = create_code_store(tmp_path / "codes.zarr", 10, 8)
    record = store.write_shard(0, random_codes(10, 8))
    assert ShardRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_a_changed_shard_is_found(tmp_path):
    store = create_code_store(tmp_path / "codes.zarr", 300, 4, shard_rows=100, chunk_rows=50)
    records = fill(store, random_codes(300, 4))
    path = tmp_path / "codes.zarr" / "c" / "1" / "0"
    data = path.read_bytes()
    for place in (0, 10, len(data) // 2, len(data) - 30, len(data) - 1):
        changed = bytearray(data)
        changed[place] ^= 1
        path.write_bytes(changed)
        assert store.present(records) == {0, 1, 2}
        assert not store.check_shard(records[1])
        with pytest.raises(IndexFormatError, match=r"c/1/0: damaged .*encode rows 100 to 200 again") as error:
            store.read(100, 200)
        assert "\n" not in str(error.value)
    path.write_bytes(data[:-1])
    assert store.present(records) == {0, 2}
    path.unlink()
    assert not store.check_shard(records[1])
    with pytest.raises(IndexFormatError, match="c/1/0: missing; encode rows 100 to 200 again"):
        store.read(150, 160)
    assert store.read(0, 100).shape == (100, 4)


def test_a_shard_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    store = create_code_store(tmp_path / "codes.zarr", 30, 4)
    old, new = random_codes(30, 4, 1), random_codes(30, 4, 2)
    store.write_shard(0, old)
    for at in range(4):
        monkeypatch.setattr(atomic, "disk", FailingDisk(at))
        with pytest.raises(DiskError, match="c/0/0: no space left"):
            store.write_shard(0, new)
        np.testing.assert_array_equal(store.read(0, 30), old)


@pytest.mark.parametrize(
    ("shard", "codes"),
    [
        (2, np.zeros((100, 4), np.uint8)),
        (-1, np.zeros((100, 4), np.uint8)),
        (0, np.zeros((99, 4), np.uint8)),
        (1, np.zeros((100, 4), np.uint8)),
        (0, np.zeros((100, 5), np.uint8)),
        (0, np.zeros((100, 4), np.int16)),
    ],
)
def test_rows_that_do_not_fit_a_shard_are_refused(tmp_path, shard, codes):
    store = create_code_store(tmp_path / "codes.zarr", 150, 4, shard_rows=100, chunk_rows=50)
    with pytest.raises(ValueError, match="shard"):
        store.write_shard(shard, codes)


def test_ranges_outside_are_refused(tmp_path):
    store = create_code_store(tmp_path / "codes.zarr", 150, 4, shard_rows=100, chunk_rows=50)
    for start, stop in ((-1, 5), (5, 151), (7, 6)):
        with pytest.raises(ValueError, match="rows"):
            store.read(start, stop)
    with pytest.raises(ValueError, match="code store of 0"):
        create_code_store(tmp_path / "x", 0, 4)
    with pytest.raises(ValueError, match="chunks of 30"):
        create_code_store(tmp_path / "x", 10, 4, shard_rows=100, chunk_rows=30)


@pytest.mark.parametrize("remote", [False, True])
def test_no_store_is_one_clear_line(tmp_path, remote):
    location = f"memory://{tmp_path}/nowhere" if remote else tmp_path / "nowhere"
    with pytest.raises(DiskError, match=r"nowhere/zarr\.json"):
        CodeStore.open(location)


def huge_chunk(metadata):
    metadata["codecs"][0]["configuration"]["chunk_shape"] = [2**30, 4]
    metadata["chunk_grid"]["configuration"]["chunk_shape"] = [2**31, 4]


def change_codec(metadata):
    metadata["codecs"][0]["configuration"]["codecs"].append({"name": "gzip", "configuration": {"level": 5}})


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(shape=[10**15, 4]),
        lambda m: m.update(shape=[-1, 4]),
        lambda m: m.update(shape=[150]),
        lambda m: m.update(shape="150"),
        lambda m: m.update(data_type="uint16"),
        lambda m: m.update(zarr_format=2),
        lambda m: m.update(codecs=[]),
        lambda m: m.update(chunk_key_encoding={"name": "v2"}),
        lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=[100, 3]),
        lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=[0, 4]),
        lambda m: m["codecs"][0]["configuration"].update(chunk_shape=[33, 4]),
        huge_chunk,
        change_codec,
    ],
)
def test_other_metadata_are_refused(tmp_path, change):
    create_code_store(tmp_path / "codes.zarr", 150, 4, shard_rows=100, chunk_rows=50)
    path = tmp_path / "codes.zarr" / "zarr.json"
    metadata = json.loads(path.read_text())
    change(metadata)
    path.write_text(json.dumps(metadata))
    with pytest.raises(IndexFormatError, match=r"zarr\.json: not the metadata of a code store"):
        CodeStore.open(tmp_path / "codes.zarr")


@given(st.binary(max_size=100))
@settings(max_examples=50, deadline=None)
def test_arbitrary_metadata_are_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp()
    (path / "zarr.json").write_bytes(data)
    with pytest.raises(AggtreeError):
        CodeStore.open(path)


@pytest.mark.parametrize("odd", ["pipe", "directory", "device"])
def test_what_is_no_file_is_refused_at_once(tmp_path, odd):
    """Opening a pipe would wait for its writer, and a device may have no end."""
    create_code_store(tmp_path / "s", 500, 3, 200, 100)
    (tmp_path / "s" / "zarr.json").unlink()
    if odd == "pipe":
        os.mkfifo(tmp_path / "s" / "zarr.json")
    elif odd == "directory":
        (tmp_path / "s" / "zarr.json").mkdir()
    else:
        (tmp_path / "s" / "zarr.json").symlink_to("/dev/zero")
    with pytest.raises(DiskError, match=r"zarr\.json: not a file"):
        CodeStore.open(tmp_path / "s")
