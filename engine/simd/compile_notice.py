"""One line for whoever waits for the compiler.

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
"""Seconds of compilation that pass without a word."""
LOGGER = logging.getLogger("aggtree")


class _Notice:
    """Counts the seconds of this process, and who is told of them."""

    def __init__(self) -> None:
        self.show: Callable[[str], None] = LOGGER.warning
        self.seconds = 0.0
        self.given = False

    def give(self) -> None:
        """Show the line."""
        self.given = True
        self.show(f"compiling kernels for this processor: once per machine, {_where()}")


_NOTICE = _Notice()


def _where() -> str:
    place = kernel_cache.first_writable_place()
    return (
        f"cached in {place}" if place else "but no directory can be written, so every process compiles again"
    )


def show_notice_by(show: Callable[[str], None]) -> Callable[[str], None]:
    """Let a function show the line; returns the one that did before."""
    before, _NOTICE.show = _NOTICE.show, show
    return before


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
