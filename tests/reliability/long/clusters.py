"""A Dask cluster whose processes are frozen, killed, restarted, shared and too small, during a build.

Frozen and killed workers change nothing. A scheduler that is lost, or a worker with too little memory, stops
the job with one line, and the same command continues it. The bytes are those of an undisturbed build.
"""

import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np
from helpers.services.cluster import Cluster, wait_for_workers
from helpers.small_builds import SMALL, SMALL_ARGUMENTS, contents, vectors

from aggtree.jobs.build import build
from aggtree.storage.errors import AggtreeError
from aggtree.storage.work.job_record import JobRecord
from reliability.builds import quick_builds

PLAN = {"frozen": 12, "frozen for a minute": 1, "worker killed": 10, "scheduler restarted": 6, "two jobs": 3}
PLAN |= {"too little memory": 2}
FROZEN_SECONDS = {"frozen": 2.0, "frozen for a minute": 60.0}
RECIPE = SMALL | {"shard_rows": 300}
ARGUMENTS = [*SMALL_ARGUMENTS[:-4], "--shard-rows", "300", "--bucket", "8"]
RECORDS = 23
"""Partitions that a build records; a fault comes after one of them."""
BAD = ("differences", "jobs stopped that should not", "other errors", "errors of several lines")


class Trial:
    """Builds on a cluster of two workers."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.source = place, place / "base.npy"
        self.counts: Counter[str] = Counter()
        self.random = Random(seed)
        np.save(self.source, vectors())
        build(self.source, place / "reference", workers=0, **RECIPE)
        self.reference = contents(place / "reference")
        (place / "cluster").mkdir()
        self.cluster = Cluster(place / "cluster")
        self.workers: list[subprocess.Popen[bytes]] = []

    def staff(self) -> None:
        """Two workers that live."""
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < 2:
            self.workers.append(self.cluster.start_worker())
        wait_for_workers(self.cluster, 2)

    def job(self, index: Path, after: Callable[[], object] | None = None) -> str:
        """Build, and let something happen in the middle of it; the error it ended with, or ""."""
        left = self.random.randrange(RECORDS)
        plain = JobRecord.record_done

        def record_done(job: JobRecord, stage: str, partition: int, record: Mapping[str, Any]) -> None:
            nonlocal left
            plain(job, stage, partition, record)
            left -= 1
            if left == 0 and after is not None:
                self.counts["faults"] += 1
                after()

        try:
            with mock.patch.object(JobRecord, "record_done", record_done):
                build(self.source, index, scheduler=self.cluster.address, **RECIPE)
        except AggtreeError as error:
            self.counts["errors of several lines"] += "\n" in str(error)
            return str(error)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            self.counts["other errors"] += 1
            return str(error)
        return ""

    def freeze(self, seconds: float) -> None:
        worker = self.random.choice(self.workers)
        worker.send_signal(signal.SIGSTOP)
        threading.Timer(seconds, worker.send_signal, (signal.SIGCONT,)).start()

    def kill_worker(self) -> None:
        worker = self.random.choice(self.workers)
        worker.kill()
        worker.wait()
        self.workers.append(self.cluster.start_worker())

    def fail(self, kind: str) -> None:
        """One trial: a build with a fault, continued if that stopped it, and compared."""
        index, allowed = self.place / "index", kind in ("scheduler restarted", "too little memory")
        if kind == "too little memory":
            self.small_worker(index)
        self.staff()
        after: dict[str, Callable[[], object]] = {
            "worker killed": self.kill_worker,
            "scheduler restarted": self.cluster.restart_scheduler,
        }
        if kind in FROZEN_SECONDS:
            after[kind] = lambda: self.freeze(FROZEN_SECONDS[kind])
        stopped = self.two_jobs(index) if kind == "two jobs" else self.job(index, after.get(kind))
        self.counts["jobs stopped by one line"] += bool(stopped)
        self.counts["jobs stopped that should not"] += bool(stopped) and not allowed
        if stopped:
            for worker in self.workers:  # those of the lost scheduler
                worker.kill()
                worker.wait()
            self.staff()
            again = self.job(index)
            self.counts["jobs stopped that should not"] += bool(again)
        self.counts["differences"] += contents(index) != self.reference
        self.counts[f"trials {kind}"] += 1
        shutil.rmtree(index)

    def small_worker(self, index: Path) -> None:
        """A worker with half the memory that its tasks need is named before any work."""
        for worker in self.workers:
            worker.kill()
            worker.wait()
        self.workers = [self.cluster.start_worker(memory="120MiB")]
        wait_for_workers(self.cluster, 1)
        error = self.job(index)
        self.counts["faults"] += 1
        self.counts["jobs stopped by one line"] += bool(error)
        self.counts["other errors"] += "memory limit" not in error
        self.workers[0].kill()
        self.workers[0].wait()

    def two_jobs(self, index: Path) -> str:
        """Another job on the same workers meanwhile; what went wrong with either."""
        other = self.place / "other"
        command = [sys.executable, "-m", "aggtree.jobs.cli.main", "build", str(self.source), str(other)]
        command += ["--scheduler", self.cluster.address, *ARGUMENTS]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/"
        )
        self.counts["faults"] += 1
        error = self.job(index)
        output, _ = process.communicate()
        if process.returncode:
            return output
        self.counts["differences"] += contents(other) != self.reference
        shutil.rmtree(other)
        return error


@quick_builds()
def run(place: Path, seed: int, plan: Mapping[str, int] = PLAN) -> dict[str, int]:
    trial = Trial(place, seed)
    try:
        for kind, count in plan.items():
            for _ in range(count):
                trial.fail(kind)
    finally:
        trial.cluster.close()
    return {name: trial.counts[name] for name in sorted({*trial.counts} - {*BAD})} | {
        name: trial.counts[name] for name in BAD
    }


def met(counts: dict[str, int]) -> bool:
    return counts["faults"] >= 30 and not any(counts[name] for name in BAD)
