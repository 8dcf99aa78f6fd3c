"""Stage 1: the dictionaries, from the stream of vectors in batches, with a checkpoint after each.

The first batch is annealed offline, round after round; each further batch refines what was learned. A small
source is one batch. The batches are fixed row ranges read in order, so the result depends on the rows and
the parameters alone. Threads work on fixed blocks inside a batch; their number changes the time, not the
bytes.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aggtree.engine.annealing import DictionaryAnnealing
from aggtree.engine.params import AnnealingParams
from aggtree.jobs.progress import Progress
from aggtree.jobs.streams import as_dask_array, batch_ranges, invalid_rows, read_in_order
from aggtree.jobs.tasks import single_threaded_blas
from aggtree.storage.dictionary_file import load_state, save_dictionaries, save_state
from aggtree.storage.vector_source import VectorSource

CHECKPOINT = "trainer"
BATCHES_DONE = "job_batches_done"

Map = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """What training reads and writes.

    checkpoint : file of the trainer's state after the last finished batch.
    dictionaries : file that appears when training is done.
    skip_invalid : leave out rows with NaN or infinite values.
    """

    params: AnnealingParams
    batch_rows: int
    train_rows: int
    checkpoint: Path
    dictionaries: Path
    skip_invalid: bool = False


@contextmanager
def thread_map(threads: int) -> Iterator[Map]:
    """A `map` over `threads` threads; the plain one for 1."""
    if threads <= 1:
        yield map
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="train") as pool:
        yield pool.map


def train(source: VectorSource, job: TrainJob, *, threads: int, ahead: int, progress: Progress) -> float:
    """Learn dictionaries and write them; returns the mean squared error of the last batch."""
    ranges = batch_ranges(source.rows, job.batch_rows, job.train_rows)
    trainer, done = _resume(job)
    # A row of the first batch counts once for each round that may come.
    work = [
        (stop - start) * (job.params.rounds + 1 if number == 0 else 1)
        for number, (start, stop) in enumerate(ranges)
    ]
    progress.begin("train", sum(work), done=sum(work[:done]), unit="row passes")
    batches = read_in_order(as_dask_array(source, job.batch_rows), ranges[done:], ahead)
    with single_threaded_blas(), thread_map(threads) as mapper:
        for (first, _), batch in zip(ranges[done:], batches, strict=True):
            wrong = invalid_rows(source.spec, batch, first, allowed=job.skip_invalid)
            rows = np.delete(batch, wrong, axis=0) if len(wrong) else batch
            if done == 0:
                trainer.fit(rows, map=mapper, progress=lambda *_: progress.advance(job.batch_rows))
            else:
                trainer.partial_fit(rows, map=mapper)
            done += 1
            save_state(job.checkpoint, trainer.state() | {BATCHES_DONE: np.asarray([done], np.int64)})
            progress.advance(sum(work[:done]) - progress.done)
    save_dictionaries(job.dictionaries, trainer.dictionaries, trainer.norm_ranges)
    return float(trainer.distortions[-1])


def _resume(job: TrainJob) -> tuple[DictionaryAnnealing, int]:
    """The trainer as the last checkpoint left it, and the batches it has seen."""
    if not job.checkpoint.exists():
        params = job.params
        return DictionaryAnnealing(
            words=params.words,
            dictionaries=len(params.words),
            beam=params.beam,
            seed=params.seed,
            rounds=params.rounds,
            tolerance=params.tolerance,
            cooling=params.cooling,
        ), 0
    state = load_state(job.checkpoint)
    done = int(state.pop(BATCHES_DONE)[0])
    return DictionaryAnnealing.from_state(state), done
