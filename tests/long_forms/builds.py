"""Small builds in forked children, which inherit the compiled kernels: each takes a fraction of a second."""

import gc
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from small_builds import SMALL, contents, vectors

from aggtree.jobs import memory
from aggtree.jobs.build_index import build

# Two shards, two levels, one batch: few operations on the disk, so that each of them can be made to fail.
TINY: dict[str, Any] = {
    "words": (4, 4),
    "beam": 2,
    "train_rows": 200,
    "batch_rows": 200,
    "shard_rows": 150,
    "bucket": 4,
}
RECIPES = {"small": SMALL, "tiny": TINY}


class Place:
    """Sources, and what their finished indexes look like."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # Measuring memory takes longer than building does.
        memory.tree_memory = lambda **_: 1
        self.sources = {"small": directory / "small.npy", "tiny": directory / "tiny.npy"}
        np.save(self.sources["small"], vectors())
        np.save(self.sources["tiny"], vectors(300, 4))
        self.references = {name: self.reference(name) for name in RECIPES}
        # What was loaded until now need not be looked at by any child's garbage collection.
        gc.collect()
        gc.freeze()

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


def killed(child: int) -> bool:
    """Wait for a child: whether it was killed. SystemExit when it failed by itself."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit("a build failed instead of being killed")
    return False
