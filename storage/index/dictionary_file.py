"""Dictionaries with their norm ranges, and the trainer's checkpoint: one array file each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.params import AnnealingParams
from aggtree.storage.array_file import ArrayFile, write_arrays
from aggtree.storage.checksums import BlockChecksums
from aggtree.storage.errors import IndexFormatError

DICTIONARY_KIND = "dictionaries"
STATE_KIND = "trainer state"


def save_dictionaries(
    path: Path, dictionaries: Dictionaries, norm_ranges: NDArray[np.float32]
) -> BlockChecksums:
    """Write dictionaries and the norm ranges (M + 1, 2) float32 learned with them."""
    arrays: dict[str, NDArray[Any]] = {
        "sizes": np.asarray(dictionaries.layout.words, np.int64),
        "words": np.asarray(dictionaries.words, np.float32),
        "norm_ranges": np.asarray(norm_ranges, np.float32),
    }
    _check(path, arrays)
    return write_arrays(path, DICTIONARY_KIND, arrays)


def load_dictionaries(path: Path) -> tuple[Dictionaries, NDArray[np.float32]]:
    """Read dictionaries and norm ranges (M + 1, 2) float32, mapped read-only.

    The sizes and the shapes are checked here; the checksums of the words by `verify`.
    """
    with ArrayFile(path, DICTIONARY_KIND) as file:
        arrays = file.arrays()
    _check(path, arrays)
    layout = CodeLayout(tuple(int(size) for size in arrays["sizes"]))
    return Dictionaries(arrays["words"], layout), arrays["norm_ranges"]


def save_state(path: Path, state: Mapping[str, NDArray[Any]]) -> BlockChecksums:
    """Write a checkpoint of the trainer: any number of named arrays."""
    return write_arrays(path, STATE_KIND, state)


def load_state(path: Path) -> dict[str, NDArray[Any]]:
    """Read a checkpoint of the trainer into memory, checking every byte of it."""
    with ArrayFile(path, STATE_KIND) as file:
        file.check()
        return {name: array.copy() for name, array in file.arrays().items()}


def _check(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    expected = {"sizes": ("<i8", 1), "words": ("<f4", 2), "norm_ranges": ("<f4", 2)}
    for name, (dtype, dimensions) in expected.items():
        array = arrays.get(name)
        if array is None or array.dtype.str != dtype or array.ndim != dimensions:
            raise IndexFormatError(f"{path}: array {name} is missing or of another dtype or shape")
    try:
        AnnealingParams(words=tuple(int(size) for size in arrays["sizes"]))
    except ValueError as error:
        raise IndexFormatError(f"{path}: {error}") from error
    if len(arrays["words"]) != arrays["sizes"].sum() or arrays["words"].shape[1] < 1:
        raise IndexFormatError(f"{path}: words of shape {arrays['words'].shape} do not fit the sizes")
    if arrays["norm_ranges"].shape != (len(arrays["sizes"]) + 1, 2):
        raise IndexFormatError(f"{path}: norm ranges of shape {arrays['norm_ranges'].shape}")
