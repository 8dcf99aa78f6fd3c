"""Codes and their bytes, narrow and wide, and what cannot be a code."""

import numpy as np
import pytest

from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.params import AnnealingParams, SearchParams, TreeParams, dictionary_sizes, parse_words

LAYOUTS = [(5,), (256,) * 8, (3, 7, 2), (257, 4), (65_536, 256, 256), (300,) + (16,) * 15]


def labels_of(sizes: tuple[int, ...], rows: int = 23) -> np.ndarray:
    rng = np.random.default_rng(len(sizes))
    return np.stack([rng.integers(size, size=rows) for size in sizes], axis=1)


@pytest.mark.parametrize("sizes", LAYOUTS, ids=str)
def test_packing_labels_and_back_is_the_identity(sizes: tuple[int, ...]) -> None:
    layout, labels = CodeLayout(sizes), labels_of(sizes)
    codes = layout.pack(labels)
    assert codes.shape == (23, layout.width) and codes.dtype == np.uint8
    np.testing.assert_array_equal(layout.labels(codes), labels)


@pytest.mark.parametrize("sizes", LAYOUTS, ids=str)
def test_codes_sorted_as_bytes_are_sorted_as_labels(sizes: tuple[int, ...]) -> None:
    layout, labels = CodeLayout(sizes), labels_of(sizes)
    by_bytes = sorted(range(len(labels)), key=lambda row: bytes(layout.pack(labels)[row]))
    by_labels = sorted(range(len(labels)), key=lambda row: tuple(labels[row]))
    assert by_bytes == by_labels


@pytest.mark.parametrize("sizes", LAYOUTS, ids=str)
def test_decoding_adds_one_word_of_each_dictionary(sizes: tuple[int, ...]) -> None:
    words = np.random.default_rng(0).integers(-9, 9, (sum(sizes), 3)).astype(np.float32)
    dictionaries, labels = Dictionaries(words, CodeLayout(sizes)), labels_of(sizes)
    expected = [sum(dictionaries.part(m)[label] for m, label in enumerate(row)) for row in labels]
    np.testing.assert_array_equal(dictionaries.decode(dictionaries.layout.pack(labels)), expected)


def test_what_is_no_code_is_refused() -> None:
    dictionaries = Dictionaries(np.zeros((5, 2), np.float32), CodeLayout((3, 2)))
    with pytest.raises(ValueError, match="label 2 of dictionary 2, which has 2 words"):
        dictionaries.decode(np.array([[0, 2]], np.uint8))
    with pytest.raises(ValueError, match=r"expected uint8 \(n, 2\)"):
        dictionaries.decode(np.zeros((1, 3), np.uint8))
    with pytest.raises(ValueError, match="do not fit"):
        Dictionaries(np.zeros((4, 2), np.float32), CodeLayout((3, 2)))


def test_sizes_are_read_as_written() -> None:
    assert parse_words("4096,256x8") == (4096, *(256,) * 8)
    assert dictionary_sizes(3, 16) == (16, 16, 16) and dictionary_sizes(None, [4, 5]) == (4, 5)
    for text in ("", "256x", "x8", "a", "4096;256"):
        with pytest.raises(ValueError, match="expected sizes"):
            parse_words(text)
    with pytest.raises(ValueError, match="leave one out"):
        dictionary_sizes(2, [4, 5, 6])


@pytest.mark.parametrize(
    "make",
    [
        lambda: AnnealingParams(words=()),
        lambda: AnnealingParams(words=(65_537,)),
        lambda: AnnealingParams(words=(256, 257)),
        lambda: AnnealingParams(beam=0),
        lambda: AnnealingParams(beam=65),
        lambda: AnnealingParams(cooling="slowly"),  # type: ignore[arg-type]
        lambda: TreeParams(bucket=0),
        lambda: TreeParams(bucket=2, direct_leaves=3),
        lambda: TreeParams(norm_bytes=3),  # type: ignore[arg-type]
        lambda: SearchParams(limits=(4, -1)),
    ],
)
def test_parameters_out_of_range_are_refused(make) -> None:
    with pytest.raises(ValueError, match="expected"):
        make()


def test_limits_of_the_paper_and_of_every_level() -> None:
    assert SearchParams.paper(start=4, growth=2, levels=3).limits == (8, 16, 32)
    assert SearchParams(limits=(3, 7)).per_level(4) == (3, 7, 7, 7)
    assert SearchParams.unlimited().per_level(2) == (0, 0)
