"""Rows as they are quantized: moved to their mean, scaled, and pulled in where they are far from all others.

    y = (x - mean) · 2^exponent

Integer tables, norms of one byte and sums in float32 resolve a fixed share of the longest vector there is.
Neither an offset that all rows have, nor the unit they are measured in, nor a few rows far from the others
may use up that share. Most data need no mean and no exponent, and keep their bytes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FAR_MEAN = 4.0
"""The mean is subtracted if its squared length exceeds this multiple of the variance of the rows.

Below it norms of one byte lose little: real SIFT has .9, GIST 1.6, random bytes 3.
"""

COMMON = 0.99
FAR_ROW = 2.0
"""A row farther from the middle than this multiple of the COMMON quantile of all rows is not trained on."""

FAR = 2.0
"""A row longer than this multiple of the longest training row counts as far from all others."""

SMALLEST_LENGTH, LARGEST_LENGTH = 2.0**-8, 2.0**20
"""Rows of a root mean square length within these bounds are not scaled."""

PRODUCT_REACH = 2.0**20
"""How much longer than training rows a far row may stay for inner products, where length counts."""

QUERY_REACH, LONGEST_QUERY = 2.0**6, 2.0**60
"""How much longer than training rows a query may be, and how long in any case, before it is pulled in."""

PIECE_VALUES = 1 << 17
"""Numbers that are float64 at a time."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Transform:
    """What the training rows of a set of dictionaries gave.

    mean : (d,) float64; None if none is subtracted.
    exponent : of the power of two that rows are multiplied by.
    reach : length of the longest training row, as it is quantized; inf if no row is far from the others.
    limit : length that far rows are pulled in to if they are longer.
    """

    mean: NDArray[np.float64] | None = None
    exponent: int = 0
    reach: float = math.inf
    limit: float = math.inf

    @property
    def plain(self) -> bool:
        """Whether rows are quantized as they are, but for those that are pulled in."""
        return self.mean is None and self.exponent == 0

    @property
    def unit(self) -> float:
        """The length that quantized rows have for each unit of length of the rows themselves."""
        return 2.0**self.exponent

    def apply(self, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Rows (n, d) as they are quantized, and the numbers of those far from all others, ascending.

        Writes to rows of float32; others become float32 if anything is to be done.
        """
        if self.plain and self._reaches_all(rows):
            return rows, np.empty(0, np.int64)
        numbers: list[NDArray[np.int64]] = []
        out = rows
        for first, part, lengths in self._pieces(rows):
            far = np.flatnonzero(lengths > FAR * self.reach)
            with np.errstate(invalid="ignore"):  # infinity becomes NaN, which is refused later
                part[far] *= np.minimum(1, self.limit / lengths[far])[:, None]
            if len(far) or not self.plain:
                out = out.astype(np.float32, copy=False)
                out[first : first + len(part)] = part
            numbers.append(first + far)
        return out, np.concatenate(numbers)

    def apply_to_near(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The same without the rows that are far: those to train on."""
        moved, far = self.apply(rows)
        return np.delete(moved, far, axis=0) if len(far) else moved

    def apply_to_queries(self, queries: NDArray[np.float32]) -> NDArray[np.float64] | None:
        """Transform queries (q, d) in place; returns how much shorter each became, (q,) float64, if any did.

        A query that is far from all rows is pulled in along the line to their middle: the order of its
        answers stays, and float32 resolves their distances.
        """
        most = min(QUERY_REACH * self.reach, LONGEST_QUERY)
        cut: NDArray[np.float64] | None = None
        step = _piece_rows(queries)
        for first in range(0, len(queries), step):
            part = queries[first : first + step]
            # Of a single query this takes a few microseconds, as it must.
            moved = part if self.plain else self._moved(part)
            if np.vdot(moved, moved) > most * most:
                moved = self._moved(part)
                lengths = np.sqrt(np.vecdot(moved, moved))
                far = np.flatnonzero(lengths > most)
                moved[far] *= (most / lengths[far])[:, None]
                cut = np.zeros(len(queries)) if cut is None else cut
                cut[first + far] = lengths[far] - most
            if moved is not part:
                part[:] = moved
        return cut

    def restore(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Quantized vectors (n, d) among the rows again, in place."""
        if self.plain:
            return vectors
        step = _piece_rows(vectors)
        for first in range(0, len(vectors), step):
            part = vectors[first : first + step] / self.unit
            vectors[first : first + step] = part if self.mean is None else part + self.mean
        return vectors

    def _reaches_all(self, rows: NDArray[Any]) -> bool:
        """Whether no row is far: for most blocks a short look in float32 is all that is needed."""
        if self.reach == math.inf:
            return True
        most, step = (FAR * self.reach) ** 2, _piece_rows(rows)
        for first in range(0, len(rows), step):
            part = rows[first : first + step].astype(np.float32, copy=False)
            with np.errstate(over="ignore"):
                if not (np.vecdot(part, part) <= most).all():
                    return False
        return True

    def _moved(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Rows (n, d) moved and scaled."""
        moved = rows.astype(np.float64) if self.mean is None else rows - self.mean
        if self.exponent:
            moved *= self.unit
        return moved

    def _pieces(self, rows: NDArray[Any]) -> Iterator[tuple[int, NDArray[np.float64], NDArray[np.float64]]]:
        """Some rows at a time, moved and scaled: the number of the first, the rows, and their lengths."""
        step = _piece_rows(rows)
        for first in range(0, max(1, len(rows)), step):
            part = self._moved(rows[first : first + step])
            yield first, part, np.sqrt(np.vecdot(part, part))


def find_transform(sample: NDArray[Any], *, centred: bool = True, products: bool = False) -> Transform:
    """What makes rows like those of `sample` (n, d) easy to quantize, whatever a few of them are like.

    centred : whether a mean may be subtracted; not where queries are compared with words by their angle
    products : whether inner products are compared, and not distances
    """
    if len(sample) == 0:
        return Transform()
    rows = sample.astype(np.float64)
    apart = rows - np.median(rows, axis=0)
    lengths = np.sqrt(np.vecdot(apart, apart))
    common = float(np.quantile(lengths, COMMON, method="lower"))
    near = lengths <= (FAR_ROW * common if common > 0 else math.inf)
    rows = rows[near]
    mean = rows.mean(axis=0)
    apart = rows - mean
    variance, square = float(np.vecdot(apart, apart).mean()), float(mean @ mean)
    moves = centred and square > FAR_MEAN * variance
    length = math.sqrt(variance if moves else variance + square)
    scales = length > 0 and not SMALLEST_LENGTH <= length < LARGEST_LENGTH
    exponent = -math.floor(math.log2(length)) if scales else 0
    rows = (apart if moves else rows) * 2.0**exponent
    reach = float(np.sqrt(np.vecdot(rows, rows).max())) if common > 0 else math.inf
    return Transform(
        mean=mean if moves else None,
        exponent=exponent,
        reach=reach,
        limit=reach * PRODUCT_REACH if products else reach,
    )


def _piece_rows(rows: NDArray[Any]) -> int:
    dimension: int = rows.shape[1]
    return max(1, PIECE_VALUES // max(1, dimension))
