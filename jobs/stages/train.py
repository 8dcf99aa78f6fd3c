"""Stage 1: train the dictionaries on a stream of batches.

A sample of rows from the whole source gives the transform: the mean and the scale that all rows are freed of.
Rows far from all others are not trained on.

A wide first dictionary is learned in passes over rows from the whole source. The first batch is then
annealed offline, round after round; each further batch refines the dictionaries. A small source is one batch,
from which the first dictionary is learned too. A checkpoint follows each pass, a few rounds, and each batch.
The batches are fixed row ranges read in order, so the result depends on the rows and the parameters alone.
Threads work on fixed blocks inside a batch; their number changes the time, not the bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.clustering.distances import as_rows
from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.params import AnnealingParams, Metric
from aggtree.engine.training.staged import Trainer, make_trainer, trainer_from_state
from aggtree.engine.training.wide_dictionary_trainer import PASSES, FirstDictionaryTrainer
from aggtree.engine.training.work import fit_work
from aggtree.engine.transform import Transform, find_transform
from aggtree.jobs.planning.training_rows import Range, TrainingRows, cut_at, spread_ranges, training_rows
from aggtree.jobs.running.progress import Progress
from aggtree.jobs.running.streams import as_dask_array, invalid_rows, read_in_order
from aggtree.jobs.running.tasks import single_threaded_blas
from aggtree.storage.index.dictionary_file import load_dictionaries, load_state, save_dictionaries, save_state
from aggtree.storage.sources.base import VectorSource

CHECKPOINT = "trainer"
BATCHES_DONE = "job_batches_done"
TRANSFORMS = {"job_transforms": np.ones(1, np.int64)}
"""In checkpoints of rows that were transformed; those of releases that did not transform rows have none."""
CHECKPOINT_ROUNDS = 5  # of annealing the first batch
SAMPLE_VALUES = 1 << 20
"""Numbers in the rows that give the transform."""
LEAST_SAMPLE = 64

Map = Callable[..., Any]
State = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """Inputs and outputs of training.

    checkpoint : file of the state of the current trainer: that of the first dictionary, then the annealer.
    dictionaries : file that appears when training is done.
    skip_invalid : skip rows with NaN or infinite values.
    start : file of dictionaries to continue; its wide first one and transform are kept. None to start from
        scratch.
    metric, planes : of the index.
    """

    params: AnnealingParams
    batch_rows: int
    train_rows: int
    checkpoint: Path
    dictionaries: Path
    skip_invalid: bool = False
    start: Path | None = None
    metric: Metric = "l2"
    planes: bool = False

    @property
    def wide_words(self) -> int:
        """Words of a wide first dictionary to be learned; 0 if there is none."""
        learned = CodeLayout(self.params.words).wide and self.start is None
        return self.params.words[0] if learned else 0


@contextmanager
def thread_map(threads: int) -> Iterator[Map]:
    """A `map` over `threads` threads; the plain one for 1."""
    if threads <= 1:
        yield map
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="train") as pool:
        yield pool.map


def train(source: VectorSource, job: TrainJob, *, threads: int, ahead: int, progress: Progress) -> float:
    """Train dictionaries and write them; returns the mean squared error of the last batch."""
    spread = job.params.early_rows > 0
    rows = training_rows(source.rows, job.batch_rows, job.train_rows, job.wide_words, spread=spread)
    state = load_state(job.checkpoint) if job.checkpoint.exists() else {}
    with single_threaded_blas(), thread_map(threads) as mapper:
        known = not state or TRANSFORMS.keys() <= state.keys()
        transform = _learned_transform(source, job, ahead) if known else Transform()
        run = _Training(source, job, rows, ahead, mapper, progress, transform)
        if BATCHES_DONE in state:
            trainer, done = trainer_from_state(state), int(state[BATCHES_DONE][0])
            run.begin(run.first_work + run.batch_work(done, len(trainer.distortions)))
            run.anneal(trainer, done, None)
        else:
            trainer = make_trainer(job.params)
            run.anneal(trainer, 0, run.learn_first(state))
    dictionaries = replace(trainer.dictionaries, transform=transform)
    save_dictionaries(job.dictionaries, dictionaries, trainer.norm_ranges)
    return float(trainer.distortions[-1]) / transform.unit**2


def _learned_transform(source: VectorSource, job: TrainJob, ahead: int) -> Transform:
    """The transform of the dictionaries to continue, or of a sample of the source."""
    if job.start is not None:
        return load_dictionaries(job.start)[0].transform
    ranges = spread_ranges(source.rows, max(LEAST_SAMPLE, SAMPLE_VALUES // source.dimension))
    # Invalid rows are refused by number where they are trained on or encoded.
    sample = np.concatenate(list(_read(source, ranges, ahead, skip_invalid=True)))
    centred = not (job.planes and job.metric == "cosine")
    return find_transform(as_rows(sample), centred=centred, products=job.metric == "ip")


def _read(
    source: VectorSource, ranges: Sequence[Range], ahead: int, *, skip_invalid: bool
) -> Iterator[NDArray[Any]]:
    """The usable rows of each range, in order."""
    array = as_dask_array(source, cut_at(ranges, source.rows))
    for (first, _), batch in zip(ranges, read_in_order(array, ranges, ahead), strict=True):
        wrong = invalid_rows(source.spec, batch, first, allowed=skip_invalid)
        yield np.delete(batch, wrong, axis=0) if len(wrong) else batch


def learning_curve(state: State, transform: Transform) -> dict[str, Any]:
    """The errors in the last checkpoint, as in `BuildReport`."""
    errors = (state["distortions"] / transform.unit**2).tolist()
    later = max(0, int(state[BATCHES_DONE][0]) - 1)
    return {"distortions": errors, "rounds": max(0, len(errors) - 1 - later)}


@dataclass(frozen=True)
class _Training:
    """One run of the job, which continues where the last one was stopped."""

    source: VectorSource
    job: TrainJob
    rows: TrainingRows
    ahead: int
    map: Map
    progress: Progress
    transform: Transform

    @property
    def pass_rows(self) -> int:
        """Rows of one pass of the first dictionary."""
        return sum(stop - start for start, stop in self.rows.first)

    @property
    def first_work(self) -> int:
        """Row passes of the first dictionary: one draws words, the others move them."""
        return (1 + PASSES) * self.pass_rows

    @cached_property
    def fit_work(self) -> NDArray[np.float64]:
        """Work of the first batch up to its start, and up to each possible round of each stage."""
        params = self.job.params
        if self.job.start is not None:
            params = replace(params, early_rows=0, early_beam=0)
        learns = self.job.wide_words > 0 and not self.rows.first
        return np.cumsum(fit_work(params, self.rows.batch_rows, learns_first=learns))

    def batch_work(self, batches: int, rounds: int = 0) -> int:
        """Row passes of the given batches, or of `rounds` of the first if there are none."""
        if batches == 0:
            return int(self.fit_work[min(rounds, len(self.fit_work)) - 1]) if rounds else 0
        return int(self.fit_work[-1]) + self.rows.batch_rows * (batches - 1)

    def begin(self, done: int) -> None:
        total = self.first_work + self.batch_work(self.rows.count)
        self.progress.begin("train", total, done=done, unit="row passes")

    def advance_to(self, done: int) -> None:
        self.progress.advance(max(0, done - self.progress.done))

    def learn_first(self, state: State) -> NDArray[np.float32] | None:
        """The words of a wide first dictionary, from the passes in `state` on; None when batches teach it."""
        if not self.rows.first:
            self.begin(0)
            return None
        trainer = (
            FirstDictionaryTrainer.from_state(state)
            if state
            else FirstDictionaryTrainer(self.job.wide_words, self.job.params.seed)
        )
        self.begin(trainer.passes_made * self.pass_rows)
        while not trainer.done:
            for rows in self.read(self.rows.first):
                trainer.add(rows, map=self.map)
                self.progress.advance(len(rows))
            trainer.end_pass()
            save_state(self.job.checkpoint, trainer.state() | TRANSFORMS)
        self.advance_to(self.first_work)
        return trainer.words

    def anneal(self, trainer: Trainer, done: int, first: NDArray[np.float32] | None) -> None:
        """Train on the batches that are left; `first` is a first dictionary learned before."""

        def save() -> None:
            progress = {BATCHES_DONE: np.asarray([done], np.int64)}
            save_state(self.job.checkpoint, trainer.state() | progress | TRANSFORMS)

        def after_round(number: int, _: float) -> None:
            if number % CHECKPOINT_ROUNDS == 0:
                save()
            self.advance_to(self.first_work + self.batch_work(0, number + 1))

        start = None if self.job.start is None else load_dictionaries(self.job.start)[0]
        for rows in self.read_batches(done):
            if done:
                trainer.partial_fit(rows, map=self.map)
            else:
                again = len(trainer.distortions) > 0
                trainer.fit(rows, start=start, first=first, resume=again, map=self.map, progress=after_round)
            done += 1
            save()
            self.advance_to(self.first_work + self.batch_work(done))

    def read_batches(self, done: int) -> Iterator[NDArray[Any]]:
        """The usable rows of each batch behind the first `done`, in order."""
        pieces = self.rows.pieces
        ranges = self.read(self.rows.batches[done * pieces :])
        if pieces == 1:
            yield from ranges
            return
        for _ in range(done, self.rows.count):
            first = next(ranges)
            batch = np.empty((self.rows.batch_rows, first.shape[1]), first.dtype)
            filled = 0
            for rows in chain([first], islice(ranges, pieces - 1)):
                batch[filled : filled + len(rows)] = rows
                filled += len(rows)
            yield batch[:filled]

    def read(self, ranges: Sequence[Range]) -> Iterator[NDArray[Any]]:
        """The rows of each range that are trained on, as they are quantized, in order."""
        batches = _read(self.source, ranges, self.ahead, skip_invalid=self.job.skip_invalid)
        return map(self.transform.apply_to_near, batches)
