"""Runs in a process of its own: builds that are killed at given moments, until one is through.

    python killed_builds.py SOURCE INDEX SEED KILLS SMALL|WIDE

Each build is a forked child that kills itself with SIGKILL after a random number of operations on the disk
(creating, writing, syncing, renaming, removing), also in the middle of a write. Prints the stages' records
that were there after each kill.
"""

import os
import random
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from helpers import small_builds

from aggtree.jobs.build import build
from aggtree.storage import atomic
from reliability.builds import quick_builds


class KillingDisk(atomic.Disk):
    """Ends the process at the n-th operation, before it is done or, for a write, when it is half done."""

    def __init__(self, operations: int) -> None:
        self.left = operations

    def _count(self) -> bool:
        self.left -= 1
        return self.left < 0

    def create(self, path: Path) -> int:
        self._check()
        return super().create(path)

    def write(self, descriptor: int, data: memoryview) -> int:
        if self._count():
            os.write(descriptor, data[: len(data) // 2])
            kill()
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self._check()  # and no more: a killed process does not need it

    def rename(self, source: Path, target: Path) -> None:
        self._check()
        super().rename(source, target)

    def remove_file(self, path: Path) -> None:
        self._check()
        super().remove_file(path)

    def remove_tree(self, path: Path) -> None:
        self._check()
        super().remove_tree(path)

    def _check(self) -> None:
        if self._count():
            kill()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def build_in_child(source: str, index: str, options: dict[str, Any], operations: int | None) -> bool:
    """Build in a forked process; whether it came to its end."""
    child = os.fork()
    if child == 0:
        if operations is not None:
            atomic.disk = KillingDisk(operations)
        build(source, index, workers=0, **options)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"the build failed with {status} instead of being killed")
    return not os.WIFSIGNALED(status)


def main(source: str, index: str, seed: str, kills: str, name: str) -> None:
    """Kill `kills` builds, then let one through; builds that came through start a new index."""
    rng = random.Random(int(seed))
    options: dict[str, Any] = getattr(small_builds, name)
    with TemporaryDirectory() as directory:
        build(source, Path(directory) / "index", workers=0, **options)  # children inherit the loaded kernels
    with quick_builds():
        kill_and_finish(source, index, options, rng, int(kills))


def kill_and_finish(source: str, index: str, options: dict[str, Any], rng: random.Random, kills: int) -> None:
    killed = 0
    while killed < kills:
        if build_in_child(source, index, options, rng.randrange(150)):
            for path in sorted(Path(index).rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
        else:
            killed += 1
    assert build_in_child(source, index, options, None)


if __name__ == "__main__":
    main(*sys.argv[1:])
