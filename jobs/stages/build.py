"""Stage 4: partitions of the tree, cut from the (code, id) order of all runs so that each fits the budget.

Splitters are rows of the runs themselves, so any skew is cut evenly, even when all codes are equal. A
partition takes a contiguous slice of every run; to decide as the whole tree would, it
needs to know how many rows before and after it share the first labels of its first and last code.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.params import TreeParams
from aggtree.engine.tree.code_order import ranks_below, shared_around, sort_codes
from aggtree.engine.tree.layout import build_tree_partition
from aggtree.jobs.planning.costs import SAMPLES_PER_PARTITION
from aggtree.jobs.running.tasks import Tick
from aggtree.storage.index.dictionary_file import load_dictionaries, load_state, save_state
from aggtree.storage.work.partitions import write_partition
from aggtree.storage.work.runs import open_run, read_slice

GOLDEN = 2654435769  # 2³² over the golden ratio: multiples of it spread evenly

Splits = NDArray[np.int64]


def choose_splits(runs: Sequence[Path], partition_rows: int) -> Splits:
    """Cut all runs into partitions of at most `partition_rows` rows, (partitions + 1, runs) int64 positions.

    Sampling is repeated with smaller steps until the largest partition is within bounds; if every row is a
    sample, the cut is exact.
    """
    step = max(1, partition_rows // SAMPLES_PER_PARTITION)
    while True:
        codes, ids, counts = _samples(runs, step)
        wanted = partition_rows - (partition_rows // 8 if step > 1 else 0)
        partitions = -(-int(counts.sum()) // max(1, wanted))
        splits = _cut(runs, counts, codes, ids, partitions)
        if step == 1 or np.diff(splits.sum(axis=1)).max() <= partition_rows:
            return splits
        step = max(1, step // 4)


def _cut(
    runs: Sequence[Path],
    counts: NDArray[np.int64],
    codes: NDArray[np.uint8],
    ids: NDArray[np.unsignedinteger],
    partitions: int,
) -> Splits:
    """Positions in each run of evenly spaced samples."""
    chosen = np.unique(len(ids) * np.arange(1, partitions) // partitions)
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


def save_splits(path: Path, splits: Splits, runs: Sequence[Path], layout: CodeLayout) -> None:
    """Store the partitioning, and the facts about runs that tasks need, for the tasks and for resuming.

    A billion rows are a thousand runs and more than a hundred tasks, so shared facts are read only once.
    """
    places = np.empty((len(runs), 3), np.int64)
    for number, run_path in enumerate(runs):
        with open_run(run_path) as run:
            places[number] = run.places
    before, after = _neighbours(runs, splits[1:-1], layout)
    save_state(path, {"splits": splits, "before": before, "after": after, "places": places})


def load_splits(path: Path) -> Splits:
    """(partitions + 1, runs) int64: partition p takes rows splits[p, r]..splits[p + 1, r] of run r."""
    return load_state(path)["splits"]


def _neighbours(
    runs: Sequence[Path], cuts: Splits, layout: CodeLayout
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows before each partition that share the first 0..M labels of its first code; and after, of its last.

    Both (partitions, M + 1) int64. cuts : (partitions - 1, runs), without both ends
    """
    before, after = np.zeros((2, len(cuts) + 1, layout.levels + 1), np.int64)
    firsts, lasts = _end_codes(runs, cuts, layout.width)
    for number, path in enumerate(runs):
        with open_run(path) as run:
            below, above = shared_around(run.codes, cuts[:, number].copy(), firsts, lasts, layout)
        before[1:] += below
        after[:-1] += above
    return before, after


def _end_codes(runs: Sequence[Path], cuts: Splits, width: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The first code behind each cut and the last one before it, over all runs, (cuts, width) uint8."""
    text = f"S{width}"
    firsts, lasts = np.full(len(cuts), b"\xff" * width, text), np.full(len(cuts), b"", text)
    for number, path in enumerate(runs):
        ranks = cuts[:, number]
        with open_run(path) as run:
            if run.count == 0:
                continue
            behind = run.codes[np.minimum(ranks, run.count - 1)].view(text)[:, 0]
            ahead = run.codes[np.maximum(ranks - 1, 0)].view(text)[:, 0]
        firsts = np.where((ranks < run.count) & (behind < firsts), behind, firsts)
        lasts = np.where((ranks > 0) & (ahead > lasts), ahead, lasts)
    return _as_bytes(firsts, width), _as_bytes(lasts, width)


def _as_bytes(text: NDArray[np.bytes_], width: int) -> NDArray[np.uint8]:
    return np.ascontiguousarray(text).view(np.uint8).reshape(len(text), width)


@dataclass(frozen=True, kw_only=True)
class BuildTask:
    """Partition `number` of the order of all runs, built into the file `partition`."""

    number: int
    rows: int
    runs: tuple[Path, ...]
    splits: Path
    dictionaries: Path
    tree: TreeParams
    partition: Path


def build_partition(task: BuildTask, tick: Tick) -> dict[str, Any]:
    """Build one partition and write it; returns its counts and checksum."""
    dictionaries, norm_ranges = load_dictionaries(task.dictionaries)
    state, number = load_state(task.splits), task.number
    start, stop = state["splits"][number : number + 2]
    codes, ids = sort_codes(
        *_read_partition(task.runs, state["places"], start, stop, dictionaries.layout.width)
    )
    partition = build_tree_partition(
        codes, ids, dictionaries, task.tree, norm_ranges, state["before"][number], state["after"][number]
    )
    checksums = write_partition(task.partition, partition)
    return {"rows": len(ids), "bytes": checksums.bytes, "crc": checksums.crc}


def _read_partition(
    runs: Sequence[Path],
    places: NDArray[np.int64],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    width: int,
) -> tuple[NDArray[np.uint8], NDArray[np.unsignedinteger]]:
    """The slices of all runs one after another: each is sorted, together they are not."""
    ends = np.cumsum(stop - start)
    codes = np.empty((ends[-1], width), np.uint8)
    ids: NDArray[np.unsignedinteger] = np.empty(ends[-1], np.uint32 if places[0, 2] == 4 else np.uint64)
    for number in np.flatnonzero(stop > start).tolist():
        rows = slice(ends[number] - stop[number] + start[number], ends[number])
        read_slice(runs[number], places[number], int(start[number]), codes[rows], ids[rows])
    return codes, ids
