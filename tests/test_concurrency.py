"""Readers while the index is replaced: each sees the old index or the new one, whole."""

import subprocess
import sys
import time

import pytest
from small_index import make_index, make_sample

READER = """
import sys, time
import numpy as np
from aggtree.engine.params import SearchParams
from aggtree.storage.index_reader import open_index

path, rounds, seconds = sys.argv[1], 0, float(sys.argv[2])
query = np.zeros((1, 5), np.float32)
kept = open_index(path)
expected = {}


def answer(index):
    ids, distances = index.search(query, 5, SearchParams.unlimited())
    return ids.tobytes() + distances.tobytes()


first = answer(kept)
print("ready", flush=True)
end = time.monotonic() + seconds
while time.monotonic() < end:
    with open_index(path) as index:
        rows, now = len(index), answer(index)
    # The answer of one build never changes, and a map once open keeps its build.
    assert expected.setdefault(rows, now) == now, rows
    assert answer(kept) == first
    rounds += 1
print(sorted(expected), rounds)
"""


@pytest.mark.parametrize(
    ("readers", "seconds"), [(2, 4), pytest.param(8, 60, marks=pytest.mark.slow)], ids=["short", "full"]
)
def test_readers_see_whole_indexes_while_it_is_replaced(tmp_path, readers, seconds):
    index = tmp_path / "i"
    samples = [make_sample(rows, (20, 7, 6), seed=rows) for rows in (100, 120)]
    make_index(index, samples[0], name="0")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", READER, index, str(seconds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(readers)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
    commits, end = 0, time.monotonic() + seconds
    while time.monotonic() < end - 0.5:
        commits += 1
        make_index(index, samples[commits % 2], name=str(commits % 2))
    answers = [process.communicate(timeout=120) for process in processes]
    for process, (out, err) in zip(processes, answers, strict=True):
        assert process.returncode == 0, err
        assert out.startswith("[100"), out
    assert commits >= 2
