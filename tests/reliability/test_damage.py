"""A damaged index is an error, or an answer computed inside bounds; never a crash, and verify finds it."""

import pytest
from helpers.sizes import sized

from aggtree.storage.index.reader import open_index
from aggtree.storage.verify.index import verify_index
from reliability.long.damage import SAMPLES, damage


@pytest.mark.parametrize("name", SAMPLES)
def test_damage_never_crashes(tmp_path, name):
    index = tmp_path / "i"
    flips, lies = sized(40, 20), sized(30, 15)
    counts = damage(index, name, seed=0, flips=flips, lies=lies)
    assert (counts["flips"], counts["lies"]) == (flips, lies)
    assert counts["cuts"] >= 10
    assert {what: count for what, count in counts.items() if count and "fail" in what} == {}
    assert verify_index(index) == []
    with open_index(index) as opened:
        assert len(opened) > 0
