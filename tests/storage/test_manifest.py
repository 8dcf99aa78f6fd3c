"""The manifest: comes back as written; nothing in it is trusted."""

from dataclasses import replace

import pytest
from helpers.small_index import add_segment, make_index, make_sample
from hypothesis import given, settings
from hypothesis import strategies as st

from aggtree.engine.dictionaries import CodeLayout
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.file_record import FileRecord
from aggtree.storage.index.format import MANIFEST, TreeCounts
from aggtree.storage.index.manifest import IndexManifest, commit_manifest, read_manifest
from aggtree.storage.sealed_json import read_sealed, write_sealed


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    index = tmp_path_factory.mktemp("manifest") / "i"
    make_index(index)
    return index


@pytest.fixture
def index(tmp_path, committed):
    """A directory with a copy of a good manifest, to be changed."""
    (tmp_path / MANIFEST).write_bytes((committed / MANIFEST).read_bytes())
    return tmp_path


def test_it_comes_back(committed):
    manifest = read_manifest(committed)
    assert IndexManifest.from_json(manifest.to_json()) == manifest
    (segment,) = manifest.segments
    assert (segment.rows, segment.words) == (500, (300, 7, 16)) == (manifest.live_rows, manifest.words)
    assert segment.counts.leaves == 500
    assert segment.tree_file("ids").length == 500
    with pytest.raises(IndexFormatError, match="names no file"):
        segment.file("nothing")


def put(record, path, value):
    *parents, last = path
    for key in parents:
        record = record[key]
    if value is None:
        del record[last]
    else:
        record[last] = value


CHANGES = [
    (["format"], "something else"),
    (["version"], 2),
    (["build"], "../../../etc"),
    (["build"], "ABCDEF123456"),
    (["build"], 5),
    (["rows"], 499),
    (["rows"], 10**30),
    (["rows"], -1),
    (["rows"], 500.0),
    (["source_rows"], 499),
    (["source_rows"], 2**40),  # of which only 500 have a code
    (["dimension"], 0),
    (["words"], [300, 7]),
    (["words"], [300, 700, 16]),
    (["words"], "300"),
    (["words"], [70_000, 7, 16]),
    (["norm_bytes"], 3),
    (["level_nodes"], [1, 2, 3]),
    (["level_nodes", 0], 2),
    (["level_nodes", 1], 10**14),
    (["level_leaves", 0], 1),
    (["level_leaves", 1], 10**14),
    (["block_bytes"], 0),
    (["parameters"], 3),
    (["files"], 3),
    (["files"], []),
    (["files", 0], 3),
    (["files", 0, "path"], "/etc/passwd"),
    (["files", 0, "path"], "../secret"),
    (["files", 0, "bytes"], 10**13),
    (["files", 0, "crc32c"], "00"),
    (["files", 0, "crc32c"], ""),
    (["files", 0, "crc32c"], 1),
    (["files", -1, "dtype"], "|O8"),
    (["files", -1, "dtype"], "<f8"),
    (["files", -1, "dtype"], "nonsense"),
    (["files", -1, "length"], 10**9),
    (["files", -1, "length"], None),
    (["files", -1, "bytes"], 0),
    (["made_by"], None),
    (["own_ids"], None),
    (["own_ids"], 1),
    (["files", 0, "dtype"], "(9,9)f8"),
]


@pytest.mark.parametrize(("path", "value"), CHANGES, ids=lambda value: str(value)[:40])
def test_a_manifest_that_lies_is_refused(index, path, value):
    record = read_sealed(index / MANIFEST)
    put(record, path, value)
    write_sealed(index / MANIFEST, record)
    with pytest.raises(IndexFormatError) as error:
        read_manifest(index)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "path",
    [
        "..",
        ".",
        "",
        "tree/../../x",
        "tree//ids",
        "tree/ids/",
        ".hidden",
        "a\\b",
        "a\0b",
        "a b",
        "~",
        "tree/.",
        "ä",
    ],
)
def test_no_path_leaves_the_directory(index, path):
    record = read_sealed(index / MANIFEST)
    directory = f"build-{record['build']}"
    record["files"].append({"path": f"{directory}/{path}", "bytes": 0, "crc32c": ""})
    write_sealed(index / MANIFEST, record)
    with pytest.raises(IndexFormatError, match="is not in build-"):
        read_manifest(index)
    record["files"][-1]["path"] = "build-000000000000/tree/ids"
    write_sealed(index / MANIFEST, record)
    with pytest.raises(IndexFormatError, match="is not in build-"):
        read_manifest(index)


def test_a_file_named_twice_is_refused(index):
    record = read_sealed(index / MANIFEST)
    record["files"].append(record["files"][0])
    write_sealed(index / MANIFEST, record)
    with pytest.raises(IndexFormatError, match="named twice"):
        read_manifest(index)


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """An index of three segments, of which rows were deleted."""
    index = tmp_path_factory.mktemp("grown") / "i"
    make_index(index)
    sample = make_sample()
    add_segment(index, replace(sample, codes=sample.codes[:90]))
    add_segment(index, replace(sample, codes=sample.codes[90:201]), deleted=(3, 500, 700))
    return index


def test_segments_come_back(grown):
    manifest = read_manifest(grown)
    assert IndexManifest.from_json(manifest.to_json()) == manifest
    assert [segment.first_row for segment in manifest.segments] == [0, 500, 590]
    assert (manifest.version, manifest.live_rows, manifest.all_source_rows) == (3, 698, 701)
    assert len({segment.build for segment in manifest.segments}) == 3
    assert manifest.identity != manifest.first_segment.build
    assert manifest.live is not None and manifest.live.deleted == 3


WRONG_SEGMENTS = {
    "behind row": (("segments", 0, "first_row"), 499),
    "from row 591": (("segments", 1, "first_row"), 591),
    "behind row 7": (("first_row",), 7),
    "with segments or deleted rows": (("segments", 0, "live"), {}),
    "listed twice": (("segments", 1), "copy of the first"),
    "is not in build-": (("segments", 0, "files", 1, "path"), "build-000000000000/x"),
    "different dictionaries": (("segments", 0, "files", 0, "crc32c"), "00000000"),
    "for the existing rows": (("live", "path"), "../live-00000000"),
    "bytes of": (("live", "bytes"), 89),
    "deleted rows": (("live", "deleted"), 0),
    "702 deleted rows": (("live", "deleted"), 702),
    "version 2": (("version",), 2),
    "sources of": (("pieces",), [{"first_row": 0, "rows": 400, "source": {}}]),
    "expected 0": (("pieces",), [{"first_row": 1, "rows": 499, "source": {}}]),
    "is no number": (("segments", 0, "distortion"), "much"),
    "is no count": (("segments", 0, "first_row"), -5),
    "names no file": (("segments", 0, "files"), []),
}


@pytest.mark.parametrize("message", WRONG_SEGMENTS)
def test_segments_that_contradict_each_other_are_refused(grown, tmp_path, message):
    path, value = WRONG_SEGMENTS[message]
    record = read_sealed(grown / MANIFEST)
    value = record["segments"][0] if value == "copy of the first" else value
    put(record, path, value)
    if path == ("live", "bytes"):
        record["live"]["crc32c"] = "00000000"
    write_sealed(tmp_path / MANIFEST, record)
    with pytest.raises(IndexFormatError, match=message):
        read_manifest(tmp_path)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_value_in_any_field_is_read_or_refused(committed, grown, tmp_path_factory, data):
    index = tmp_path_factory.getbasetemp()
    record = read_sealed((grown if data.draw(st.booleans()) else committed) / MANIFEST)
    record["files"] = record["files"][-3:] if data.draw(st.booleans()) else record["files"]
    targets = [record, *record["files"], *record.get("segments", []), record.get("live", record)]
    target = record if data.draw(st.booleans()) else data.draw(st.sampled_from(targets))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(json_values)
    write_sealed(index / MANIFEST, record)
    try:
        read_manifest(index)
    except IndexFormatError as error:
        assert "\n" not in str(error)


def test_a_newer_version_names_the_remedy(index):
    record = read_sealed(index / MANIFEST)
    record["version"] = 99
    write_sealed(index / MANIFEST, record)
    with pytest.raises(IndexFormatError, match=r"version 99; this aggtree \(.*\) reads versions 1 to 5"):
        read_manifest(index)


def test_every_changed_byte_is_refused(index):
    data = (index / MANIFEST).read_bytes()
    for place in range(0, len(data), 17):
        changed = bytearray(data)
        changed[place] ^= 0x20
        (index / MANIFEST).write_bytes(changed)
        with pytest.raises(IndexFormatError):
            read_manifest(index)


def test_what_is_not_on_disk_is_not_committed(committed, tmp_path):
    manifest = read_manifest(committed)
    with pytest.raises(IndexFormatError, match="no such file"):
        commit_manifest(tmp_path, manifest)
    (segment,) = manifest.segments
    larger = replace(segment.files[0], bytes=segment.files[0].bytes + 1)
    changed = replace(segment, files=(larger, *segment.files[1:]))
    with pytest.raises(IndexFormatError, match="truncated or changed"):
        commit_manifest(committed, replace(manifest, segments=(changed,)))
    assert read_manifest(committed) == manifest


def test_counts_beyond_32_bits_have_their_places():
    counts = TreeCounts(
        layout=CodeLayout((65_536, 256, 256)),
        norm_bytes=1,
        level_nodes=(1, 65_536, 2**24, 2**33),
        level_leaves=(0, 0, 2**20, 2**34),
    )
    assert counts.offset_dtype == "<u8"
    assert counts.level_start[-1] == 1 + 65_536 + 2**24 + 2**33
    assert counts.record_start[-1] == 2**20 * 2 + 2**34 * 1
    assert counts.lengths()["child_start"] == counts.nodes + 1


def test_a_record_knows_its_blocks():
    with pytest.raises(ValueError, match="has 1 checksums"):
        FileRecord.from_json({"path": "x", "bytes": 0, "crc32c": "00000000"})
