"""Overhead of a job over its kernels: encoding with 1 and 2 workers, and reading while training.

    python -m bench jobs --work DIR [--rows 2000000] [--train-rows 500000] [--rounds 2] [encode|train ...]

Vectors are generated once into DIR/base.bvecs, so that a job reads a file; --generated also measures the
generated source itself, whose computation counts as reading. Encoding: rows per second of the kernel alone
on rows in memory, in one process with one thread and with two, compared with the tasks of a job, which read
the file, encode, write shards and record them, in threads and on a local Dask cluster. All variants are timed
in alternating turns and the best turn of each counts, so that noise affects all alike; the CPU time of all
processes together is reported too, which depends less on the load of the machine. The overhead of a job is
the share of its workers' time spent outside the kernel, measured in the same run: a kernel timed separately
may run at another clock rate. Training: seconds of the stage compared with those of the same calls on rows in
memory, without reading, Dask and checkpoints.
"""

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar
from unittest import mock

import numpy as np
import psutil

from aggtree.engine.coding.encoding import Encoder
from aggtree.engine.params import AnnealingParams, parse_words
from aggtree.engine.training.annealing import DictionaryAnnealing
from aggtree.jobs.planning.defaults import CHUNK_ROWS, default_batch_rows, default_shard_rows
from aggtree.jobs.running.executors import Executor, InProcess, local_cluster
from aggtree.jobs.running.memory import MemoryMeter
from aggtree.jobs.running.progress import Progress
from aggtree.jobs.running.tasks import Tick, single_threaded_blas
from aggtree.jobs.stages import encode as encode_module
from aggtree.jobs.stages import train as train_module
from aggtree.jobs.stages.encode import EncodeTask
from aggtree.jobs.stages.train import TrainJob, train
from aggtree.storage.index.code_store import create_code_store
from aggtree.storage.index.dictionary_file import load_dictionaries, save_dictionaries
from aggtree.storage.sources.base import VectorSource, open_source
from aggtree.storage.sources.formats.vecs import write_vecs
from aggtree.storage.work.job_record import start_job
from bench import record

BARS = {"scaling": 1.8, "overhead": 0.10, "train_overhead": 0.10}
Measured = TypeVar("Measured")

KERNEL_ROWS = 300_000
LEARN_ROWS = 5_000
BLOCK_ROWS = 100_000
KINDS = ("kernel", "threads", "cluster")
TICK = 1e-9  # seconds of a processor for one row that count as none


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench jobs", description=__doc__)
    parser.add_argument("what", nargs="*", help="encode, train; both when left out")
    parser.add_argument("--work", type=Path, required=True, help="a folder for the vectors and the shards")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--shard-rows", type=int, help="as a build of so many rows would choose")
    parser.add_argument("--words", default="256x8")
    parser.add_argument("--beam", type=int, default=10)
    parser.add_argument("--train-rows", type=int, default=500_000)
    parser.add_argument("--batch-rows", type=int)
    parser.add_argument("--anneal-rounds", type=int, default=5, help="of the first batch")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each measurement")
    parser.add_argument("--generated", action="store_true", help="measure the generated source too")
    options = parser.parse_args(arguments)
    options.what = options.what or ["encode", "train"]
    options.shard_rows = options.shard_rows or default_shard_rows(options.rows)
    if set(options.what) - {"encode", "train"}:
        parser.error(f"{options.what}: expected encode or train")
    return options


def generated_name(rows: int) -> str:
    return f"synthetic:sift?rows={rows}&seed=1"


def written_file(folder: Path, rows: int) -> Path:
    """The generated vectors as a bvecs file, created if necessary."""
    path = folder / f"base-{rows}.bvecs"
    if not path.exists():
        temporary = path.with_suffix(".part")
        with open_source(generated_name(rows)) as source, temporary.open("wb") as file:
            for start in range(0, rows, BLOCK_ROWS):
                file.write(write_vecs(source.read(start, min(start + BLOCK_ROWS, rows)), "bvecs"))
        temporary.replace(path)
    return path


class Cost(NamedTuple):
    """Seconds of time, of processors, and of the kernel in all threads, of one row."""

    time: float
    processors: float
    kernel: float


class Stopwatch:
    """Context manager: the time its block takes, and that of the processors in this process tree."""

    def __enter__(self) -> Self:
        self._began, self._busy = time.perf_counter(), _processor_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self.busy = _processor_seconds() - self._busy

    def cost(self, rows: int, kernel: float) -> Cost:
        return Cost(self.seconds / rows, self.busy / rows, kernel / rows)


def _processor_seconds() -> float:
    """CPU time of this process and its descendants; none of them ends while a job is measured."""
    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return sum(spent.user + spent.system for spent in times)


_spent = threading.local()


class TimedEncoder(Encoder):
    """Counts the seconds its thread spends in the kernel."""

    def encode(self, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        began = time.perf_counter()
        try:
            return super().encode(rows, out)
        finally:
            _spent.seconds += time.perf_counter() - began


def encode_timed(task: EncodeTask, tick: Tick) -> dict[str, Any]:
    """`encode_shard`, and the seconds of its kernel."""
    # Of a worker process for good; in this one `measure_encoding` puts the other back.
    encode_module.Encoder = TimedEncoder  # type: ignore[misc]
    _spent.seconds = 0.0
    return encode_module.encode_shard(task, tick) | {"kernel_seconds": _spent.seconds}


class Encoding:
    """The encode stage of one source, by any executor, into shards that are discarded."""

    def __init__(self, options: argparse.Namespace, spec: str, folder: Path) -> None:
        self.options, self.spec, self.folder = options, spec, folder
        self.dictionaries = folder / "dictionaries"
        with open_source(spec) as source, single_threaded_blas():
            self.rows = source.rows
            words = parse_words(options.words)
            learner = DictionaryAnnealing(words=words, dictionaries=len(words), beam=options.beam, rounds=1)
            learner.fit(source.read(0, min(LEARN_ROWS, self.rows)))
        save_dictionaries(self.dictionaries, learner.dictionaries, learner.norm_ranges)

    def kernel(self, threads: int) -> Cost:
        """The kernel alone on several threads: the upper bound of the machine."""
        with open_source(self.spec) as source:
            rows = source.read(0, min(KERNEL_ROWS, self.rows))
        encoder = Encoder(load_dictionaries(self.dictionaries)[0], self.options.beam)
        with single_threaded_blas(), ThreadPoolExecutor(threads) as pool:
            encoder.encode(rows[:1000])
            with Stopwatch() as watch:
                list(pool.map(encoder.encode, [rows] * threads))
        return watch.cost(threads * len(rows), threads * watch.seconds)

    def job(self, executor: Executor, most: int | None = None) -> Cost:
        """The stage, or its first `most` tasks, recording and the memory meter included."""
        place = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            job = start_job(place / "index", {}, {"rows": self.rows})
            tasks = self.tasks(place / "codes.zarr")[:most]
            kernel = 0.0
            with Stopwatch() as watch, MemoryMeter():
                for task, outcome in executor.run("encode", encode_timed, tasks, Progress()):
                    kernel += outcome.value.pop("kernel_seconds")
                    job.record_done("encode", task.number, outcome.value)
            return watch.cost(sum(task.rows for task in tasks), kernel)
        finally:
            shutil.rmtree(place)

    def tasks(self, codes: Path) -> list[EncodeTask]:
        width = load_dictionaries(self.dictionaries)[0].layout.width
        size = self.options.shard_rows
        chunk = CHUNK_ROWS if size % CHUNK_ROWS == 0 else size
        store = create_code_store(codes, self.rows, width, size, chunk)
        return [
            EncodeTask(
                number=number,
                start=store.shard_range(number)[0],
                stop=store.shard_range(number)[1],
                source=self.spec,
                codes=store.location,
                dictionaries=self.dictionaries,
                annealing=AnnealingParams(beam=self.options.beam),
            )
            for number in range(store.shards)
        ]


def measure_encoding(options: argparse.Namespace, spec: str) -> dict[str, Any]:
    """Rows per second of the kernel and of jobs with 1 and 2 workers: the best of several turns."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.work)))
        stack.enter_context(mock.patch.object(encode_module, "Encoder", TimedEncoder))
        encoding = Encoding(options, spec, folder)
        encoding.job(InProcess(1), 1)  # compiles the kernels, or each worker would
        clusters = {count: stack.enter_context(local_cluster(count)) for count in (1, 2)}
        for count, cluster in clusters.items():
            encoding.job(cluster, count)  # loads them
        measures: dict[str, Callable[[], Cost]] = {}
        for count in (1, 2):
            measures[f"kernel_{count}"] = lambda count=count: encoding.kernel(count)
            measures[f"threads_{count}"] = lambda count=count: encoding.job(InProcess(count))
            measures[f"cluster_{count}"] = lambda count=count: encoding.job(clusters[count])
        turns = _turns(measures, options.rounds)
    rates = {name: 1 / min(cost.time for cost in costs) for name, costs in turns.items()}
    # Processor time is counted in ticks: a run of tiny size may take none.
    busy = {name: max(TICK, min(cost.processors for cost in costs)) for name, costs in turns.items()}
    return {
        "rates": rates,
        "scaling": {kind: rates[f"{kind}_2"] / rates[f"{kind}_1"] for kind in KINDS},
        "overhead": {
            f"{kind}_{count}": float(
                np.median([1 - cost.kernel / cost.time / count for cost in turns[f"{kind}_{count}"]])
            )
            for kind in KINDS[1:]
            for count in (1, 2)
        },
        "turns": {name: [1 / cost.time for cost in costs] for name, costs in turns.items()},
        "processor_overhead": {name: cost / busy["kernel_1"] - 1 for name, cost in busy.items()},
    }


def measure_training(options: argparse.Namespace, spec: str) -> dict[str, Any]:
    """Seconds of the train stage, and of its calls on rows in memory: the best of several turns."""
    with open_source(spec) as source, tempfile.TemporaryDirectory(dir=options.work) as folder:
        measures = {
            "stage": lambda: _train_seconds(options, source, Path(folder)),
            "in_memory": lambda: _in_memory_seconds(options, source, Path(folder)),
        }
        seconds = {name: min(turn) for name, turn in _turns(measures, options.rounds).items()}
    return {"seconds": seconds, "overhead": seconds["stage"] / seconds["in_memory"] - 1}


def _train_seconds(options: argparse.Namespace, source: VectorSource, folder: Path) -> float:
    words = parse_words(options.words)
    job = TrainJob(
        params=AnnealingParams(words=words, beam=options.beam, rounds=options.anneal_rounds),
        batch_rows=options.batch_rows or default_batch_rows(source.rows, options.train_rows),
        train_rows=options.train_rows,
        checkpoint=folder / "checkpoint",
        dictionaries=folder / "learned",
    )
    job.checkpoint.unlink(missing_ok=True)
    began = time.perf_counter()
    train(source, job, threads=1, ahead=1, progress=Progress())
    return time.perf_counter() - began


def _in_memory_seconds(options: argparse.Namespace, source: VectorSource, folder: Path) -> float:
    """The same training with all rows in memory and without checkpoints."""
    ranges: dict[tuple[int, int], np.ndarray] = {}

    def read(_: object, wanted: Sequence[tuple[int, int]], ahead: int) -> Iterator[np.ndarray]:
        for start, stop in wanted:
            if (start, stop) not in ranges:
                began = time.perf_counter()
                ranges[start, stop] = source.read(start, stop)
                reading.append(time.perf_counter() - began)
            yield ranges[start, stop]

    reading: list[float] = []
    with (
        mock.patch.object(train_module, "read_in_order", read),
        mock.patch.object(train_module, "save_state", lambda *_: None),
    ):
        return _train_seconds(options, source, folder) - sum(reading)


def _turns(measures: dict[str, Callable[[], Measured]], rounds: int) -> dict[str, list[Measured]]:
    """Each measurement once per turn."""
    found: dict[str, list[Measured]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            found[name].append(measure())
    return found


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    sources = {"file": str(written_file(options.work, options.rows))}
    if options.generated:
        sources["generated"] = generated_name(options.rows)
    measures = {"encode": measure_encoding, "train": measure_training}
    parameters = {
        "rows": options.rows,
        "shard_rows": options.shard_rows,
        "words": options.words,
        "beam": options.beam,
        "train_rows": options.train_rows,
        "anneal_rounds": options.anneal_rounds,
        "rounds": options.rounds,
    }
    for kind, spec in sources.items():
        for what in options.what:
            results = measures[what](options, spec)
            record.write("jobs", parameters | {"what": what, "source": kind}, results | {"bars": BARS})
            print(what, kind, results)
    return 0
