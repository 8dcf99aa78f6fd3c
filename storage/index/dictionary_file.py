"""Dictionaries with their transform and norm ranges, and the trainer's checkpoint: one array file each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.params import AnnealingParams
from aggtree.engine.transform import Transform
from aggtree.storage.array_file import ArrayFile, write_arrays
from aggtree.storage.checksums import BlockChecksums
from aggtree.storage.errors import IndexFormatError

DICTIONARY_KIND = "dictionaries"
STATE_KIND = "trainer state"
LARGEST_EXPONENT = 256
"""No finite float32 rows need a larger one, or a smaller negative one."""


def save_dictionaries(
    path: Path, dictionaries: Dictionaries, norm_ranges: NDArray[np.float32]
) -> BlockChecksums:
    """Write dictionaries and the norm ranges (M + 1, 2) float32 learned with them."""
    transform = dictionaries.transform
    arrays: dict[str, NDArray[Any]] = {
        "sizes": np.asarray(dictionaries.layout.words, np.int64),
        "words": np.asarray(dictionaries.words, np.float32),
        "norm_ranges": np.asarray(norm_ranges, np.float32),
    }
    if transform.mean is not None:
        arrays["mean"] = np.asarray(transform.mean, np.float64)
    if transform.exponent:
        arrays["exponent"] = np.asarray([transform.exponent], np.int64)
    if transform.reach < np.inf:
        arrays["reach"] = np.asarray([transform.reach, transform.limit], np.float64)
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
    transform = Transform(
        mean=np.array(arrays["mean"]) if "mean" in arrays else None,
        exponent=int(arrays["exponent"][0]) if "exponent" in arrays else 0,
        reach=float(arrays["reach"][0]) if "reach" in arrays else np.inf,
        limit=float(arrays["reach"][1]) if "reach" in arrays else np.inf,
    )
    return Dictionaries(arrays["words"], layout, transform), arrays["norm_ranges"]


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
    _check_transform(path, arrays)


def _check_transform(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """IndexFormatError for numbers that no build writes."""
    expected = {"mean": ("<f8", arrays["words"].shape[1]), "exponent": ("<i8", 1), "reach": ("<f8", 2)}
    for name, (dtype, length) in expected.items():
        array = arrays.get(name)
        if array is None:
            continue
        if array.dtype.str != dtype or array.shape != (length,) or not np.isfinite(array).all():
            raise IndexFormatError(f"{path}: array {name} is of another dtype or shape, or not finite")
    if "exponent" in arrays and abs(int(arrays["exponent"][0])) > LARGEST_EXPONENT:
        raise IndexFormatError(f"{path}: exponent {arrays['exponent'][0]}, beyond {LARGEST_EXPONENT}")
    if "reach" in arrays and arrays["reach"].min() < 0:
        raise IndexFormatError(f"{path}: reach {arrays['reach'].min()}, below 0")
