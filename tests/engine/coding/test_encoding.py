import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggtree.engine.clustering import distances_kernels
from aggtree.engine.clustering.distances import NearestWord, panel_layout, products
from aggtree.engine.coding import encoding_kernels, short_encoding_kernels
from aggtree.engine.coding import wide_dictionary_kernels as first_dictionary_kernels
from aggtree.engine.coding.encoding import BeamTables, Encoder
from aggtree.engine.coding.records import make_scratch, make_short_scratch
from aggtree.engine.coding.wide_dictionary import TwoStage
from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.simd.instructions.products import TILE_ROWS
from aggtree.engine.simd.vector_code import LANES


def random_dictionaries(sizes, dimension, seed=0, shrink=0.7):
    rng = np.random.default_rng(seed)
    parts = [rng.normal(size=(size, dimension)) * 50 * shrink**m for m, size in enumerate(sizes)]
    return Dictionaries(np.concatenate(parts).astype(np.float32), CodeLayout(tuple(sizes)))


def parts_of(dictionaries):
    return [dictionaries.part(m) for m in range(dictionaries.layout.levels)]


def random_rows(n, dimension, seed=1):
    return np.random.default_rng(seed).normal(size=(n, dimension)).astype(np.float32) * 80


def errors(x, dictionaries, codes):
    decoded = sum(dictionaries.part(m)[codes[:, m]].astype(np.float64) for m in range(codes.shape[1]))
    return ((x - decoded) ** 2).sum(axis=1)


@pytest.mark.parametrize(("rows", "dimension", "words"), [(6, 1, 1), (12, 3, 16), (18, 100, 37), (6, 960, 5)])
def test_multiply_rows(rows, dimension, words):
    x, c = random_rows(rows, dimension), random_rows(words, dimension, 2)
    padded = -(-words // LANES) * LANES
    start = np.arange(padded, dtype=np.float32)
    out = np.empty((rows, padded), np.float32)
    distances_kernels.multiply_rows(x, panel_layout(c, padded), start, out)
    expected = naive.multiply_rows(x, c, start[:words])
    np.testing.assert_allclose(out[:, :words], expected, rtol=1e-5, atol=1)
    whole = np.empty((rows, padded), np.int32)
    distances_kernels.multiply_rows(x, panel_layout(c, padded), start, whole)
    np.testing.assert_array_equal(whole, out.astype(np.int32))


def test_copy_rows_and_lengths():
    x = np.random.default_rng(0).integers(0, 256, (17, 5), dtype=np.uint8)
    out = np.full((12, 5), -1, np.float32)
    count = distances_kernels.copy_rows(x, 10, out)
    expected_count, expected = naive.copy_rows(x, 10, 12)
    assert count == expected_count == 7
    np.testing.assert_array_equal(out, expected)
    lengths = np.empty(17)
    distances_kernels.squared_lengths(x, lengths)
    np.testing.assert_array_equal(lengths, naive.squared_lengths(x))


def test_merge_nearest_keeps_the_lowest_of_equal_words():
    scores = np.random.default_rng(0).integers(0, 9, (TILE_ROWS, 2 * LANES)).astype(np.float32)
    best, labels = np.full(TILE_ROWS, 2, np.float32), np.full(TILE_ROWS, 7, np.int64)
    expected_best, expected_labels = naive.merge_nearest(scores, 100, best, labels)
    minima = np.empty(LANES, np.float32)
    distances_kernels.merge_nearest(scores, TILE_ROWS, 100, 2 * LANES, minima, best, labels)
    np.testing.assert_array_equal(best, expected_best)
    np.testing.assert_array_equal(labels, expected_labels)


@pytest.mark.parametrize("words", [1, 15, 300, 5000])
def test_nearest_word(words):
    x, c = random_rows(101, 7), random_rows(words, 7, 2)
    labels, scores = NearestWord(c).assign(x)
    distances = ((x[:, None].astype(np.float64) - c) ** 2).sum(axis=2)
    np.testing.assert_allclose(distances[np.arange(101), labels], distances.min(axis=1), rtol=1e-4, atol=1)
    np.testing.assert_allclose(scores + (x**2).sum(axis=1), distances.min(axis=1), rtol=1e-3, atol=1)


def test_products_do_not_depend_on_the_block():
    x, c = random_rows(50, 33), random_rows(20, 33, 2)
    whole = products(x, c)
    np.testing.assert_array_equal(whole, np.concatenate([products(x[i : i + 1], c) for i in range(50)]))


@given(st.integers(1, 12), st.integers(1, 64), st.integers(1, 10**6), st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_selection_limit(live, keep, spread, seed):
    minima = np.random.default_rng(seed).integers(-spread, spread, live * LANES).astype(np.int32)
    limit = encoding_kernels.selection_limit(minima, live, keep)
    exact = naive.selection_limit(minima, keep, encoding_kernels.NO_SCORE // 2)
    assert limit >= exact
    assert exact == encoding_kernels.NO_SCORE // 2 or (minima < limit).sum() <= keep + keep // 4


@given(st.integers(1, 12), st.sampled_from([64, 128, 256]), st.integers(1, 64), st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_select_paths(live, padded, keep, seed):
    scores = np.random.default_rng(seed).integers(-100, 100, (live, padded)).astype(np.int32)
    minima = scores.reshape(live, -1, LANES).min(axis=1).ravel()
    keys = np.empty(keep, np.int64)
    found = encoding_kernels.select_paths(scores.ravel(), padded, minima, live, keep, keys)
    expected = [(score << 16) + (path << 8) + word for score, path, word in naive.select_paths(scores, keep)]
    assert list(keys[:found]) == expected


@given(st.integers(1, 12), st.integers(1, 64), st.integers(1, 10**6), st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_short_limit(live, keep, gap, seed):
    spread = 10 ** (1 + seed % 6)
    scores = np.random.default_rng(seed).integers(-spread, spread, live * LANES).astype(np.int32)
    keep = min(keep, len(scores))
    limit = short_encoding_kernels.short_limit(scores, live, keep, int(scores.min()), gap)
    exact = naive.short_limit(scores, keep)
    assert limit >= exact
    ranked = live * LANES <= short_encoding_kernels.MOST_RANKED and keep > 1
    assert ranked or (scores < limit).sum() <= keep + keep // 2


@pytest.mark.parametrize("sizes", [(5,), (3, 7, 2), (1, 16), (16,) * 16, (100, 64, 65), (256,) * 3])
@pytest.mark.parametrize("beam", [1, 3, 10, 33])
@pytest.mark.parametrize("spread", [1, 0.05])
def test_encode_rows_is_the_integer_beam(sizes, beam, spread):
    dictionaries, x = random_dictionaries(sizes, 9, shrink=spread), random_rows(7, 9)
    beam_tables = BeamTables(dictionaries.words, dictionaries.layout)
    tables, codes = beam_tables.tables(0), np.empty((7, len(sizes)), np.uint8)
    if beam_tables.is_short:
        scratch = make_short_scratch(tables, beam)
        counts = np.asarray(sizes, np.int64)
        short_encoding_kernels.encode_short_rows(x, tables, counts, scratch, codes)
    else:
        encoding_kernels.encode_rows(x, tables, make_scratch(tables, beam), codes)
    own = np.empty((TILE_ROWS * 2, len(tables.start)), np.int32)
    rows = np.concatenate((x, np.zeros((5, 9), np.float32)))
    distances_kernels.multiply_rows(rows, tables.panels, tables.start, own)
    cross = [
        [
            tables.cross[tables.cross_start[m, j] :][: sizes[j] * tables.padded[m]].reshape(sizes[j], -1)
            for j in range(m)
        ]
        for m in range(len(sizes))
    ]
    for terms, code in zip(own, codes, strict=False):
        parts = [terms[first : first + size] for first, size in zip(tables.first, sizes, strict=True)]
        assert tuple(code) == naive.encode_row(parts, cross, beam)


@pytest.mark.parametrize("dimension", [1, 3, 100, 128, 960])
def test_encode_rows_finds_what_an_exact_beam_finds(dimension):
    sizes = (7, 33, 64)
    dictionaries, x = random_dictionaries(sizes, dimension), random_rows(23, dimension)
    codes = Encoder(dictionaries, 5).encode(x)
    expected = naive.encode_rows(x, parts_of(dictionaries), 5).astype(np.uint8)
    # 16-bit tables may turn a near tie; the error is what counts, beside that of one unit.
    unit = 2e-4 * (x**2).sum(axis=1).mean()
    np.testing.assert_allclose(
        errors(x, dictionaries, codes), errors(x, dictionaries, expected), rtol=2e-3, atol=unit
    )
    assert dimension < 100 or (codes == expected).all(axis=1).mean() > 0.9


@pytest.mark.parametrize("levels", range(1, 17))
def test_every_number_of_dictionaries(levels):
    dictionaries, x = random_dictionaries((12,) * levels, 8), random_rows(9, 8)
    codes = Encoder(dictionaries, 4).encode(x)
    expected = naive.encode_rows(x, parts_of(dictionaries), 4).astype(np.uint8)
    ours, exact = errors(x, dictionaries, codes).sum(), errors(x, dictionaries, expected).sum()
    assert ours <= 1.02 * exact + 1e-4 * (x**2).sum()


def test_wider_beams_lower_the_error():
    dictionaries, x = random_dictionaries((32,) * 6, 16), random_rows(200, 16)
    totals = [
        errors(x, dictionaries, Encoder(dictionaries, beam).encode(x)).mean() for beam in (1, 2, 4, 16, 64)
    ]
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] < 0.9 * totals[0]


@pytest.mark.parametrize("sizes", [(40, 256, 3), (300, 20, 20)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, np.int16])
def test_blocks_and_number_types_change_no_byte(sizes, dtype):
    dictionaries = random_dictionaries(sizes, 10)
    x = np.random.default_rng(5).integers(0, 256, (501, 10)).astype(dtype)
    encoder = Encoder(dictionaries, 7)
    whole = encoder.encode(x)
    out = np.empty_like(whole)
    for start, stop in ((0, 1), (1, 98), (98, 400), (400, 501)):
        encoder.encode(x[start:stop], out[start:stop])
    np.testing.assert_array_equal(whole, out)
    np.testing.assert_array_equal(whole, encoder.encode(x.astype(np.uint8)))
    np.testing.assert_array_equal(whole, encoder.encode(np.asfortranarray(x)))
    np.testing.assert_array_equal(whole[::3], encoder.encode(x[::3]))


def test_far_outliers_are_encoded_like_an_exact_beam_would():
    dictionaries, x = random_dictionaries((20, 30, 40), 6), random_rows(40, 6)
    x *= np.logspace(0, 11, 40, dtype=np.float32)[:, None]
    codes = Encoder(dictionaries, 5).encode(x)
    exact = naive.encode_rows(x, parts_of(dictionaries), 5).astype(np.uint8)
    np.testing.assert_allclose(errors(x, dictionaries, codes), errors(x, dictionaries, exact), rtol=2e-3)
    np.testing.assert_array_equal(codes[-1], Encoder(dictionaries, 5).encode(x[-1:])[0])


@pytest.mark.parametrize("scale", [0.0, 2.0**-30, 2.0**30])
def test_tiny_zero_and_huge_words(scale):
    dictionaries = random_dictionaries((5, 6, 7), 4)
    scaled = Dictionaries(dictionaries.words * np.float32(scale), dictionaries.layout)
    x = random_rows(30, 4) * np.float32(scale or 1)
    codes = Encoder(scaled, 3).encode(x)
    if scale:
        np.testing.assert_array_equal(codes, Encoder(dictionaries, 3).encode(random_rows(30, 4)))
    assert (codes < [5, 6, 7]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_unusable_rows_are_named(bad):
    x = random_rows(9000, 4)
    x[8999, 2] = bad
    with pytest.raises(ValueError, match="row 8999"):
        Encoder(random_dictionaries((5, 6), 4), 3).encode(x)


def test_bad_arguments_are_named():
    dictionaries = random_dictionaries((5, 6), 4)
    with pytest.raises(ValueError, match="beam 65"):
        Encoder(dictionaries, 65)
    with pytest.raises(ValueError, match=r"expected \(n, 4\)"):
        Encoder(dictionaries, 3).encode(np.zeros((3, 5)))
    with pytest.raises(ValueError, match="out"):
        Encoder(dictionaries, 3).encode(np.zeros((3, 4)), np.empty((3, 3), np.uint8))
    with pytest.raises(ValueError, match="complex"):
        Encoder(dictionaries, 3).encode(np.zeros((3, 4), complex))
    with pytest.raises(ValueError, match="NaN"):
        Encoder(Dictionaries(np.full((5, 4), np.nan, np.float32), CodeLayout((5,))), 3)
    assert Encoder(dictionaries, 3).encode(np.zeros((0, 4))).shape == (0, 2)


@pytest.mark.parametrize("sizes", [(5, 6, 7), (256,), (300, 9), (300,)])
def test_decoding_gives_the_sum_of_words(sizes):
    dictionaries = random_dictionaries(sizes, 4)
    labels = np.stack([np.random.default_rng(0).integers(0, size, 40) for size in sizes], axis=1)
    codes = dictionaries.layout.pack(labels)
    expected = sum(dictionaries.part(m)[labels[:, m]] for m in range(len(sizes)))
    np.testing.assert_allclose(dictionaries.decode(codes), expected, rtol=1e-4, atol=1e-3)
    assert dictionaries.decode(codes[:0]).shape == (0, 4)
    with pytest.raises(ValueError, match="expected uint8"):
        dictionaries.decode(codes.astype(np.int32))
    if sizes != (256,):
        with pytest.raises(ValueError, match="which has"):
            dictionaries.decode(np.full_like(codes, 255))


def test_nearest_groups():
    scores = np.random.default_rng(0).integers(0, 30, (13, 21)).astype(np.float32)
    found = np.empty((13, 6), np.int64)
    first_dictionary_kernels.nearest_groups(scores, 13, 21, found)
    np.testing.assert_array_equal(found, naive.nearest_groups(scores, 6))


def clustered_words(count, dimension=6):
    rng = np.random.default_rng(0)
    return (rng.normal(size=(30, dimension)).repeat(count // 30 + 1, axis=0)[:count] * 60).astype(
        np.float32
    ) + (rng.normal(size=(count, dimension)).astype(np.float32) * 8)


def test_scan_group_with_all_groups_probed_is_exact():
    words = clustered_words(1500)
    words[700] = words[3]
    x = words[np.random.default_rng(1).integers(0, 1500, 331)] + random_rows(331, 6) * np.float32(0.02)
    labels, scores = TwoStage(words, probes=10**6).assign(x)
    expected_labels, expected_scores = naive.scan_group(x, words)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-4, atol=0.5)
    assert (labels == expected_labels).mean() > 0.99
    assert not (labels == 700).any()


def test_two_stages_lose_little_and_ignore_blocks():
    words = clustered_words(5000)
    x = words[np.random.default_rng(1).integers(0, 5000, 501)] + random_rows(501, 6) * np.float32(0.1)
    chooser = TwoStage(words)
    labels, _ = chooser.assign(x)
    exact, _ = NearestWord(words).assign(x)
    lost, least = ((x - words[labels]) ** 2).sum(), ((x - words[exact]) ** 2).sum()
    assert lost <= 1.01 * least
    np.testing.assert_array_equal(
        labels, np.concatenate([chooser.assign(x[i : i + 50])[0] for i in range(0, 501, 50)])
    )


def test_words_that_pad_a_dictionary_are_never_part_of_a_path():
    """A first word far from zero makes the scores behind it very low, those of padding too."""
    row = np.full((1, 8), 200, np.uint8)
    words = np.zeros((3, 8), np.float32)
    words[0] = row[0]
    tables = BeamTables(words, CodeLayout((1, 1, 1))).tables(0)
    scratch = make_scratch(tables, 4)
    scratch.labels[:] = 0
    encoding_kernels.encode_rows(row, tables, scratch, np.empty((1, 3), np.uint8))
    assert not scratch.labels.any()
