"""Stage 4: parts of the tree. The (code, id) order of all runs is cut into partitions that fit the budget.

Splitters are rows of the runs themselves, so any skew is cut evenly, even when all codes are equal. A
partition takes a contiguous slice of every run; what it must know of its neighbours to decide as the whole
tree would is how many rows before and after it share the first labels of its first and last code.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.code_order import ranks_below, shared_after, shared_before, sort_codes
from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.params import TreeParams
from aggtree.engine.tree import build_part
from aggtree.jobs.costs import SAMPLES_PER_PART
from aggtree.jobs.tasks import Tick
from aggtree.storage.dictionary_file import load_dictionaries, load_state, save_state
from aggtree.storage.part_files import write_part
from aggtree.storage.run_files import open_run

GOLDEN = 2654435769  # 2³² over the golden ratio: multiples of it spread evenly

Splits = NDArray[np.int64]


def choose_splits(runs: Sequence[Path], part_rows: int) -> Splits:
    """Cut all runs into partitions of at most `part_rows` rows, (parts + 1, runs) int64 positions.

    Samples are taken anew and closer together until the largest partition is within bounds; when every
    row is a sample the cut is exact.
    """
    step = max(1, part_rows // SAMPLES_PER_PART)
    while True:
        codes, ids, counts = _samples(runs, step)
        parts = -(-int(counts.sum()) // max(1, part_rows - (part_rows // 8 if step > 1 else 0)))
        splits = _cut(runs, counts, codes, ids, parts)
        if step == 1 or np.diff(splits.sum(axis=1)).max() <= part_rows:
            return splits
        step = max(1, step // 4)


def _cut(
    runs: Sequence[Path],
    counts: NDArray[np.int64],
    codes: NDArray[np.uint8],
    ids: NDArray[np.unsignedinteger],
    parts: int,
) -> Splits:
    """Positions in each run of evenly spaced samples."""
    chosen = np.unique(len(ids) * np.arange(1, parts) // parts)
    splits = np.zeros((len(chosen) + 2, len(runs)), np.int64)
    splits[-1] = counts
    for number, path in enumerate(runs):
        with open_run(path) as run:
            splits[1:-1, number] = ranks_below(run.codes, run.ids, codes[chosen], ids[chosen])
    filled: Splits = splits[np.append(np.diff(splits.sum(axis=1)) > 0, True)]
    return filled


def _samples(
    runs: Sequence[Path], step: int
) -> tuple[NDArray[np.uint8], NDArray[np.unsignedinteger], NDArray[np.int64]]:
    """Every `step`-th row of each run, sorted together; and the rows of each run.

    Runs are alike, so each starts at another row: their errors then cancel out instead of adding up.
    """
    codes, ids, counts = [], [], []
    for number, path in enumerate(runs):
        first = (number * GOLDEN % 2**32) * step // 2**32
        with open_run(path) as run:
            codes.append(run.codes[first::step].copy())
            ids.append(run.ids[first::step].copy())
            counts.append(run.count)
    sorted_codes, sorted_ids = sort_codes(np.concatenate(codes), np.concatenate(ids))
    return sorted_codes, sorted_ids, np.asarray(counts, np.int64)


def save_splits(path: Path, splits: Splits) -> None:
    """Keep the partition for the tasks, and for a build that is resumed."""
    save_state(path, {"splits": splits})


def load_splits(path: Path) -> Splits:
    """(parts + 1, runs) int64: partition p takes rows splits[p, r]..splits[p + 1, r] of run r."""
    return load_state(path)["splits"]


@dataclass(frozen=True, kw_only=True)
class BuildTask:
    """Partition `number` of the order of all runs, built into the file `part`."""

    number: int
    rows: int
    runs: tuple[Path, ...]
    splits: Path
    dictionaries: Path
    tree: TreeParams
    part: Path


def build_partition(task: BuildTask, tick: Tick) -> dict[str, Any]:
    """Build one part and write it; returns its counts and checksum."""
    dictionaries, norm_ranges = load_dictionaries(task.dictionaries)
    start, stop = load_splits(task.splits)[task.number : task.number + 2]
    codes, ids = sort_codes(*_read_partition(task.runs, start, stop))
    before, after = _neighbours(task.runs, (start, stop), (codes[0], codes[-1]), dictionaries.layout)
    part = build_part(codes, ids, dictionaries, task.tree, norm_ranges, before, after)
    checksums = write_part(task.part, part)
    return {"rows": len(ids), "bytes": checksums.bytes, "crc": checksums.crc}


def _read_partition(
    runs: Sequence[Path], start: NDArray[np.int64], stop: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.unsignedinteger]]:
    """The slices of all runs one after another: each is sorted, together they are not."""
    ends = np.cumsum(stop - start)
    codes: NDArray[np.uint8] | None = None
    for number, path in enumerate(runs):
        with open_run(path) as run:
            if codes is None:
                codes = np.empty((ends[-1], run.codes.shape[1]), np.uint8)
                ids = np.empty(ends[-1], run.ids.dtype)
            place = slice(ends[number] - (stop - start)[number], ends[number])
            codes[place], ids[place] = run.read(int(start[number]), int(stop[number]))
    assert codes is not None
    return codes, ids


def _neighbours(
    runs: Sequence[Path],
    cuts: tuple[NDArray[np.int64], NDArray[np.int64]],
    ends: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    layout: CodeLayout,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows before and after a partition that share the first 0..M labels of its first and last code."""
    before, after = np.zeros((2, layout.levels + 1), np.int64)
    for number, path in enumerate(runs):
        with open_run(path) as run:
            before += shared_before(run.codes, int(cuts[0][number]), ends[0], layout)
            after += shared_after(run.codes, int(cuts[1][number]), ends[1], layout)
    return before, after
