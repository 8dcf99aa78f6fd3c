"""What is arranged around a Dask cluster while it starts, runs and ends: signals, logs, a loop."""

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

LOOP_SECONDS = 120.0  # how long a stalled machine may take to start a thread


def ignore_interrupts() -> None:
    """Ignore Ctrl-C in workers: the driver closes them, otherwise they would print tracebacks."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def postponed_signals() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM until the block ends: a half-started cluster could not be closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[signal.Signals] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {
        number: signal.signal(number, lambda number, _: arrived.append(signal.Signals(number)))
        for number in numbers
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])


@contextmanager
def hidden_main() -> Iterator[None]:
    """Hide the user's script from spawned workers.

    A spawned process imports the main module again. Tasks do not need it, and a script without the
    `if __name__ == "__main__"` guard would start its build again in each worker.
    """
    main = sys.modules["__main__"]
    saved = {name: main.__dict__.get(name) for name in ("__file__", "__spec__")}
    main.__dict__.pop("__file__", None)
    main.__dict__["__spec__"] = None
    try:
        yield
    finally:
        main.__dict__.update({name: value for name, value in saved.items() if name != "__file__" or value})


@contextmanager
def event_loop() -> Iterator[Any]:
    """A running event loop in a thread of its own, for clusters and clients to share.

    Dask would start one itself, but gives up if the thread does not run within ten seconds; a busy or
    suspended machine takes longer.
    """
    from tornado.ioloop import IOLoop

    running: Future[IOLoop] = Future()
    stop = asyncio.Event()

    async def serve() -> None:
        running.set_result(IOLoop.current())
        await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="IO loop", daemon=True)
    thread.start()
    loop = running.result(LOOP_SECONDS)
    try:
        yield loop
    finally:
        loop.add_callback(stop.set)
        thread.join(LOOP_SECONDS)


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Let errors of a connection come to the user as one line, and not as Dask's tracebacks too."""
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
