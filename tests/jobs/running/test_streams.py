"""Rows are read ahead of the computation, and never further than allowed."""

import threading
from typing import Any

import numpy as np
import pytest
from helpers.small_builds import vectors
from numpy.typing import NDArray

from aggtree.jobs.running.streams import as_dask_array, read_in_order
from aggtree.storage.sources.array import ArraySource

RANGES = [(start, start + 100) for start in range(0, 600, 100)]


class Watched(ArraySource):
    """Counts the ranges whose reading has begun."""

    def __init__(self) -> None:
        super().__init__(vectors(600))
        self.begun = 0
        self.changed = threading.Condition()

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        with self.changed:
            self.begun += 1
            self.changed.notify_all()
        return super()._read(start, stop)

    def wait_for(self, count: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.begun >= count, timeout=600)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_the_next_rows_are_read_while_these_are_computed(ahead: int) -> None:
    source = Watched()
    for number, rows in enumerate(read_in_order(as_dask_array(source, 100), RANGES, ahead)):
        # This is the computation of batch `number`: the following ones are being read meanwhile.
        expected = min(number + 1 + ahead, len(RANGES))
        assert source.wait_for(expected)
        assert source.begun == expected
        np.testing.assert_array_equal(rows, vectors(600)[slice(*RANGES[number])])
