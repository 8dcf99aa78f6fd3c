"""One line for users who wait for the compiler.

Compilation takes seconds, once for each machine. A process that has spent more than two of them reports
it once, as a warning of the logger `aggtree`, or to the function that displays progress.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aggtree.engine.simd import kernel_cache

PATIENCE = 2.0
"""Seconds of compilation without a notice."""
LOGGER = logging.getLogger("aggtree")


class _Notice:
    """Counts the compile seconds of this process, and reports them to listeners."""

    def __init__(self) -> None:
        self.show: Callable[[str], None] = LOGGER.warning
        self.seconds = 0.0
        self.given = False

    def give(self) -> None:
        """Show the line."""
        self.given = True
        self.show(notice())


_NOTICE = _Notice()


def notice() -> str:
    """What is going on, and where its result is kept."""
    place = kernel_cache.first_writable_place()
    kept = f"once per machine, cached in {place}" if place else "in each process: no directory can be written"
    return f"compiling kernels for this processor, {kept}"


@contextmanager
def notice_shown_by(show: Callable[[str], None]) -> Iterator[None]:
    """Let a function show the line meanwhile, instead of the log."""
    before, _NOTICE.show = _NOTICE.show, show
    try:
        yield
    finally:
        _NOTICE.show = before


@contextmanager
def compiling() -> Iterator[None]:
    """A kernel is compiled; numba's lock sees to it that it is one at a time."""
    timer = threading.Timer(max(0.0, PATIENCE - _NOTICE.seconds), _NOTICE.give)
    timer.daemon = True
    if not _NOTICE.given:
        timer.start()
    began = time.monotonic()
    try:
        yield
    finally:
        timer.cancel()
        _NOTICE.seconds += time.monotonic() - began
