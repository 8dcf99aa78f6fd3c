"""A task that fails, for workers and schedulers that are given this file: it needs nothing but Python."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Failing:
    """Fails, and adds a letter to the file `place` each time it is tried."""

    number: int
    place: str
    rows: int = 10


def fail(task: Failing, tick: Callable[[int], None]) -> None:
    with Path(task.place).open("a") as file:
        file.write("x")
    raise RuntimeError("a cosmic ray\nand what it hit")
