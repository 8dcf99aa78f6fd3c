"""Exact nearest neighbours of a block of queries over a stream of rows.

One matrix product per block finds the few rows that may be near; their distances are then computed
exactly, in a fixed order, so the answer does not depend on how the rows were cut into blocks.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.exact.neighbours_kernels import COSINE, Nearest, Products, merge_rows
from aggtree.engine.exact.unit_kernels import scale_to_unit
from aggtree.engine.params import METRICS, Metric

# Products held at once: 16 MiB of float32.
PRODUCTS = 1 << 22
HALF_ULP = 2.0**-24


class ExactSearch:
    """Running k nearest rows of each query.

    queries : (d,) or (q, d), integers or floats
    metric : l2 for squared distances, ip for minus the inner product, cosine for 1 - the cosine
    """

    def __init__(self, queries: ArrayLike, k: int, metric: Metric = "l2") -> None:
        block = np.asarray(queries)
        block = block[None, :] if block.ndim == 1 else block
        if block.ndim != 2 or 0 in block.shape:
            raise ValueError(f"queries of shape {np.shape(queries)}: expected (d,) or (q, d), not empty")
        if k < 1:
            raise ValueError(f"k {k}: expected 1 or more")
        self.queries = _checked(block, "query", 0)
        self.rows = 0
        self._kind = METRICS.index(metric)
        self._floats = self._comparable(self.queries)
        if np.isnan(self._floats).any():
            row = int(np.flatnonzero(np.isnan(self._floats).any(axis=1))[0])
            raise ValueError(f"query {row} is all zeros: it has no direction")
        self._squares = _squares(self._floats)
        # A float32 sum of d products errs by at most d half-ulps of Σ|q·x|, and 2Σ|q·x| <= ‖q‖² + ‖x‖².
        self._slack = np.float32((2 * block.shape[1] + 16) * HALF_ULP)
        shape = (len(block), k)
        self._nearest = Nearest(np.full(shape, np.inf), np.full(shape, -1, np.int64))

    def add(self, rows: NDArray[np.generic], first_id: int) -> None:
        """Add rows (r, d) whose ids are first_id, first_id + 1, ..."""
        if rows.ndim != 2 or rows.shape[1] != self.queries.shape[1]:
            raise ValueError(f"rows of shape {rows.shape}: expected (r, {self.queries.shape[1]})")
        step = max(1, PRODUCTS // len(self.queries))
        for start in range(0, len(rows), step):
            block = _checked(rows[start : start + step], "row", first_id + start)
            floats = self._comparable(block)
            with np.errstate(over="ignore", invalid="ignore"):
                products = Products(
                    self._floats @ floats.T, self._squares, _squares(floats), self._slack, self._kind
                )
            merge_rows(self.queries, block, products, first_id + start, self._nearest)
        self.rows += len(rows)

    def _comparable(self, rows: NDArray[np.generic]) -> NDArray[np.float32]:
        """Rows as float32, for cosine of length 1."""
        if self._kind != COSINE:
            return rows.astype(np.float32)
        floats = np.empty(rows.shape, np.float32)
        scale_to_unit(rows, floats)
        return floats

    def result(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Ids (q, k) int64, distances (q, k) float32, nearest first, equal ones by id; -1 and inf."""
        order = np.lexsort((self._nearest.ids, self._nearest.distances))
        ids = np.take_along_axis(self._nearest.ids, order, axis=1)
        distances = np.take_along_axis(self._nearest.distances, order, axis=1)
        with np.errstate(over="ignore"):
            return ids, distances.astype(np.float32)


def _squares(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Squared norm of each row, (r,) float32."""
    with np.errstate(over="ignore"):
        squares: NDArray[np.float32] = np.vecdot(rows, rows)
    return squares


def _checked(rows: NDArray[np.generic], name: str, first: int) -> NDArray[np.generic]:
    """Contiguous rows; ValueError for rows without a distance."""
    if rows.dtype.kind not in "uif":
        raise ValueError(f"{name} of type {rows.dtype}: expected integers or floats")
    if rows.dtype.kind == "f":
        bad = ~np.isfinite(rows).all(axis=1)
        if bad.any():
            raise ValueError(f"{name} {first + int(np.flatnonzero(bad)[0])} holds NaN or infinity")
    return np.ascontiguousarray(rows, rows.dtype.newbyteorder("="))
