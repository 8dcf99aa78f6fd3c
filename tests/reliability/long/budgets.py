"""The promise of `--memory` for shapes that need it for different things, in fresh processes.

Vectors of 1,536 and of 960 floats, 32 dictionaries, a wide first dictionary for few rows: each is built with
the smallest budget that the plan accepts, in a control group that can use no more where the system allows it.
The peak of every stage is within what was projected for it, and that of the stage that needs most is at least
three quarters of it.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from aggtree.jobs.running.memory import MIB, parse_size

SHAPES: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "1,536 dimensions": (16_000, 1536, ("--words", "32x4", "--beam", "1")),
    "960 dimensions": (24_000, 960, ("--words", "32x4", "--beam", "1")),
    "32 dictionaries": (16_000, 96, ("--words", "96x32", "--beam", "1")),
    "wide first dictionary": (30_000, 256, ("--words", "16384,16x3", "--beam", "1")),
}
GROUPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
NEAR = 0.75
"""Least share of the projection that the largest stage must have needed."""


def write_vectors(path: Path, rows: int, dimension: int) -> None:
    """Clustered float32 vectors, a block at a time."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((50, dimension)).astype(np.float32) * 3
    array = np.lib.format.open_memmap(path, "w+", np.float32, (rows, dimension))
    for start in range(0, rows, 2000):
        stop = min(start + 2000, rows)
        noise = random.standard_normal((stop - start, dimension)).astype(np.float32)
        array[start:stop] = centres[random.integers(0, 50, stop - start)] + noise
    array.flush()


def command(source: Path, index: Path, memory: str, *options: str) -> list[str]:
    build = ["build", str(source), str(index), "--memory", memory, "--workers", "0", "--json"]
    return [sys.executable, "-m", "aggtree.jobs.cli.main", *build, *options]


def smallest_budget(source: Path, index: Path, options: tuple[str, ...]) -> str:
    """The budget that the refusal of a smaller one names."""
    answer = subprocess.run(
        command(source, index, "100MiB", *options), capture_output=True, text=True, check=False
    )
    named = re.search(r"allow (\d+MiB)", answer.stderr)
    if named is None:
        raise SystemExit(f"no budget is named: {answer.stderr}")
    return named[1]


@contextmanager
def control_group(limit: int) -> Iterator[Callable[[], None] | None]:
    """What puts a new process under a limit that the system enforces; None where that needs more rights."""
    group = next(
        (root / f"aggtree-{os.getpid()}" for root in GROUPS if (root / "cgroup.procs").exists()), None
    )
    try:
        if group is None:
            raise OSError("no control groups")
        group.mkdir()
        name = "memory.limit_in_bytes" if (group / "memory.limit_in_bytes").exists() else "memory.max"
        (group / name).write_text(str(limit))
    except OSError:
        yield None
        return
    procs = group / "cgroup.procs"
    try:
        yield lambda: procs.write_text(str(os.getpid())) and None
    finally:
        with suppress(OSError):
            group.rmdir()


def build(place: Path, name: str) -> dict[str, Any]:
    """What a build of a shape with the smallest budget took."""
    rows, dimension, options = SHAPES[name]
    source, index = place / "base.npy", place / "index"
    write_vectors(source, rows, dimension)
    memory = smallest_budget(source, index, options)
    with control_group(parse_size(memory)) as enter:
        answer = subprocess.run(
            command(source, index, memory, *options),
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=enter,  # this process has no threads
        )
    if answer.returncode:
        raise SystemExit(answer.stderr)
    result: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return result | {"allowed": parse_size(memory), "capped": enter is not None}


def run(place: Path, seed: int) -> dict[str, int]:
    counts: dict[str, int] = {"shapes": 0, "limited by the system": 0, "over the budget": 0}
    counts |= {"over the projection": 0, "far below it": 0}
    for name in SHAPES:
        (place / name).mkdir()
        result = build(place / name, name)
        largest = max(result["stages"], key=lambda stage: stage["projected"])
        counts["shapes"] += 1
        counts["limited by the system"] += result["capped"]
        counts["over the budget"] += result["peak"] > result["allowed"]
        counts["over the projection"] += any(one["peak"] > one["projected"] for one in result["stages"])
        counts["far below it"] += largest["peak"] < NEAR * largest["projected"]
        counts[f"MiB projected for {name}"] = round(largest["projected"] / MIB)
        counts[f"MiB measured for {name}"] = round(largest["peak"] / MIB)
        print(
            name,
            [(one["name"], one["projected"] >> 20, one["peak"] >> 20) for one in result["stages"]],
            flush=True,
        )
        (place / name / "base.npy").unlink()
    return counts


def met(counts: dict[str, int]) -> bool:
    bad = ("over the budget", "over the projection", "far below it")
    return counts["shapes"] == len(SHAPES) and not any(counts[name] for name in bad)
