"""Memory of a job: limit, projection and measurement.

allowed    the limit that the user gives (`--memory 4GiB`), for this process and all its children;
projected  computed by the plan before anything runs (`jobs/planning/plan.py`);
peak       measured during the run, by a thread that adds up the process tree.

Every page counts once over the whole tree: a process's own pages, and of the file pages it shares, such as
those of the libraries, the largest share of any process. Other processes that map the same libraries make no
difference, as they would to the proportional set size. Where the system does not report which pages are
shared, all count in each process, which can only be more.
"""

import ctypes
import gc
import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

from aggtree.storage.errors import MemoryBudgetError

KIB, MIB, GIB = 2**10, 2**20, 2**30
PAGE = os.sysconf("SC_PAGE_SIZE")

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


def parse_size(size: str | int | float, name: str = "memory") -> int:
    """Bytes of a size such as `4GiB`, `800MB`, `1.5g` or a plain number of bytes; `name` is for errors."""
    invalid = MemoryBudgetError if name == "memory" else ValueError
    if isinstance(size, (int, float)) and not isinstance(size, bool):
        number, unit = float(size), ""
    else:
        match = _SIZE.fullmatch(str(size))
        if match is None or match[2].lower() not in _UNITS:
            raise invalid(f"{name} {size!r}: expected a size such as 4GiB or 800MB")
        number, unit = float(match[1]), match[2].lower()
    if not 0 < number < float("inf"):
        raise invalid(f"{name} {size!r}: expected more than 0 bytes")
    return int(number * _UNITS[unit])


def format_size(size: int | float) -> str:
    """A size for people: `1.5 GiB`, `812 MiB`."""
    for unit, name in ((2**40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            number = size / unit
            return f"{number:.0f} {name}" if number >= 100 else f"{number:.3g} {name}"
    return f"{size:.0f} B"


def tree_memory(*, exact: bool = True) -> int:
    """Bytes used by this process and all its descendants now; if not `exact`, an upper bound in less time."""
    family = _family()
    if not exact:
        return sum(_resident(pid) for pid in family)
    pages = [_pages(pid) for pid in family]
    return sum(own for own, _ in pages) + max(shared for _, shared in pages)


def _family() -> list[int]:
    """This process and all its descendants."""
    family = [os.getpid()]
    try:
        for pid in family:
            # A thousandth of a second; looking at every process of the machine takes ten times as long.
            with suppress(FileNotFoundError, ProcessLookupError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    with suppress(FileNotFoundError, ProcessLookupError):
                        family += map(int, (task / "children").read_text().split())
        if Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists():
            return family
    except OSError:
        pass
    try:
        return [os.getpid(), *(process.pid for process in psutil.Process().children(recursive=True))]
    except psutil.Error:
        return [os.getpid()]


def _resident(pid: int) -> int:
    """Resident bytes of one process; 0 when it has ended."""
    try:
        return PAGE * int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        with suppress(psutil.Error):
            return int(psutil.Process(pid).memory_info().rss)
        return 0


def _pages(pid: int) -> tuple[int, int]:
    """Bytes of private pages, and bytes of file pages that others map too."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
        kilobytes = {words[0]: int(words[1]) for words in map(str.split, lines)}
        own = kilobytes["Pss_Anon:"] + kilobytes["Pss_Shmem:"] + kilobytes["Private_Clean:"]
        return KIB * own, KIB * kilobytes["Shared_Clean:"]
    except (OSError, KeyError, ValueError):
        return _resident(pid), 0


def release_memory() -> None:
    """Return freed memory to the system, so that it does not count in the next stage."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class MemoryTrace:
    """Memory over time in a bounded number of points, each the maximum since the previous one."""

    MOST = 120

    def __init__(self) -> None:
        self._points: list[tuple[float, int]] = []
        self._step = 1
        self._waiting: list[int] = []

    def add(self, moment: float, used: int) -> None:
        """One measurement, at a moment of the monotonic clock."""
        self._waiting.append(used)
        if len(self._waiting) < self._step:
            return
        self._points.append((moment, max(self._waiting)))
        self._waiting.clear()
        if len(self._points) == self.MOST:
            # Every two become one, and from now on it takes twice as many measurements to make one.
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [(end, max(before, used)) for (_, before), (end, used) in pairs]
            self._step *= 2

    def since(self, began: float) -> tuple[tuple[float, int], ...]:
        """The points after a moment, with the seconds since then."""
        return tuple((moment - began, used) for moment, used in list(self._points) if moment >= began)


class MemoryMeter:
    """Context manager: a thread measures the process tree until the block ends.

    `peak` is the largest sum seen, `take_stage_peak()` the largest since its last call; `trace` is what
    the stage used so far, over time.
    """

    def __init__(self, interval: float = 0.1) -> None:
        self.now = 0
        self.peak = 0
        self.trace = MemoryTrace()
        self._stage_peak = 0
        self._bound = 0  # the upper bound when it was last measured exactly, and what that counts twice
        self._twice = 0
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
        bound = tree_memory(exact=False)
        with self._lock:
            if bound <= self._bound:
                self.now = bound - self._twice
                return self.now
        now = tree_memory()
        with self._lock:
            self.now = now
            self.peak = max(self.peak, now)
            self._stage_peak = max(self._stage_peak, now)
            self._bound, self._twice = bound, max(0, bound - now)
        return now

    def take_stage_peak(self) -> int:
        """The peak since the last call; later measurements belong to the next stage."""
        self.measure()
        release_memory()
        return self.begin_stage()

    def begin_stage(self) -> int:
        """Begin the next stage; returns the peak of the previous one."""
        with self._lock:
            peak, self._stage_peak, self._bound = self._stage_peak, 0, 0
        self.trace = MemoryTrace()
        self.measure()
        return peak

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self.trace.add(time.monotonic(), self.measure())
