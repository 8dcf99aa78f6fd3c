"""Memory as a promise, in three words.

allowed    what the user gives (`--memory 4GiB`), for this process and all it starts;
projected  what the plan computes before anything runs (`jobs/plan.py`);
peak       what was measured while it ran, by a thread that adds up the process tree.

A process is counted by its proportional set size (PSS): pages shared by several processes, such as
the libraries of the workers, count once over the whole tree. Where the system does not tell the PSS,
the resident size is taken, which can only be larger.
"""

import ctypes
import gc
import re
import threading
from contextlib import suppress
from types import TracebackType

import psutil

from aggtree.storage.errors import MemoryBudgetError

KIB, MIB, GIB = 2**10, 2**20, 2**30

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": KIB,
    "m": MIB,
    "g": GIB,
    "t": 2**40,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_size(size: str | int | float) -> int:
    """Bytes of a size such as `4GiB`, `800MB`, `1.5g` or a plain number of bytes."""
    if isinstance(size, (int, float)) and not isinstance(size, bool):
        number, unit = float(size), ""
    else:
        match = _SIZE.fullmatch(str(size))
        if match is None or match[2].lower() not in _UNITS:
            raise MemoryBudgetError(f"memory {size!r}: expected a size such as 4GiB or 800MB")
        number, unit = float(match[1]), match[2].lower()
    if not 0 < number < float("inf"):
        raise MemoryBudgetError(f"memory {size!r}: expected more than 0 bytes")
    return int(number * _UNITS[unit])


def format_size(size: int | float) -> str:
    """A size for people: `1.5 GiB`, `812 MiB`."""
    for unit, name in ((2**40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            number = size / unit
            return f"{number:.0f} {name}" if number >= 100 else f"{number:.3g} {name}"
    return f"{size:.0f} B"


def process_memory(process: psutil.Process, *, exact: bool = True) -> int:
    """Bytes of one process: its PSS, or its resident size if not `exact`; 0 when it has ended.

    The resident size is read in a fraction of the time and is never less than the PSS.
    """
    try:
        if exact:
            with suppress(psutil.AccessDenied, AttributeError):
                return int(process.memory_full_info().pss)
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def tree_memory(*, exact: bool = True) -> int:
    """Bytes used by this process and all its descendants now."""
    this = psutil.Process()
    try:
        family = [this, *this.children(recursive=True)]
    except psutil.Error:
        family = [this]
    return sum(process_memory(process, exact=exact) for process in family)


def release_memory() -> None:
    """Give freed memory back to the system, so that one stage's leftovers do not count in the next."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class MemoryMeter:
    """Context manager: a thread measures the process tree until the block ends.

    `peak` is the largest sum seen, `take_stage_peak()` the largest since it was last asked.
    """

    def __init__(self, interval: float = 0.1) -> None:
        self.now = 0
        self.peak = 0
        self._stage_peak = 0
        self._interval = interval
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory meter", daemon=True)

    def __enter__(self) -> "MemoryMeter":
        self.measure()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.measure()

    def measure(self) -> int:
        """Measure once, now; exactly where it could be a new peak."""
        now = tree_memory(exact=False)
        if now > self._stage_peak:
            now = tree_memory()
        with self._lock:
            self.now = now
            self.peak = max(self.peak, now)
            self._stage_peak = max(self._stage_peak, now)
        return now

    def take_stage_peak(self) -> int:
        """The peak since the last call; what is measured from now on belongs to the next stage."""
        self.measure()
        release_memory()
        with self._lock:
            peak, self._stage_peak = self._stage_peak, 0
        self.measure()
        return peak

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self.measure()
