"""Vectors that are computed, never stored: `synthetic:sift?rows=100000000&seed=1`.

rows    how many rows (required)
seed    number of the set (0)
first   number of the first row (0); rows behind those of the base are queries of the same set:
        synthetic:sift?rows=1000&seed=1&first=10000000000
"""

from functools import cache
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.synthetic.sift import SyntheticSift
from aggtree.engine.synthetic.sift_kernels import SiftModel
from aggtree.storage.errors import SourceError
from aggtree.storage.sources.base import VectorSource
from aggtree.storage.sources.sift_model import load_model, model_path

MAX_NUMBER = 2**63 - 1
EXAMPLE = "write it as synthetic:sift?rows=1000000&seed=1"


class SyntheticSource(VectorSource):
    """Rows first..first + rows of an endless set of SIFT-like vectors."""

    def __init__(self, *, rows: int, seed: int, first: int) -> None:
        offset = f"&first={first}" if first else ""
        self.spec = f"synthetic:sift?rows={rows}&seed={seed}{offset}"
        self.rows = rows
        self.dimension = SyntheticSift.dimension
        self.dtype = np.dtype(np.uint8)
        self._first = first
        self._set = SyntheticSift(_model(), seed)

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        return self._set.read(self._first + start, self._first + stop)

    def take(self, rows: ArrayLike) -> NDArray[Any]:
        """The given rows, each computed independently."""
        numbers = np.asarray(rows)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise SourceError(f"{self.spec}: row numbers must be a list of integers, got {numbers.dtype}")
        if numbers.size and (numbers.min() < 0 or numbers.max() >= self.rows):
            raise SourceError(
                f"{self.spec}: rows {numbers.min()} to {numbers.max()} requested, it has {self.rows}"
            )
        return self._set.take(numbers.astype(np.uint64) + np.uint64(self._first))


@cache
def _model() -> SiftModel:
    return load_model(model_path())


def open_vectors(location: str, _name: str) -> SyntheticSource:
    """Open `synthetic:sift?rows=N`, with `seed` and `first` if wanted."""
    kind, _, query = location.removeprefix("synthetic:").partition("?")
    if kind != "sift":
        raise SourceError(f"{location}: unknown generated source {kind!r}: {EXAMPLE}")
    numbers = {"rows": 0, "seed": 0, "first": 0}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in numbers:
            raise SourceError(f"{location}: unknown setting {key!r}, it has {', '.join(numbers)}: {EXAMPLE}")
        digits = value.replace("_", "")
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 20 and int(digits) <= MAX_NUMBER):
            raise SourceError(f"{location}: {key}={value!r} is no integer from 0 to 2**63 - 1: {EXAMPLE}")
        numbers[key] = int(digits)
    if numbers["rows"] < 1 or numbers["first"] + numbers["rows"] > MAX_NUMBER:
        raise SourceError(f"{location}: rows={numbers['rows']}, expected 1 or more: {EXAMPLE}")
    return SyntheticSource(**numbers)
