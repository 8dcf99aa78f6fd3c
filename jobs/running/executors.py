"""Where tasks run: in this process, on a local Dask cluster, or on an existing one.

All executors run the same tasks and produce the same bytes. They differ in cost: threads of this process
share one copy of the libraries (the kernels release the GIL); a cluster has separate processes, which may be
on other machines and may die without stopping the job.
"""

import importlib.util
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Self

from aggtree.jobs.running.cluster_scopes import (
    event_loop,
    hidden_main,
    ignore_interrupts,
    postponed_signals,
    quiet_logs,
)
from aggtree.jobs.running.progress import Progress
from aggtree.jobs.running.tasks import (
    ATTEMPTS,
    Function,
    Outcome,
    Task,
    failure,
    is_final,
    run_task,
    versions,
)
from aggtree.storage.errors import JobError

CONNECT_SECONDS = 10.0
PATIENCE_SECONDS = 300.0  # how long a job waits for a cluster that has lost all its workers
# A hundred looks a second at what each thread is doing cost time, and memory to remember them.
CLUSTER_SETTINGS = {"distributed.comm.timeouts.connect": "60s", "distributed.worker.profile.enabled": False}


class StoppedError(Exception):
    """Raised inside a task when its job is being stopped."""


class LostResultError(Exception):
    """A result was lost with its worker; the task can be run again."""


class Executor(ABC):
    """Runs the tasks of a stage, each at most `ATTEMPTS` times."""

    workers: int
    description: str

    @abstractmethod
    def run(
        self, stage: str, function: Function, tasks: Sequence[Task], progress: Progress
    ) -> Iterator[tuple[Task, Outcome]]:
        """Run all tasks; yields each with its outcome, in the order they finish."""

    def close(self) -> None:  # noqa: B027  (this process has nothing to give back)
        """Stop everything that was started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Ledger:
    """Tasks in flight in one stage: attempts and rows reported so far, so that the display stays correct."""

    def __init__(self, stage: str, progress: Progress) -> None:
        self._stage = stage
        self._progress = progress
        self._attempts: dict[int, int] = {}
        self._told: dict[int, int] = {}
        self._lock = threading.Lock()

    def tick(self, number: int, rows: int) -> None:
        """`rows` more rows of partition `number` are done."""
        with self._lock:
            self._told[number] = self._told.get(number, 0) + rows
            self._progress.advance(rows)

    def finish(self, task: Task) -> None:
        """The task is done: report the rows it has not reported itself."""
        self.tick(task.number, task.rows - self._told.get(task.number, 0))

    def fail(self, task: Task, error: BaseException) -> None:
        """Undo what was reported; raise if the task may not be retried."""
        self.tick(task.number, -self._told.get(task.number, 0))
        attempts = self._attempts[task.number] = self._attempts.get(task.number, 0) + 1
        if attempts >= ATTEMPTS or is_final(error):
            raise failure(self._stage, task, error, attempts) from error
        self._progress.note(f"{self._stage}: partition {task.number} is retried after: {error}")


class InProcess(Executor):
    """Tasks run in this process, in `threads` threads, or in the calling thread when that is 1."""

    def __init__(self, threads: int = 1) -> None:
        self.workers = max(1, threads)
        self.description = "in this process" + (f", {threads} threads" if threads > 1 else "")

    def run(
        self, stage: str, function: Function, tasks: Sequence[Task], progress: Progress
    ) -> Iterator[tuple[Task, Outcome]]:
        ledger, ours = _Ledger(stage, progress), versions()
        if self.workers == 1:
            for task in tasks:
                yield task, self._run_here(function, task, ours, ledger)
            return
        stopping = threading.Event()

        def call(task: Task) -> Outcome:
            def tick(rows: int) -> None:
                if stopping.is_set():
                    raise StoppedError
                ledger.tick(task.number, rows)

            return run_task(function, task, ours, tick)

        waiting = list(reversed(tasks))
        running: dict[Future[Outcome], Task] = {}
        with ThreadPoolExecutor(self.workers, thread_name_prefix=stage) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < self.workers:
                        task = waiting.pop()
                        running[pool.submit(call, task)] = task
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        task = running.pop(future)
                        error = future.exception()
                        if error is not None:
                            ledger.fail(task, error)
                            waiting.append(task)
                            continue
                        ledger.finish(task)
                        yield task, future.result()
            finally:
                stopping.set()

    @staticmethod
    def _run_here(function: Function, task: Task, ours: dict[str, str], ledger: _Ledger) -> Outcome:
        while True:
            try:
                outcome = run_task(function, task, ours, lambda rows: ledger.tick(task.number, rows))
            except Exception as error:
                ledger.fail(task, error)
            else:
                ledger.finish(task)
                return outcome


def run_remote_task(function: Function, task: Task, expected: dict[str, str], topic: str) -> Outcome:
    """Run one task in a Dask worker; its progress is reported as events of `topic`."""
    from distributed import get_worker

    worker = get_worker()

    def tick(rows: int) -> None:
        worker.log_event(topic, {"number": task.number, "rows": rows})

    return run_task(function, task, expected, tick)


class DaskExecutor(Executor):
    """Tasks run on the workers of a Dask client; a bounded number is in flight."""

    def __init__(self, client: Any, resources: ExitStack, description: str) -> None:
        self.client = client
        self.description = description
        self._resources = resources

    @property
    def workers(self) -> int:  # type: ignore[override]
        """Tasks that run at once on the workers there are now."""
        return sum(self.client.nthreads().values())

    def run(
        self, stage: str, function: Function, tasks: Sequence[Task], progress: Progress
    ) -> Iterator[tuple[Task, Outcome]]:
        ledger, ours = _Ledger(stage, progress), versions()
        topic = f"aggtree-{stage}-{time.monotonic_ns()}"
        finished: set[int] = set()

        def hear(event: tuple[float, Any]) -> None:
            # Events travel apart from results: one that comes late must not be counted twice.
            _, message = event
            if isinstance(message, dict) and message.get("number") not in finished:
                ledger.tick(message["number"], message["rows"])

        waiting = list(reversed(tasks))
        running: dict[Any, Task] = {}
        with self._connected():
            self.client.subscribe_topic(topic, hear)
        try:
            while waiting or running:
                room = 2 * max(1, self.workers)  # one running and one waiting for each worker
                while waiting and len(running) < room:
                    task = waiting.pop()
                    with self._connected():
                        future = self.client.submit(run_remote_task, function, task, ours, topic, pure=False)
                    running[future] = task
                for future in self._finished(running):
                    task = running.pop(future)
                    if future.status != "finished":
                        ledger.fail(task, future.exception() or LostResultError("its worker was lost"))
                        waiting.append(task)
                        continue
                    finished.add(task.number)
                    ledger.finish(task)
                    yield task, future.result()
        finally:
            with suppress(Exception):  # a scheduler that is gone needs neither
                self.client.unsubscribe_topic(topic)
                self.client.cancel(list(running))

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """JobError if the scheduler is lost inside the block: all that was in flight is gone with it."""
        try:
            yield
        except (CancelledError, OSError) as error:
            raise JobError(self._lost()) from error

    def _lost(self) -> str:
        remedy = "when it is there again, and has workers, run the same command again"
        return f"scheduler {self.client.scheduler.address}: the connection was lost; {remedy}"

    def _finished(self, running: dict[Any, Task]) -> list[Any]:
        """Wait for finished futures; JobError if the cluster stays without workers that run."""
        from distributed import wait as wait_for

        alone_since = time.monotonic()
        while True:
            with self._connected():
                try:
                    with self.client.as_current():
                        done = list(wait_for(list(running), timeout=5, return_when="FIRST_COMPLETED").done)
                except TimeoutError:
                    done = []
                if any(future.status == "cancelled" for future in done):
                    raise JobError(self._lost())
                if done:
                    return done
                workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
            if any(worker["status"] == "running" for worker in workers):
                alone_since = time.monotonic()
            elif time.monotonic() - alone_since > PATIENCE_SECONDS:
                what = (
                    "no worker"
                    if not workers
                    else "Dask has paused all workers, which have too little memory,"
                )
                remedy = "start workers and run the same command again"
                raise JobError(f"{what} for {PATIENCE_SECONDS:.0f} s: {remedy}")

    def close(self) -> None:
        with postponed_signals():
            self._resources.close()


def local_cluster(workers: int) -> DaskExecutor:
    """A cluster of `workers` spawned processes of one thread each, on this machine.

    If a worker is killed before it has reported its address, another cluster is started.
    """
    attempts = 1
    while True:
        try:
            return _local_cluster(workers)
        except (RuntimeError, OSError) as error:
            if attempts == ATTEMPTS:
                reason = " ".join(str(error).split()) or type(error).__name__
                raise JobError(
                    f"worker processes do not start ({reason}): is there enough memory?"
                ) from error
            attempts += 1


def _local_cluster(workers: int) -> DaskExecutor:
    executor = None
    try:
        with postponed_signals():
            executor = _start_local_cluster(workers)
    except BaseException:
        if executor is not None:
            executor.close()
        raise
    return executor


def _start_local_cluster(workers: int) -> DaskExecutor:
    """Start the processes. The plan has decided what runs, so Dask's own memory limits are off: a worker
    paused by them would wait for ever."""
    import dask
    from distributed import Client, LocalCluster

    stack = ExitStack()
    with ExitStack() as failing:
        failing.push(stack)
        stack.enter_context(hidden_main())
        stack.enter_context(dask.config.set(CLUSTER_SETTINGS))
        loop = stack.enter_context(event_loop())
        cluster = stack.enter_context(
            LocalCluster(
                loop=loop,
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                memory_limit=None,
                dashboard_address=":0",
                silence_logs=logging.CRITICAL,
            )
        )
        client = stack.enter_context(Client(cluster, loop=loop, set_as_default=False))
        client.run(ignore_interrupts)
        failing.pop_all()
    return DaskExecutor(client, stack, f"{workers} worker processes{_dashboard(client)}")


def _dashboard(client: Any) -> str:
    """Text about the address of the scheduler's dashboard, which needs an optional library there."""
    with suppress(Exception):  # a scheduler that does not report one has none to show
        if client.dashboard_link and client.run_on_scheduler(importlib.util.find_spec, "bokeh") is not None:
            return f", dashboard {client.dashboard_link}"
    return ""


def existing_cluster(address: str) -> DaskExecutor:
    """The workers of a running Dask scheduler, by its address such as `tcp://host:8786`."""
    from distributed import Client

    stack = ExitStack()
    with ExitStack() as failing:
        failing.push(stack)
        loop = stack.enter_context(event_loop())
        stack.enter_context(quiet_logs())
        try:
            client = Client(address, timeout=CONNECT_SECONDS, loop=loop, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise JobError(f"scheduler {address}: cannot connect: {' '.join(str(error).split())}") from error
        stack.push(client)
        workers = len(client.nthreads())
        if not workers:
            raise JobError(f"scheduler {address}: it has no workers; start some with `dask worker {address}`")
        failing.pop_all()
    return DaskExecutor(client, stack, f"{workers} workers of {address}{_dashboard(client)}")
