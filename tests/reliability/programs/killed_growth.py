"""Runs in a process of its own: an index that is appended to, deleted from and compacted by killed processes.

    python killed_growth.py PLACE INDEX SEED KILLS

PLACE holds 0.npy, 1.npy and 2.npy. Each command runs in a forked child that kills itself with SIGKILL after a
random number of operations on the disk, again and again until one is through. After each kill the index must
be whole and have the rows of before or after the command, nothing between.
"""

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

from helpers.small_builds import SMALL

import aggtree
from aggtree.storage import atomic
from aggtree.storage.verify.index import verify_index
from reliability.builds import quick_builds
from reliability.programs.killed_builds import KillingDisk

GONE = range(1100, 1300)

Command = Callable[[], object]


def commands(place: Path, index: Path) -> list[tuple[Command, int]]:
    """What is done one after the other, and how many rows there are then."""
    return [
        (lambda: aggtree.append(index, place / "1.npy", workers=0), 2001),
        (lambda: aggtree.delete(index, GONE), 1801),
        (lambda: aggtree.append(index, place / "2.npy", workers=0), 2900),
        (lambda: aggtree.compact(index, workers=0), 2900),
    ]


def run_in_child(command: Command, operations: int | None) -> bool:
    """Run a command in a forked process; whether it came to its end."""
    child = os.fork()
    if child == 0:
        if operations is not None:
            atomic.disk = KillingDisk(operations)
        command()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"a command failed with {status} instead of being killed")
    return not os.WIFSIGNALED(status)


def main(place: Path, index: Path, seed: int, kills: int) -> None:
    """Kill each command `kills` times at most, then let it through."""
    rng = random.Random(seed)
    # Children inherit the loaded kernels.
    aggtree.build(place / "0.npy", index, workers=0, **SMALL)
    before = 1203
    killed = 0
    with quick_builds():
        for command, after in commands(place, index):
            for _ in range(kills):
                if run_in_child(command, rng.randrange(60)):
                    break
                killed += 1
                with aggtree.open(index) as opened:
                    assert len(opened) in (before, after), len(opened)
                assert verify_index(index) == []
            assert run_in_child(command, None)
            before = after
    print(killed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
