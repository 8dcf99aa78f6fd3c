"""Indexes of all format versions stay readable, and the specification page matches the code."""

import json

import numpy as np
import pytest
from helpers.golden.make_golden import ANSWERS, DATA, DELETED, golden_codes, make, queries
from helpers.places import ROOT

from aggtree.engine.params import SearchParams
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.index.format import ARRAYS, CODES, MANIFEST, PLANES_VERSION, VERSIONS
from aggtree.storage.index.manifest import read_manifest
from aggtree.storage.index.reader import open_index
from aggtree.storage.sealed_json import write_sealed
from aggtree.storage.verify.index import verify_index

PAGE = (ROOT / "docs" / "reference" / "format.md").read_text()
NAMES = {"|u1": "uint8", "<u2": "uint16", "<u4": "uint32", "<u8": "uint64", "<f4": "float32"}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_index_of_each_version_is_read(version):
    directory = DATA / f"format-{version}"
    answers = json.loads((directory / "answers.json").read_text())
    assert verify_index(directory / "golden.index") == []
    with open_index(directory / "golden.index") as index:
        ids, distances = index.search(queries(), ANSWERS, SearchParams.unlimited())
        segments = index.manifest.segments
        stores = [CodeStore.open(index.path / segment.directory / CODES) for segment in segments]
        codes = np.concatenate([store.read(0, store.rows) for store in stores])
        assert len(index) == len(codes) - (len(DELETED) if version == 3 else 0)
    if version == PLANES_VERSION:
        # Queries are multiplied in bytes since: answers that are nearly as far as each other change places.
        shared = [len({*found} & {*known}) for found, known in zip(ids.tolist(), answers["ids"], strict=True)]
        assert np.mean(shared) >= 0.95 * ANSWERS
        np.testing.assert_allclose(distances, answers["distances"], rtol=0.02, atol=0.02)
    else:
        np.testing.assert_array_equal(ids, answers["ids"])
        np.testing.assert_allclose(distances, answers["distances"], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(codes, golden_codes(version))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_present_format_is_what_it_was_when_its_version_was_fixed(tmp_path, version):
    """Bytes that differ are a new format, or a mistake."""
    golden = DATA / f"format-{version}" / "golden.index"
    make(tmp_path / "i", version)
    old, new = read_manifest(golden), read_manifest(tmp_path / "i")
    layout = [(record.path, record.bytes, record.dtype, record.length) for record in old.all_files]
    assert layout == [(record.path, record.bytes, record.dtype, record.length) for record in new.all_files]
    for record in old.all_files:
        # The last bit of a norm may depend on the processor.
        if not record.path.endswith(("/norms", "/records")):
            assert (tmp_path / "i" / record.path).read_bytes() == (golden / record.path).read_bytes(), (
                record.path
            )
    norms = [
        np.fromfile(index / old.first_segment.tree_file("norms").path, "<f4")
        for index in (golden, tmp_path / "i")
    ]
    np.testing.assert_allclose(*norms, rtol=1e-5)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_manifest_is_written_as_it_was_read(tmp_path, version):
    golden = DATA / f"format-{version}" / "golden.index" / MANIFEST
    write_sealed(tmp_path / MANIFEST, read_manifest(golden.parent).to_json())
    assert (tmp_path / MANIFEST).read_bytes() == golden.read_bytes()


def test_the_page_names_every_array_with_its_dtypes():
    for spec in ARRAYS:
        dtypes = " or ".join(NAMES[dtype] for dtype in spec.dtypes)
        assert f"| `{spec.name}` | {dtypes} |" in PAGE
        assert spec.meaning.partition(";")[0] in PAGE


def test_the_page_names_every_field_of_the_manifest():
    for version in VERSIONS:
        fields = read_manifest(DATA / f"format-{version}" / "golden.index").to_json()
        segments = [name for segment in fields.get("segments", []) for name in segment]
        assert [name for name in (*fields, *segments) if f"`{name}`" not in PAGE] == []


def test_the_page_lists_every_version():
    assert f"# On-disk format, versions {VERSIONS[0]} to {VERSIONS[-1]}\n" in PAGE
    for version in VERSIONS:
        assert f"\n| {version} | " in PAGE
