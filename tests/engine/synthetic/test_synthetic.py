"""The generated source equals its twin, has the same bytes however it is read, and resembles real SIFT."""

import zlib

import naive
import numpy as np
import pytest
from helpers.sizes import sized

from aggtree.engine.synthetic.sift import SyntheticSift, check_model
from aggtree.engine.synthetic.sift_kernels import GROUP, generate_rows, new_scratch
from aggtree.storage.errors import SourceError
from aggtree.storage.sources.base import open_source
from aggtree.storage.sources.sift_model import load_model, model_path, pack_model

SPEC = "synthetic:sift?rows=1000000000000&seed=3"
CRC32_OF_1000_ROWS = 2902577886


@pytest.fixture(scope="module")
def model():
    return load_model(model_path())


def random_model(shipped, anchors, levels):
    """A model of other sizes than the shipped one."""
    generator = np.random.default_rng(anchors)
    return shipped._replace(
        anchors=generator.integers(-2000, 2000, (anchors, 128)).astype(np.float32),
        neighbours=generator.integers(0, anchors, (anchors, 32)),
        shares=np.linspace(0, 2**32, anchors + 1)[1:].astype(np.uint64),
        spreads=generator.integers(500, 1500, anchors),
        weights=generator.integers(0, 700, levels),
        max_step=256,
    )


@pytest.mark.parametrize("count", [0, 1, GROUP - 1, GROUP, GROUP + 3])
def test_rows_equal_their_twin(model, count):
    rows = np.random.default_rng(count).integers(0, 2**62, count).astype(np.uint64)
    out = np.empty((count, 128), np.uint8)
    generate_rows(model, np.uint64(7), rows, new_scratch(), out)
    np.testing.assert_array_equal(out, naive.generate_rows(model, 7, rows))


@pytest.mark.parametrize(("anchors", "levels"), [(1, 1), (7, 3), (300, 20)])
def test_other_models_equal_their_twin(model, anchors, levels):
    other = random_model(model, anchors, levels)
    check_model(other)
    numbers = np.array([0, 1, 2**33, 2**63 - 1], np.uint64)
    np.testing.assert_array_equal(
        SyntheticSift(other, 2**63 - 1).take(numbers), naive.generate_rows(other, 2**63 - 1, numbers)
    )


def test_any_split_gives_the_same_bytes():
    source = open_source(SPEC)
    whole = source.read(123_456_789, 123_456_789 + 100)
    for width in (1, 3, 8, 64):
        starts = range(0, 100, width)
        parts = [source.read(123_456_789 + s, 123_456_789 + min(100, s + width)) for s in starts]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    numbers = np.array([99, 0, 50, 50])
    np.testing.assert_array_equal(source.take(123_456_789 + numbers), whole[numbers])
    shifted = open_source("synthetic:sift?rows=100&seed=3&first=123456789")
    np.testing.assert_array_equal(shifted.read(0, 100), whole)


def test_bytes_are_the_same_on_every_machine():
    """Changes only together with the shipped model: an index built elsewhere must find the same source."""
    rows = open_source("synthetic:sift?rows=1000&seed=1").read(0, 1000)
    assert zlib.crc32(rows.tobytes()) == CRC32_OF_1000_ROWS


def test_spec_opens_the_same_source_again():
    count = sized(1_000_000, 40)
    source = open_source(f"synthetic:sift?rows={count:_}&seed=5&first=77")
    assert source.spec == f"synthetic:sift?rows={count}&seed=5&first=77"
    assert open_source(source.spec).fingerprint() == source.fingerprint()
    assert open_source(f"synthetic:sift?rows={count}&seed=6&first=77").fingerprint() != source.fingerprint()
    for rows in ([count], [-1], [0.5], [[1]]):
        with pytest.raises(SourceError, match="row"):
            source.take(rows)
    assert source.take([]).shape == (0, 128)


def nearest(base, queries):
    base, queries = base.astype(np.float32), queries.astype(np.float32)
    distances = (base**2).sum(axis=1) - 2 * queries @ base.T + (queries**2).sum(axis=1)[:, None]
    return np.sqrt(np.maximum(distances.min(axis=1), 0))


def test_rows_look_like_the_embedded_descriptors():
    count, queries = sized(8000, 1000), sized(500, 100)
    real = open_source("demo:base").read(0, count)
    made = open_source(SPEC).read(0, count)
    norms = np.linalg.norm(made.astype(np.float64), axis=1)
    assert abs(norms - 512).max() < 6
    assert len(np.unique(made, axis=0)) == len(made)
    for share in (0.1, 0.5, 0.9, 0.99):
        assert abs(np.quantile(made, share) - np.quantile(real, share)) <= 8
    spectra = [np.linalg.eigvalsh(np.cov(rows.T.astype(np.float64)))[::-1] for rows in (real, made)]
    assert abs(spectra[1].sum() / spectra[0].sum() - 1) < 0.05
    for axes in (1, 4, 16, 64):
        shares = [spectrum[:axes].sum() / spectrum.sum() for spectrum in spectra]
        assert abs(shares[1] - shares[0]) < 0.04
    distances = [
        np.median(nearest(real, open_source("demo:query").read(0, queries))),
        np.median(nearest(made, open_source(f"{SPEC}&first=10000000000").read(0, queries))),
    ]
    assert abs(distances[1] / distances[0] - 1) < 0.05


def test_a_damaged_model_is_refused(model, tmp_path):
    path = tmp_path / "model.bin"
    data = bytearray(pack_model(model))
    path.write_bytes(data)
    for loaded, own in zip(load_model(path), model, strict=True):
        np.testing.assert_array_equal(loaded, own)
    data[1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(SourceError, match="damaged"):
        load_model(path)
    path.write_bytes(data[:100])
    with pytest.raises(SourceError, match="damaged"):
        load_model(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"basis": np.zeros((128, 64), np.float32)}, "basis has shape"),
        ({"basis": np.full((128, 128), 1000, np.float32)}, "not exact"),
        ({"basis": np.full((128, 128), 0.5, np.float32)}, "not exact"),
        ({"neighbours": np.full((256, 32), 256)}, "no anchor"),
        ({"children": np.array([1, 3, 2, 2**32], np.uint64)}, "children must ascend"),
        ({"children": np.array([1, 2, 3, 4], np.uint64)}, "children must ascend"),
        ({"factors": np.full(256, -1)}, "factors must be"),
        ({"weights": np.full(12, 60_000)}, "not exact"),
        ({"weights": np.zeros(0, np.int64)}, "0 levels"),
        ({"max_step": 300}, "max_step 300"),
    ],
)
def test_models_the_kernel_could_not_use(model, change, message):
    with pytest.raises(ValueError, match=message):
        check_model(model._replace(**change))


def test_seeds_have_limits(model):
    with pytest.raises(ValueError, match="seed -1"):
        SyntheticSift(model, -1)
