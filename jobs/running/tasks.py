"""Tasks: the work of one partition, in this process or in a worker, and its errors.

A task is a small frozen record naming its input by path and row range, so it costs nothing to send. Its
function writes its output with an atomic rename and returns a small record.
"""

import errno
import os
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, Protocol

import psutil

from aggtree.storage.errors import AggtreeError, JobError, UnreachableError
from aggtree.storage.version import __version__

ATTEMPTS = 3  # a partition that failed this often stops the job

# Trying again does not help: there is no room, or no permission.
_FINAL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT)


class Task(Protocol):
    """The properties of every task."""

    @property
    def number(self) -> int:
        """Number of the partition."""

    @property
    def rows(self) -> int:
        """Rows of the partition, for the progress display."""


Tick = Callable[[int], None]
Function = Callable[[Any, Tick], Any]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one task: its value, and the peak memory of the process that ran it."""

    value: Any
    worker: str
    peak: int


@cache
def versions() -> dict[str, str]:
    """Versions that must agree between this process and a worker, for both to write the same bytes."""
    return {"aggtree": __version__} | {name: version(name) for name in ("numpy", "numba", "zarr")}


def differing_versions(theirs: dict[str, str], ours: dict[str, str]) -> str:
    """The versions that differ, as text for a message; empty if none does."""
    return ", ".join(
        f"{name} {theirs.get(name, 'missing')} instead of {version}"
        for name, version in ours.items()
        if theirs.get(name) != version
    )


def process_name() -> str:
    """Host and process id, which identify a worker in messages."""
    return f"{socket.gethostname()}:{os.getpid()}"


def single_threaded_blas() -> AbstractContextManager[object]:
    """BLAS on one thread: threads come from above, and a sum's order must not depend on their number."""
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits


def run_task(function: Function, task: Task, expected: dict[str, str], tick: Tick) -> Outcome:
    """Run one task here; a worker of another version refuses it."""
    difference = differing_versions(versions(), expected)
    if difference:
        raise JobError(f"worker {process_name()} has {difference}: install the same versions everywhere")
    with single_threaded_blas():
        value = function(task, tick)
    return Outcome(value=value, worker=process_name(), peak=peak_of_this_process())


def peak_of_this_process() -> int:
    """Peak resident size of this process, in bytes."""
    if sys.platform == "linux":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(psutil.Process().memory_info().rss)


def is_final(error: BaseException) -> bool:
    """Whether a retry of the task could not succeed."""
    if isinstance(error, OSError):
        return error.errno in _FINAL_ERRNOS
    if isinstance(error, UnreachableError):
        return False
    if _ended_workers(error):
        return True
    return isinstance(error, (AggtreeError, ValueError, MemoryError))


def _ended_workers(error: BaseException) -> bool:
    """Whether Dask gave up the task after several workers died while running it."""
    return type(error).__name__ == "KilledWorker"


def describe(error: BaseException) -> str:
    """One line about an error that a user can act on."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = f" at {error.filename}" if error.filename else ""
        return f"no space left on the device{place}: make room and run the same command again"
    if _ended_workers(error):
        return "several workers died while they ran it; was there enough memory?"
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, (AggtreeError, ValueError)):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def failure(stage: str, task: Task, error: BaseException, attempts: int) -> AggtreeError:
    """The error that stops a job, from the error of its task."""
    often = f" {attempts} times" if attempts > 1 else ""
    return JobError(f"{stage}: partition {task.number} failed{often}: {describe(error)}")
