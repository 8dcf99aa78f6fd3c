"""Sets of rows as a user names them: by ids, own ones if the index has them, or by a boolean for each row."""

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.search.filters import Filter
from aggtree.storage.index.own_ids import OwnIds
from aggtree.storage.sources.base import absolute
from aggtree.storage.sources.formats.npy import read_numbers

Within = NDArray[np.bool_] | NDArray[np.integer] | Sequence[int] | range | str | os.PathLike[str] | Filter
"""A boolean for each row, ids as a range, an array or a .npy file of either, or a filter made of them."""


def make_filter(within: Within, rows: int, own_ids: OwnIds | None) -> Filter:
    """The rows a user allows, of an index of `rows` rows; ValueError for a row that the index lacks."""
    if isinstance(within, Filter):
        if within.rows != rows:
            raise ValueError(
                f"within: a filter of {within.rows} rows for an index of {rows}: make it again with `filter`"
            )
        return within
    if isinstance(within, (str, os.PathLike)):
        within = read_numbers(absolute(os.fspath(within)))
    if isinstance(within, range):
        if within.step != 1:
            raise ValueError(f"within: {within}: expected a range of step 1")
        return _of_range(within, rows, own_ids)
    values = np.asarray(within)
    if values.dtype == np.bool_:
        if values.shape != (rows,):
            raise ValueError(
                f"within: booleans of shape {values.shape}: expected ({rows},), one for each row"
            )
        return Filter.of_mask(values)
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise ValueError(f"within: {values.dtype} of shape {values.shape}: expected booleans or ids")
    if own_ids is not None:
        values = _rows_of(own_ids, values)
    return Filter.of_rows(values.astype(np.int64), rows)


def _rows_of(own_ids: OwnIds, ids: NDArray[np.integer]) -> NDArray[np.int64]:
    try:
        return own_ids.rows_of(ids)
    except ValueError as error:
        raise ValueError(f"within: {error}") from error


def _of_range(ids: range, rows: int, own_ids: OwnIds | None) -> Filter:
    if own_ids is not None:
        return Filter.of_mask(own_ids.between(ids.start, ids.stop))
    mask = np.zeros(rows, np.bool_)
    mask[max(0, ids.start) : max(0, ids.stop)] = True
    return Filter.of_mask(mask)
