"""Training stopped between any two checkpoints goes on from the last one, to the same bytes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.small_builds import WIDE, vectors

from aggtree.engine.params import AnnealingParams
from aggtree.jobs.planning.training_rows import cut_at, spread_ranges, training_rows
from aggtree.jobs.running.progress import Progress
from aggtree.jobs.running.streams import as_dask_array, as_source, read_in_order
from aggtree.jobs.stages import train as train_module
from aggtree.jobs.stages.train import TrainJob, train
from aggtree.storage.index.dictionary_file import load_dictionaries, save_state
from aggtree.storage.sources.base import VectorSource


class CountingSource(VectorSource):
    """Vectors in memory that note which rows are read."""

    def __init__(self, rows: int) -> None:
        self._vectors = vectors(rows)
        self.spec = "counting"
        self.rows, self.dimension = self._vectors.shape
        self.dtype = self._vectors.dtype
        self.ranges: list[tuple[int, int]] = []

    def _read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        self.ranges.append((start, stop))
        return self._vectors[start:stop].copy()


def job(directory: Path) -> TrainJob:
    directory.mkdir(exist_ok=True)
    return TrainJob(
        params=AnnealingParams(words=WIDE["words"], beam=WIDE["beam"]),
        batch_rows=WIDE["batch_rows"],
        train_rows=WIDE["train_rows"],
        checkpoint=directory / "trainer",
        dictionaries=directory / "dictionaries",
    )


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    work = job(tmp_path_factory.mktemp("reference"))
    train(as_source(vectors()), work, threads=1, ahead=1, progress=Progress())
    return work.dictionaries.read_bytes()


@pytest.mark.parametrize("threads", [1, 3])
def test_stopped_after_every_checkpoint(
    tmp_path: Path, reference: bytes, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    def save_and_stop(path: Path, state: dict[str, Any]) -> None:
        save_state(path, state)
        raise KeyboardInterrupt

    monkeypatch.setattr(train_module, "save_state", save_and_stop)
    work, shown, stops = job(tmp_path), [], 0
    while not work.dictionaries.exists():
        progress = Progress()
        try:
            train(as_source(vectors()), work, threads=threads, ahead=0, progress=progress)
        except KeyboardInterrupt:
            stops += 1
        shown.append((progress.done, progress.total))
    assert stops > 8
    assert work.dictionaries.read_bytes() == reference
    assert shown == sorted(shown)
    assert len({total for _, total in shown}) == 1
    assert shown[-1][0] == shown[-1][1]


def test_the_first_dictionary_does_not_see_the_rows_of_the_others(tmp_path: Path) -> None:
    work = job(tmp_path)
    batch = work.batch_rows
    source = CountingSource(4 * batch + 100)
    train(source, work, threads=1, ahead=0, progress=Progress())
    rows = training_rows(source.rows, batch, work.train_rows, 300)
    sample = set(spread_ranges(source.rows, source.rows))
    assert set(source.ranges) == sample | set(rows.first) | set(rows.batches)
    assert rows.first == [(0, batch), (2 * batch, 3 * batch)]
    assert rows.batches == [(batch, 2 * batch), (3 * batch, 4 * batch)]
    dictionaries, _ = load_dictionaries(work.dictionaries)
    assert dictionaries.layout.words == WIDE["words"]


def test_only_the_rows_asked_for_are_read() -> None:
    source, ranges = CountingSource(3100), [(1000, 1400), (2100, 3100), (1000, 1400)]
    list(read_in_order(as_dask_array(source, cut_at(ranges, 3100)), ranges, ahead=0))
    assert source.ranges == ranges
