"""Small builds in forked children, which inherit the compiled kernels: each takes a fraction of a second."""

import gc
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from helpers.small_builds import SMALL, contents, vectors

from aggtree.jobs.build import build
from aggtree.jobs.running import memory

# Two shards, two levels, one batch: few operations on the disk, so that each of them can be made to fail.
TINY: dict[str, Any] = {
    "words": (2, 2),
    "beam": 1,
    "train_rows": 100,
    "batch_rows": 100,
    "shard_rows": 150,
    "bucket": 4,
}
RECIPES = {"small": SMALL, "tiny": TINY}


@contextmanager
def quick_builds() -> Iterator[None]:
    """Leave out what takes longer than a small build does.

    Measuring memory looks at all processes of the machine, and collecting garbage at all that is loaded.
    """
    with mock.patch.object(memory, "tree_memory", lambda **_: 1):
        gc.collect()
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()


class Place:
    """Sources, and what their finished indexes look like."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sources = {"small": directory / "small.npy", "tiny": directory / "tiny.npy"}
        np.save(self.sources["small"], vectors())
        np.save(self.sources["tiny"], vectors(300, 4))
        self.references = {name: self.reference(name) for name in RECIPES}
        gc.freeze()  # all that the first builds have loaded

    def reference(self, name: str, **changes: Any) -> dict[str, str]:
        """Name and digest of every file of an uninterrupted build."""
        index = self.directory / "reference"
        self.build(name, index, **changes)
        made = contents(index)
        shutil.rmtree(index)
        return made

    def build(self, name: str, index: Path, **changes: Any) -> None:
        build(self.sources[name], index, workers=0, **RECIPES[name] | changes)


def start_child(action: Callable[[], object]) -> int:
    """Run an action in a forked process; its number."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    return child


def status_of(child: int) -> int:
    """Wait for a child: 0, its exit code, or less than 0 for the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed(child: int) -> bool:
    """Wait for a child: whether it was killed. SystemExit when it failed by itself."""
    code = status_of(child)
    if code > 0:
        raise SystemExit("a build failed instead of being killed")
    return code < 0
