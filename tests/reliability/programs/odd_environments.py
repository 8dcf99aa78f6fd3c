"""Builds under odd circumstances, in a process of its own.

    python odd_environments.py SOURCE DIRECTORY

Each case is a forked child that inherits the loaded kernels, changes what is around it, and builds. Prints a
JSON object: for each case the error it ended with, or "".
"""

import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.small_builds import SMALL, vectors
from numba.core.registry import cpu_target

from aggtree.engine.simd.primitive import JIT
from aggtree.jobs.append import append
from aggtree.jobs.build import build, continue_build
from aggtree.jobs.compact import compact
from aggtree.jobs.running import memory
from aggtree.jobs.running.job_run import RunOptions
from aggtree.jobs.running.tasks import describe
from aggtree.storage import atomic
from aggtree.storage.atomic import Disk
from aggtree.storage.index.format import MANIFEST
from aggtree.storage.index.reader import open_index
from aggtree.storage.verify.index import verify_index

NOBODY = 65534
FILES_OF_A_SEGMENT = 9
# More shards than descriptors.
MANY_SHARDS = SMALL | {"shard_rows": 150}


def build_small(source: Path, index: Path) -> None:
    build(source, index, workers=0, **MANY_SHARDS)


def limit(kind: int, value: int) -> None:
    resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))


def few_files(source: Path, index: Path) -> None:
    """A build needs few descriptors at once, however many files there are."""
    limit(resource.RLIMIT_NOFILE, len(list(Path("/proc/self/fd").iterdir())) + 16)
    build_small(source, index)


def too_few_files(source: Path, index: Path) -> None:
    limit(resource.RLIMIT_NOFILE, len(list(Path("/proc/self/fd").iterdir())) + 1)
    build_small(source, index)


def few_files_to_search(source: Path, index: Path) -> None:
    """A segment takes a descriptor for each file it maps, and nothing else takes many."""
    build_small(source, index)
    for number in range(6):
        append(index, vectors(50, seed=number), workers=0)
    limit(resource.RLIMIT_NOFILE, len(list(Path("/proc/self/fd").iterdir())) + 16 + 9 * FILES_OF_A_SEGMENT)
    with open_index(index) as opened:
        opened.search(vectors(3), 5, within=range(500))
    append(index, vectors(60, seed=9), workers=0)
    if verify_index(index, deep=True, workers=2):
        raise ValueError("damaged")
    compact(index, workers=0)
    shutil.rmtree(index)
    build_small(source, index)


def too_little_memory(source: Path, index: Path) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit(resource.RLIMIT_AS, pages * resource.getpagesize() + (4 << 20))
    build_small(source, index)


def clock_going_backwards(source: Path, index: Path) -> None:
    start = time.time()
    time.time = lambda: 2 * start - time.clock_gettime(time.CLOCK_REALTIME) - 86_400 * next(days)  # type: ignore[assignment]
    days = iter(range(10**9))
    build_small(source, index)


def files_too_large(source: Path, index: Path) -> None:
    """A limit on the size of files, as a quota would be."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit(resource.RLIMIT_FSIZE, 1500)
    build_small(source, index)


def become_nobody() -> None:
    """Give up root's permissions; import what compiles before: nobody may not read the interpreter."""
    if JIT:
        cpu_target.target_context.refresh()
    if os.geteuid() == 0:
        os.seteuid(NOBODY)


def read_only_directory(source: Path, index: Path) -> None:
    index.parent.chmod(0o555)
    become_nobody()
    try:
        build_small(source, index)
    finally:
        os.seteuid(os.getuid())
        index.parent.chmod(0o755)


def reading_without_writing(source: Path, index: Path) -> None:
    """Whoever may only read opens, searches and verifies."""
    build_small(source, index)
    for path in (index, *index.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    become_nobody()
    with open_index(index) as opened:
        opened.search(vectors(3), 5)
    found = verify_index(index, deep=True)
    os.seteuid(os.getuid())
    for path in (index, *index.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    if found:
        raise ValueError(found)


class KillingAfterCommit(Disk):
    """Ends the process `left` operations after the manifest was renamed into place."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.committed = False

    def __getattribute__(self, name: str) -> Any:
        if name in ("sync", "rename", "remove_file", "remove_tree") and self.committed:
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
        return super().__getattribute__(name)

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.committed |= target.name == MANIFEST


def killed_after_commit(operations: int) -> Callable[[Path, Path], None]:
    def case(source: Path, index: Path) -> None:
        atomic.disk = KillingAfterCommit(operations)
        build_small(source, index)

    return case


def tree_again(_: Path, index: Path) -> None:
    continue_build(index, "commit", RunOptions(workers=0))


KILLS = {f"killed {left} after the commit": killed_after_commit(left) for left in range(5)}
CASES: dict[str, Callable[[Path, Path], None]] = KILLS | {
    case.__name__: case
    for case in (
        few_files,
        few_files_to_search,
        too_few_files,
        too_little_memory,
        clock_going_backwards,
        files_too_large,
        read_only_directory,
        reading_without_writing,
    )
}


def in_child(case: Callable[[Path, Path], None], source: Path, index: Path) -> str:
    """The error of the case, as the command line would print it, or ""."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        message = ""
        try:
            case(source, index)
        except Exception as error:
            message = f"{type(error).__name__}: {describe(error)}"
        os.write(write, message.encode())
        os._exit(0)
    os.close(write)
    chunks = []
    while chunk := os.read(read, 1 << 16):
        chunks.append(chunk)
    os.close(read)
    _, status = os.waitpid(child, 0)
    return b"".join(chunks).decode() if status == 0 else f"ended with {os.waitstatus_to_exitcode(status)}"


def main(source: Path, directory: Path) -> None:
    memory.tree_memory = lambda **_: 1  # which looks into all processes of the machine
    build_small(source, directory / "reference")
    with open_index(directory / "reference") as index:
        index.search(vectors(3), 5)
    messages = {}
    for name, case in CASES.items():
        (directory / name).mkdir()
        messages[name] = in_child(case, source, directory / name / "index")
        if messages[name]:
            # Whatever it was, the same build goes on when it is over; so does its last stage alone.
            again = tree_again if name.endswith("3 after the commit") else build_small
            messages[f"{name}, then"] = in_child(again, source, directory / name / "index")
    print(json.dumps(messages))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
