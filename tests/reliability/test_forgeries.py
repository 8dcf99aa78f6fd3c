"""An index forged under checksums that match is refused in one line, or answers with rows that exist."""

import pytest

from reliability.long.forgeries import INDEXES, forge


@pytest.mark.parametrize("name", INDEXES)
def test_forged_indexes(tmp_path, name):
    counts = forge(tmp_path / "i", name, seed=7, count=40)
    assert (counts.get("forgeries"), counts.get("failed")) == (40, 0), counts
    assert counts["opened"] > 5
