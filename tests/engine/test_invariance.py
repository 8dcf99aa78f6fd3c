"""Answers do not depend on where data lie, how large their numbers are, or what a few rows are like.

`make invariance` looks at hundreds of cases of each property.
"""

import pytest
from helpers.invariance import PROPERTIES, Change, losses
from helpers.sizes import many_rows

from aggtree.engine.params import Metric

FEW = 6
pytestmark = many_rows


@pytest.mark.parametrize("planes", [False, True], ids=["records", "planes"])
@pytest.mark.parametrize(
    ("metric", "change"), PROPERTIES, ids=lambda value: getattr(value, "__name__", value)
)
def test_recall_is_that_of_plain_rows(metric: Metric, change: Change, planes: bool) -> None:
    found = losses(metric, change, planes=planes, cases=FEW)
    assert found.silent == 0, f"lost {found.lost}"
    assert len(found.lost) + found.reported == FEW
