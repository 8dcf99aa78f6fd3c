"""A damaged index is an error, or an answer computed inside bounds; never a crash, and verify finds it."""

import subprocess
import sys
from pathlib import Path

import pytest
from small_index import make_index, make_sample

from aggtree.engine.params import TreeParams
from aggtree.storage.index_reader import open_index
from aggtree.storage.verify import verify_index

SAMPLES = {
    "wide": lambda: make_sample(3000, (300, 7, 256, 16)),
    "narrow": lambda: make_sample(2000, (9, 256, 200), params=TreeParams(bucket=20, norm_bytes=2)),
    "long": lambda: make_sample(2000, (20, *[30] * 8), params=TreeParams(bucket=32)),
    "exact": lambda: make_sample(1500, (5, 8, 4, 3, 2), params=TreeParams(bucket=1, norm_bytes=4)),
}


@pytest.mark.timeout(1600)
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_damage_never_crashes(tmp_path, name, count):
    index = tmp_path / "i"
    make_index(index, SAMPLES[name]())
    program = Path(__file__).with_name("damage_index.py")
    command = [sys.executable, program, index, "0", str(count)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert result.returncode == 0, (result.stdout + result.stderr)[-2000:]
    assert result.stdout.endswith(" 0 failures\n")
    assert verify_index(index) == []
    with open_index(index) as opened:
        assert len(opened) > 0
