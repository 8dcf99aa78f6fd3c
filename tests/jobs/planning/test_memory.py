"""Sizes as users write them, and the measured peak of a process tree."""

import subprocess
import sys

import pytest

from aggtree.jobs.running.memory import (
    GIB,
    MIB,
    MemoryMeter,
    format_size,
    parse_size,
    release_memory,
    tree_memory,
)
from aggtree.storage.errors import MemoryBudgetError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 * GIB),
        ("800MB", 800_000_000),
        ("1.5g", 3 * GIB // 2),
        (" 512 MiB ", 512 * MIB),
        ("1000", 1000),
        (2048, 2048),
    ],
)
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "four", "4XB", "-1GB", "0", "GiB", "1e9"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(MemoryBudgetError, match="memory"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (GIB, "1 GiB"), (300 * MIB, "300 MiB")],
)
def test_sizes_are_written(size: int, text: str) -> None:
    assert format_size(size) == text


def test_the_peak_includes_children_and_stays_after_they_end() -> None:
    child = "import sys; block = bytearray(b'x' * (64 << 20)); print('ready', flush=True); sys.stdin.read()"
    release_memory()  # or what earlier tests left behind would be given back in the middle
    before = tree_memory()
    with MemoryMeter(interval=0.01) as meter:
        process = subprocess.Popen(
            [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        assert meter.take_stage_peak() >= before + 48 * MIB
        process.stdin.close()
        process.wait()
        process.stdout.close()
        assert meter.take_stage_peak() >= before + 48 * MIB
        assert meter.take_stage_peak() < before + 48 * MIB
    assert meter.peak >= before + 48 * MIB
    assert tree_memory() < meter.peak
