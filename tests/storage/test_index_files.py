"""Partitions are stitched into the files of an index, and the index is read back."""

import subprocess
import sys

import numpy as np
import pytest
from helpers.small_index import make_index, make_sample, stitch, write_partitions

from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.params import SearchParams, TreeParams
from aggtree.engine.search.searcher import Searcher
from aggtree.engine.tree.layout import build_tree, tree_shape
from aggtree.storage.atomic import make_directory
from aggtree.storage.checksums import block_count
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index import reader as index_reader
from aggtree.storage.index import writer as index_writer
from aggtree.storage.index.code_store import shard_key
from aggtree.storage.index.dictionary_file import save_dictionaries
from aggtree.storage.index.file_record import FileRecord
from aggtree.storage.index.format import ARRAYS, CODES, DICTIONARIES, MANIFEST, TREE, build_name
from aggtree.storage.index.manifest import IndexManifest, commit_manifest, read_manifest
from aggtree.storage.index.opened import memory_maps
from aggtree.storage.index.reader import open_index
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.index.writer import file_record, shifted
from aggtree.storage.work.partitions import open_partition

SAMPLES = {
    "wide": make_sample(),
    "narrow": make_sample(333, (7, 256, 3, 5), params=TreeParams(bucket=9, direct_leaves=2, norm_bytes=2)),
    "paper": make_sample(257, (6, 5, 4, 3, 2), params=TreeParams(bucket=1, norm_bytes=4)),
    "one level": make_sample(50, (3,)),
    "planes": make_sample(333, (300, 7, 16, 16, 16), params=TreeParams(planes=True)),
    "planes, no norms": make_sample(200, (9, 16, 16), params=TreeParams(planes=True, norm_bytes=0)),
    "one row": make_sample(1, (300, 2)),
}


def in_memory(sample):
    return build_tree(
        sample.codes,
        np.arange(len(sample.codes), dtype=np.uint32),
        sample.dictionaries,
        sample.params,
        sample.norm_ranges,
    )


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_any_number_of_partitions_makes_the_tree_made_in_memory(tmp_path, monkeypatch, name, partitions):
    sample = SAMPLES[name]
    monkeypatch.setattr(index_writer, "ROWS", 13)
    make_index(tmp_path / "i", sample, partitions=min(partitions, len(sample.codes)))
    expected = in_memory(sample)
    with open_index(tmp_path / "i") as index:
        for field, array in index.tree._asdict().items():
            wanted = getattr(expected, field)
            assert array.dtype == wanted.dtype, field
            np.testing.assert_array_equal(array, wanted, field)


def test_an_open_index_answers_like_the_tree_in_memory(tmp_path):
    sample = SAMPLES["wide"]
    make_index(tmp_path / "i", sample)
    queries = np.random.default_rng(1).standard_normal((20, 5)).astype(np.float32)
    expected = Searcher(in_memory(sample), sample.dictionaries).search(queries, 7, SearchParams.unlimited())
    with open_index(tmp_path / "i") as index:
        index.warm()
        answer, counts = index.search_with_counts(queries, 7, SearchParams.unlimited(), rerank=0)
        np.testing.assert_array_equal(answer.ids, expected.ids)
        np.testing.assert_array_equal(answer.distances, expected.distances)
        np.testing.assert_array_equal(
            index.search(queries, 7, SearchParams.unlimited(), threads=2, rerank=0)[0], answer.ids
        )
        assert (counts.leaves == len(index)).all()


def test_an_index_describes_itself(tmp_path):
    manifest = make_index(tmp_path / "i")
    with open_index(str(tmp_path / "i")) as index:
        assert (len(index), index.rows, index.dimension, index.layout.words) == (500, 500, 5, (300, 7, 16))
        assert "rows=500, dimension=5, words=300+7+16" in repr(index)
        sizes = index.bytes_by_part()
        assert sum(sizes.values()) == sum(record.bytes for record in manifest.all_files)
        assert sizes["tree/ids"] == 4 * 500
        told = []
        index.warm(lambda done, total: told.append((done, total)))
        assert told[-1][0] == told[-1][1]
    with pytest.raises(ValueError, match="closed"):
        index.search(np.zeros(5))


def test_a_tree_larger_than_memory_answers_alike(tmp_path, monkeypatch):
    make_index(tmp_path / "i")
    queries = np.ones((3, 5), np.float32)
    expected = open_index(tmp_path / "i").search(queries, 9)
    monkeypatch.setattr(memory_maps, "physical_memory", lambda: 1)
    np.testing.assert_array_equal(open_index(tmp_path / "i").search(queries, 9).ids, expected.ids)


def test_warming_works_on_kernels_without_populate(tmp_path, monkeypatch):
    make_index(tmp_path / "i")
    monkeypatch.setattr(memory_maps, "POPULATE_READ", 9999)
    with open_index(tmp_path / "i") as index:
        index.warm()


def test_arrays_of_an_index_cannot_be_written(tmp_path):
    make_index(tmp_path / "i")
    with open_index(tmp_path / "i") as index:
        for array in index.tree:
            assert not array.flags.writeable


def test_offsets_beyond_32_bits_are_written_in_64(tmp_path, monkeypatch):
    """Partitions that lie behind 2**33 other nodes and leaves."""
    sample, far = make_sample(), 2**33
    partitions = write_partitions(tmp_path / "partitions", sample, 2)

    def far_shape(nodes, leaves, layout, norm_bytes, planes):
        shape = tree_shape(nodes, leaves, layout, norm_bytes, planes)
        moved = {name: getattr(shape, name) + far for name in ("first_node", "first_leaf")}
        return type(shape)(**(shape.__dict__ | moved | {"start_dtype": np.dtype(np.uint64)}))

    monkeypatch.setattr(index_writer, "tree_shape", far_shape)
    tree = stitch(tmp_path, "a" * 12, sample, partitions)
    expected = in_memory(sample)
    dtypes = {record.path.rpartition("/")[2]: record.dtype for record in tree.files}
    for name in ("child_start", "leaf_start"):
        assert dtypes[name] == "<u8"
        stored = np.fromfile(tmp_path / build_name("a" * 12) / TREE / name, "<u8")
        np.testing.assert_array_equal(
            stored[:-1], getattr(expected, name)[:-1].astype(np.uint64) + np.uint64(far)
        )


def test_a_tree_of_more_than_32_bits_gets_64_bit_offsets():
    sample = make_sample()
    nodes = np.array([[1, 300, 2000, 2**32]] * 2) - [[0], [1]] * np.array([1, 0, 0, 0])
    leaves = np.array([[0, 0, 0, 2**32]] * 2)
    shape = tree_shape(nodes, leaves, sample.dictionaries.layout, 1)
    assert shape.start_dtype == np.uint64
    local = np.array([0, 5, 2**32 - 1], np.uint32)
    first = int(shape.first_leaf[1, 3])
    assert first == 2**32
    np.testing.assert_array_equal(
        shifted(local, first, shape.start_dtype), local.astype(np.uint64) + np.uint64(first)
    )


def test_an_index_of_more_than_32_bits_opens_and_answers(tmp_path):
    """Two nodes, the first with more than 2**32 leaves, in files that are mostly holes."""
    far, source_rows, build = 2**32 + 10, 2**34, "b" * 12
    directory = tmp_path / build_name(build)
    make_directory(directory)
    words = np.array([[0, 0], [9, 9], [0, 0], [1, 0]], np.float32)
    norm_ranges = np.array([[0, 0], [0, 255], [0, 255]], np.float32)
    save_dictionaries(directory / DICTIONARIES, Dictionaries(words, CodeLayout((2, 2))), norm_ranges)
    contents = {
        f"{TREE}/first_labels": ("<u2", 2, [0, 1]),
        f"{TREE}/labels": ("|u1", 3, [0, 0, 1]),
        f"{TREE}/norms": ("<f4", 3, [0, 0, 162]),
        f"{TREE}/child_start": ("<u8", 4, [1, 3, 3, 3]),
        f"{TREE}/leaf_start": ("<u8", 4, [0, 0, far, far + 2]),
        f"{TREE}/records": ("|u1", 2 * (far + 2), [0, 0, 19, 1]),  # norm 162, label 0; norm 181, label 1
        f"{TREE}/ids": ("<u8", far + 2, [2**33, 7]),
        f"{CODES}/{shard_key(0)}": ("|u1", 2 * source_rows, [0]),
    }
    files = [file_record(tmp_path, f"{directory.name}/{DICTIONARIES}")]
    for name, (dtype, length, end) in contents.items():
        path, tail = directory / name, np.array(end, dtype)
        make_directory(path.parent)
        with path.open("wb") as file:
            file.truncate(length * tail.itemsize)
            file.seek(length * tail.itemsize - tail.nbytes)
            file.write(tail.tobytes())
        size = path.stat().st_size
        zeros = (0,) * block_count(size)  # opening does not compare them
        path = str(path.relative_to(tmp_path))
        files.append(FileRecord(path=path, bytes=size, blocks=zeros, dtype=dtype, length=length))
    segment = SegmentManifest(
        build=build,
        rows=far + 2,
        source_rows=source_rows,
        dimension=2,
        words=(2, 2),
        norm_bytes=1,
        level_nodes=(1, 2, 0),
        level_leaves=(0, far + 2, 0),
        files=tuple(files),
    )
    commit_manifest(tmp_path, IndexManifest(segments=(segment,)))
    with open_index(tmp_path) as index:
        assert len(index) == far + 2
        answer = index.search(np.array([10, 9], np.float32), 3, SearchParams(limits=(1,)), rerank=0)
    assert answer.ids.tolist() == [[7, 2**33, -1]]
    np.testing.assert_allclose(answer.distances, [[0, 1, np.inf]], atol=1e-4)


def test_a_damaged_partition_is_not_stitched(tmp_path):
    sample = make_sample()
    partitions = write_partitions(tmp_path / "partitions", sample, 2)
    data = bytearray(partitions[1].read_bytes())
    data[len(data) // 2] ^= 1
    partitions[1].write_bytes(data)
    with pytest.raises(IndexFormatError, match=r"1\.partition: damaged, array"):
        stitch(tmp_path, "a" * 12, sample, partitions)
    assert not list((tmp_path / build_name("a" * 12)).glob("tree/*"))


def test_a_partition_is_mapped_back(tmp_path):
    (path,) = write_partitions(tmp_path, make_sample(), 1)
    with open_partition(path) as partition:
        arrays = partition.arrays()
        assert partition.level_leaves.sum() == len(arrays.ids) == 500
        assert partition.level_nodes[0] == 1


@pytest.mark.parametrize("name", [spec.name for spec in ARRAYS] + ["dictionaries"])
@pytest.mark.parametrize("change", ["shorter", "longer", "gone", "link", "directory"])
def test_a_file_of_another_size_is_refused(tmp_path, name, change):
    manifest = make_index(tmp_path / "i")
    record = next(record for record in manifest.all_files if record.path.endswith(name))
    path = tmp_path / "i" / record.path
    data = path.read_bytes()
    path.unlink()
    if change == "link":
        (tmp_path / "elsewhere").write_bytes(data)
        path.symlink_to(tmp_path / "elsewhere")
    elif change == "directory":
        path.mkdir()
    elif change != "gone":
        path.write_bytes(data[:-1] if change == "shorter" else data + b"x")
    with pytest.raises(IndexFormatError, match=name) as error:
        open_index(tmp_path / "i")
    assert "\n" not in str(error.value)


def test_labels_the_first_dictionary_does_not_have_are_refused(tmp_path):
    make_index(tmp_path / "i")
    manifest = read_manifest(tmp_path / "i")
    path = tmp_path / "i" / manifest.first_segment.tree_file("first_labels").path
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(IndexFormatError, match="first_labels up to 65535"):
        open_index(tmp_path / "i")


def test_no_index_is_one_clear_line(tmp_path):
    with pytest.raises(IndexFormatError, match="no such directory"):
        open_index(tmp_path / "nowhere")
    with pytest.raises(IndexFormatError, match="a directory without manifest"):
        open_index(tmp_path)


def test_an_open_index_survives_being_replaced(tmp_path):
    queries = np.zeros((1, 5), np.float32)
    make_index(tmp_path / "i", name="old")
    old = open_index(tmp_path / "i")
    before = old.search(queries, 5)
    make_index(tmp_path / "i", make_sample(300, seed=9), name="new")
    np.testing.assert_array_equal(old.search(queries, 5).ids, before.ids)
    assert len(open_index(tmp_path / "i")) == 300
    kept = sorted(path.name for path in (tmp_path / "i").iterdir())
    assert kept == [build_name(read_manifest(tmp_path / "i").first_segment.build), MANIFEST]


def test_a_reader_overtaken_by_a_commit_opens_the_new_index(tmp_path, monkeypatch):
    make_index(tmp_path / "i", name="old")
    outdated = read_manifest(tmp_path / "i")
    make_index(tmp_path / "i", make_sample(300, seed=9), name="new")
    answers = iter([outdated])
    monkeypatch.setattr(
        index_reader, "read_manifest", lambda path: next(answers, None) or read_manifest(path)
    )
    assert len(open_index(tmp_path / "i")) == 300


def test_a_query_process_loads_neither_zarr_nor_dask(tmp_path):
    make_index(tmp_path / "i")
    code = (
        "import sys; from aggtree.storage.index.reader import open_index; open_index(sys.argv[1]);"
        "print([m for m in ('zarr', 'dask', 'distributed', 'fsspec') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "i"], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
