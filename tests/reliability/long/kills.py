"""kill -9 at random moments in all stages, resume, compare bytes with an uninterrupted build.

- by operation: a build ends itself before, or in the middle of, its n-th operation on the disk;
- by time: a build is killed from outside after a random time;
- replacing: the same while an index is replaced, which stays readable, the old one or the new one;
- repairing: the same while a damaged index is repaired;
- the command `aggtree build` with worker processes: its process, or one of its workers, as the system
  does when memory runs out.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import psutil
from helpers.places import program
from helpers.small_builds import SMALL_ARGUMENTS, contents

from aggtree.storage import atomic
from aggtree.storage.errors import AggtreeError
from aggtree.storage.index.format import MANIFEST
from aggtree.storage.index.reader import open_index
from aggtree.storage.verify.index import verify_index
from reliability.builds import RECIPES, Place, killed, quick_builds, start_child
from reliability.programs.killed_builds import KillingDisk

PLAN = {"operation": 110, "time": 60, "replacing": 20, "repairing": 8, "command": 6, "worker": 6}
PATIENCE = 300


class CountingDisk(atomic.Disk):
    """Counts operations."""

    def __init__(self) -> None:
        self.operations = 0

    def __getattribute__(self, name: str) -> Any:
        if name in ("create", "write", "sync", "rename", "remove_file", "remove_tree"):
            self.operations += 1
        return super().__getattribute__(name)


class Torture:
    """Builds in one directory, killed again and again, and what came of them."""

    def __init__(self, place: Path, seed: int) -> None:
        self.random = Random(seed)
        self.prepared = Place(place)
        self.index = place / "index"
        self.counts: Counter[str] = Counter()
        self.old = place / "old"
        self.old_build = self._make("small", self.old, seed=1)
        self.operations = {name: self._count_operations(name) for name in RECIPES}

    def _make(self, name: str, index: Path, **changes: Any) -> str:
        self.prepared.build(name, index, **changes)
        with open_index(index) as opened:
            return opened.manifest.first_segment.build

    def _count_operations(self, name: str) -> int:
        counting = CountingDisk()
        plain, atomic.disk = atomic.disk, counting
        self.prepared.build(name, self.index)
        atomic.disk = plain
        shutil.rmtree(self.index)
        return counting.operations

    def kill(self, how: str, name: str, *, moment: float = 0, operation: int = -1, **changes: Any) -> bool:
        """Build in a child that is killed at a moment or an operation; whether it was, before its end."""

        def action() -> None:
            if operation >= 0:
                atomic.disk = KillingDisk(operation)
            self.prepared.build(name, self.index, **changes)

        child = start_child(action)
        if operation < 0:
            time.sleep(moment)
            os.kill(child, signal.SIGKILL)
        was_killed = killed(child)
        self.counts[f"kills by {how}"] += was_killed
        return was_killed

    def finish(self, name: str, **changes: Any) -> None:
        """Let the build come to its end and compare its bytes; the next one starts anew."""
        if killed(start_child(lambda: self.prepared.build(name, self.index, **changes))):
            raise SystemExit("a build was killed by someone else")
        self.compare(name)

    def compare(self, name: str) -> None:
        self.counts["builds compared"] += 1
        if contents(self.index) != self.prepared.references[name]:
            self.counts["differences"] += 1
            shutil.copytree(self.index, self.index.with_name(f"different-{self.counts['differences']}"))
        shutil.rmtree(self.index)

    def look(self) -> None:
        """Whoever opens the index now sees a whole one or none."""
        if not (self.index / MANIFEST).exists():
            return
        try:
            with open_index(self.index):
                found = verify_index(self.index)
        except AggtreeError as error:
            found = [error]
        self.counts["half-visible indexes"] += bool(found)

    def by_operation(self, kills: int) -> None:
        for number in range(kills):
            name = ("small", "tiny")[number // 10 % 2]
            while not self.kill("operation", name, operation=self.random.randrange(self.operations[name])):
                self.compare(name)
            self.look()
            if number % 10 == 9:
                self.finish(name)

    def by_time(self, kills: int) -> None:
        began = time.monotonic()
        self.finish("small")
        whole = time.monotonic() - began
        while self.counts["kills by time"] < kills:
            if not self.kill("time", "small", moment=self.random.uniform(0, whole)):
                self.compare("small")
            self.look()
        self.finish("small")

    def replacing(self, kills: int) -> None:
        while self.counts["kills by replacing"] < kills:
            shutil.copytree(self.old, self.index)
            operation = self.random.randrange(self.operations["small"])
            self.kill("replacing", "small", operation=operation, replace=True)
            with open_index(self.index) as opened:
                committed = opened.manifest.first_segment.build
            self.look()
            self.counts["old index lost"] += committed != self.old_build and not self._is_new(committed)
            self.finish("small", replace=True)

    def _is_new(self, build: str) -> bool:
        return any(name.startswith(f"build-{build}/") for name in self.prepared.references["small"])

    def repairing(self, kills: int) -> None:
        while self.counts["kills by repairing"] < kills:
            self.prepared.build("small", self.index)
            files = sorted(self.index.glob("build-*/**/*"))
            damaged = self.random.choice([path for path in files if path.is_file()])
            damaged.write_bytes(b"damage" + damaged.read_bytes()[6:])
            operation = self.random.randrange(self.operations["small"] // 2)
            self.kill("repairing", "small", operation=operation, repair=True)
            self.finish("small", repair=True)

    def start_command(self) -> "subprocess.Popen[str]":
        arguments = ["build", self.prepared.sources["small"], self.index, *SMALL_ARGUMENTS, "--workers", "2"]
        command = program("helpers.services.own_cluster", "-", 0, *arguments)
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def commands(self, kills: int, worker_kills: int) -> None:
        began = time.monotonic()
        self._end_command(self.start_command())
        whole = time.monotonic() - began
        while self.counts["kills by command"] < kills or self.counts["kills by worker"] < worker_kills:
            kind = "command" if self.counts["kills by command"] < kills else "worker"
            process = self.start_command()
            if kind == "worker":
                victims = _workers(process)
                time.sleep(self.random.uniform(0, whole / 2))
            else:
                time.sleep(self.random.uniform(0, whole))
                victims = [psutil.Process(process.pid)] if process.poll() is None else []
            if victims:
                self._kill(self.random.choice(victims), kind)
            if kind == "worker" or not victims:
                self._end_command(process)
            else:
                process.communicate(timeout=PATIENCE)
                self.look()
        self._end_command(self.start_command())

    def _kill(self, victim: psutil.Process, kind: str) -> None:
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            return
        self.counts[f"kills by {kind}"] += 1

    def _end_command(self, process: "subprocess.Popen[str]") -> None:
        output, _ = process.communicate(timeout=PATIENCE)
        if process.returncode != 0:
            self.counts["commands failed"] += 1
            print(output, file=sys.stderr, flush=True)
            process = self.start_command()
            process.communicate(timeout=PATIENCE)
        self.compare("small")


def _workers(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """The worker processes of a command, once it has some; none if it ends before."""
    driver = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            children = [child for child in driver.children() if "spawn_main" in " ".join(child.cmdline())]
        except psutil.Error:
            children = []
        if len(children) == 2:
            return children
        time.sleep(0.02)
    return []


@quick_builds()
def run(place: Path, seed: int, plan: dict[str, int] | None = None) -> dict[str, int]:
    """Kill as often as planned; how often, and what came of it."""
    wanted = PLAN if plan is None else plan
    torture = Torture(place, seed)
    torture.by_operation(wanted["operation"])
    torture.by_time(wanted["time"])
    torture.replacing(wanted["replacing"])
    torture.repairing(wanted["repairing"])
    if wanted["command"] + wanted["worker"]:
        torture.commands(wanted["command"], wanted["worker"])
    counts = dict(torture.counts)
    kinds = {name: count for name, count in counts.items() if name.startswith("kills by")}
    failures = ("differences", "half-visible indexes", "old index lost", "commands failed")
    return (
        {"kills": sum(kinds.values())}
        | kinds
        | {"builds compared": counts["builds compared"]}
        | {name: counts.get(name, 0) for name in failures}
    )


def met(counts: dict[str, int]) -> bool:
    failures = ("differences", "half-visible indexes", "old index lost", "commands failed")
    kinds = all(counts.get(f"kills by {kind}", 0) > 0 for kind in PLAN)
    return kinds and counts["kills"] >= 200 and not any(counts[name] for name in failures)
