"""ENOSPC, EIO and SIGTERM at every operation of a small build, new and replacing, from there on or once.

Whatever fails: the old index or the new one is there, whole; the error is one line of our own; and the same
build on a disk that works again ends with the bytes of an undisturbed one.
"""

import errno
import os
import shutil
import signal
from collections import Counter
from pathlib import Path

from helpers.failing_disk import FailingDisk
from helpers.small_builds import contents

from aggtree.jobs.cli.main import Terminated, terminate
from aggtree.storage import atomic
from aggtree.storage.errors import AggtreeError
from aggtree.storage.index.format import MANIFEST
from aggtree.storage.index.reader import open_index
from aggtree.storage.verify.index import verify_index
from reliability.builds import Place, quick_builds

CODES = (errno.ENOSPC, errno.EIO)


class WholeWrites(FailingDisk):
    """A write takes all it is given: fewer operations, and each still fails."""

    def write(self, descriptor: int, data: memoryview) -> int:
        self._count("write")
        return os.write(descriptor, data)


class TerminatingDisk(WholeWrites):
    """The process gets SIGTERM before its n-th operation, which is then done or not, as Python decides."""

    def _count(self, name: str) -> None:
        self.operations.append(name)
        if len(self.operations) - 1 == self.at:
            signal.raise_signal(signal.SIGTERM)


class Trial:
    """A rebuild over an old index, or a first build, on disks that fail."""

    def __init__(self, place: Path) -> None:
        self.prepared = Place(place)
        self.index, self.old = place / "index", place / "old"
        self.prepared.build("tiny", self.old, seed=1)
        with open_index(self.old) as opened:
            self.old_build = opened.manifest.first_segment.build
        self.counts: Counter[str] = Counter()

    def operations(self, *, replace: bool) -> list[str]:
        """What an undisturbed build does to the disk."""
        self._begin(replace=replace)
        counting = WholeWrites()
        atomic.disk = counting
        self.prepared.build("tiny", self.index, replace=replace)
        shutil.rmtree(self.index)
        return counting.operations

    def fail(self, at: int, code: int, *, replace: bool, forever: bool) -> None:
        self._begin(replace=replace)
        stopping = code == signal.SIGTERM
        atomic.disk = TerminatingDisk(at) if stopping else WholeWrites(at, code, forever=forever)
        self.counts["signals" if stopping else "faults"] += 1
        try:
            self.prepared.build("tiny", self.index, replace=replace)
        except Terminated:
            self.counts["other errors"] += not stopping
        except AggtreeError as error:
            self.counts["errors of several lines"] += "\n" in str(error)
        except Exception:
            self.counts["other errors"] += 1
        atomic.disk = WholeWrites()
        self._look(replace=replace)
        self.prepared.build("tiny", self.index, replace=replace)
        self.counts["differences"] += contents(self.index) != self.prepared.references["tiny"]
        shutil.rmtree(self.index)

    def _begin(self, *, replace: bool) -> None:
        if replace:
            shutil.copytree(self.old, self.index)

    def _look(self, *, replace: bool) -> None:
        """The index a reader finds between the fault and the next try."""
        if not (self.index / MANIFEST).exists():
            self.counts["lost indexes"] += replace
            return
        try:
            with open_index(self.index):
                damaged = bool(verify_index(self.index))
        except AggtreeError:
            damaged = True
        self.counts["half-visible indexes"] += damaged


@quick_builds()
def run(place: Path, seed: int, step: int = 1) -> dict[str, int]:
    """Let every `step`-th operation fail, beginning with number `seed`."""
    trial = Trial(place)
    plain, handler = atomic.disk, signal.signal(signal.SIGTERM, terminate)
    kinds: Counter[str] = Counter()
    try:
        for replace in (False, True):
            operations = trial.operations(replace=replace)
            for at in range(seed % step, len(operations), step):
                # A rebuild takes other turns in a few operations only: one of both errors for each.
                for code in CODES[at % 2 : at % 2 + 1] if replace else CODES:
                    trial.fail(at, code, replace=replace, forever=code == errno.ENOSPC)
                    kinds[f"at {operations[at]}"] += 1
                trial.fail(at, signal.SIGTERM, replace=replace, forever=False)
    finally:
        atomic.disk = plain
        signal.signal(signal.SIGTERM, handler)
    bad = ("lost indexes", "half-visible indexes", "differences", "other errors", "errors of several lines")
    counts = {"faults": trial.counts["faults"]} | dict(kinds) | {"signals": trial.counts["signals"]}
    return counts | {name: trial.counts[name] for name in bad}


def met(counts: dict[str, int]) -> bool:
    bad = ("lost indexes", "half-visible indexes", "differences", "other errors", "errors of several lines")
    return counts["faults"] > 0 and not any(counts[name] for name in bad)
