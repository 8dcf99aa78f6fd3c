"""A set of rows that answers must come from, and how much wider a search must be to find them."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.params import SearchParams
from aggtree.engine.scan.records import RowBits

WIDENING = 0.25


@dataclass(frozen=True, eq=False)
class Filter:
    """Rows that may be answers.

    bits : (ceil(rows / 8),) uint8, bit i % 8 of byte i // 8 stands for the row i
    rows : of the source, count : how many are allowed
    """

    bits: NDArray[np.uint8]
    rows: int
    count: int

    @classmethod
    def of_mask(cls, mask: NDArray[np.bool_]) -> "Filter":
        """The rows for which a boolean array (rows,) is true."""
        return cls(np.packbits(mask, bitorder="little"), len(mask), int(np.count_nonzero(mask)))

    @classmethod
    def of_rows(cls, allowed: NDArray[np.integer], rows: int) -> "Filter":
        """The given row numbers, in any order; ValueError for a row that the index lacks."""
        if len(allowed) and not 0 <= int(allowed.min()) <= int(allowed.max()) < rows:
            wrong = int(allowed.min()) if allowed.min() < 0 else int(allowed.max())
            raise ValueError(f"within: row {wrong} is not in the index, which has rows 0 to {rows - 1}")
        mask = np.zeros(rows, np.bool_)
        mask[allowed] = True
        return cls.of_mask(mask)

    @property
    def row_bits(self) -> RowBits:
        """The bits as an argument of kernels."""
        return row_bits(self.bits)

    def among(self, allowed: NDArray[np.uint8]) -> "Filter":
        """The rows that are also among those whose bit is set in `allowed`, which has a bit for each."""
        bits = self.bits & allowed[: len(self.bits)]
        return Filter(bits, self.rows, int(np.bitwise_count(bits).sum()))

    @property
    def share(self) -> float:
        """The selectivity: allowed rows among all."""
        return self.count / self.rows

    @cached_property
    def allowed(self) -> NDArray[np.int64]:
        """The allowed rows, ascending, (count,) int64."""
        used = np.flatnonzero(self.bits)
        bits = np.unpackbits(self.bits[used], bitorder="little").reshape(-1, 8)
        byte, bit = np.nonzero(bits)
        return used[byte] * 8 + bit


def row_bits(bits: NDArray[np.uint8]) -> RowBits:
    """Bits of rows, beginning with row 0; always of one type."""
    view = np.asarray(bits).view()
    view.flags.writeable = False
    return RowBits(view, np.uint64(0), False)


ALL_ROWS = row_bits(np.empty(0, np.uint8))._replace(everything=True)
"""For kernels that are given no filter: with one type for both they are compiled once."""


def widening(share: float) -> float:
    """Factor by which more nodes must be kept when only a share of all rows is allowed.

    The k-th allowed neighbour is about the k/share-th of all. Measured on half a million SIFT vectors, R@10
    of .95 takes 40 nodes of level 1 at a share of 1/2, 56 at 1/20, 85 at 1/100.
    """
    return math.pow(1 / share, WIDENING)


def widened(params: SearchParams, factor: float) -> SearchParams:
    """The parameters with every limit and the pruning margin times a factor; 0, no limit, stays 0."""
    limits = tuple(math.ceil(limit * factor) for limit in params.limits)
    return SearchParams(limits=limits, pruning_ratio=1 + (params.pruning_ratio - 1) * factor)
