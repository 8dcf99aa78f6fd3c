"""Progress of a job.

A job reports to one `Progress`: stages begin, advance and end, with notes in between. The listener turns the
events into a live display on a terminal or in a notebook, plain lines, records of `logging`, JSON for a
program, or nothing.
"""

import json
import logging
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Literal, TextIO, get_args

from aggtree.jobs.running.memory import format_size

PLAIN_SECONDS = 10.0
LOGGER = logging.getLogger("aggtree")

ProgressKind = Literal["auto", "live", "plain", "json", "log", "none"]


class Progress:
    """Base, and the listener that shows nothing. `memory` gives the bytes in use now."""

    def __init__(self) -> None:
        self.memory: Callable[[], int] | None = None
        self.stage = ""
        self.unit = ""
        self.total = 0
        self.done = 0
        self._began = 0.0
        self._began_done = 0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def begin(self, stage: str, total: int, *, done: int = 0, unit: str = "rows") -> None:
        """A stage of `total` units begins; `done` of them were finished by an earlier run."""
        self.stage, self.unit, self.total, self.done = stage, unit, total, done
        self._began, self._began_done = time.monotonic(), done
        self.show("begin", unit=unit)

    def advance(self, count: int) -> None:
        """`count` more units of the stage are done."""
        self.done += count
        self.show("advance")

    def end(self, **facts: object) -> None:
        """The stage is done; `facts` are figures to display."""
        self.show("end", **facts)

    def note(self, text: str) -> None:
        """One line for the reader."""

    def show(self, event: str, **facts: object) -> None:
        """Show an event of the present stage."""

    def close(self) -> None:
        """Nothing more will be reported."""

    @property
    def seconds(self) -> float:
        """Seconds since the stage began."""
        return time.monotonic() - self._began

    @property
    def done_now(self) -> int:
        """Units of the stage done in this run."""
        return self.done - self._began_done

    @property
    def rate(self) -> float:
        """Units per second since the stage began in this run."""
        return self.done_now / max(self.seconds, 1e-9)

    @property
    def remaining(self) -> float | None:
        """Seconds left at this rate, or None when nothing is known."""
        return (self.total - self.done) / self.rate if self.done > self._began_done else None


class PlainProgress(Progress):
    """Lines of text, at most one in ten seconds while a stage runs: for log files and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream if stream is not None else sys.stderr
        self._said = 0.0

    def note(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def show(self, event: str, **facts: object) -> None:
        now = time.monotonic()
        if event == "begin":
            self._said = now
            resumed = f", {self.done:,} done before" if self.done else ""
            self.note(f"{self.stage}: {self.total:,} {self.unit}{resumed}")
        elif event == "advance" and now - self._said >= PLAIN_SECONDS:
            self._said = now
            left = self.remaining
            self.note(
                f"{self.stage}: {self.done:,} of {self.total:,} {self.unit}, {self.rate:,.0f}/s"
                + (f", {format_time(left)} left" if left is not None else "")
                + (f", {format_size(self.memory())}" if self.memory else "")
            )
        elif event == "end":
            extra = "".join(f", {name.replace('_', ' ')} {value}" for name, value in facts.items())
            self.note(f"{self.stage}: done in {format_time(self.seconds)}{extra}")


class LogProgress(PlainProgress):
    """The same lines as INFO records of the logger `aggtree`."""

    def note(self, text: str) -> None:
        LOGGER.info("%s", text)


class JsonProgress(Progress):
    """One JSON object per line: for programs."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream if stream is not None else sys.stderr
        self._said = 0.0

    def note(self, text: str) -> None:
        self._write({"event": "note", "text": text})

    def show(self, event: str, **facts: object) -> None:
        now = time.monotonic()
        if event == "advance" and now - self._said < 0.5 and self.done < self.total:
            return
        self._said = now
        record: dict[str, Any] = {"event": event, "stage": self.stage, "done": self.done, "total": self.total}
        if event != "begin":
            record["seconds"] = round(self.seconds, 3)
            record["rate"] = round(self.rate, 1)
        if self.memory:
            record["memory"] = self.memory()
        self._write(record | facts)

    def _write(self, record: dict[str, Any]) -> None:
        self._stream.write(json.dumps(record) + "\n")
        self._stream.flush()


class LiveProgress(Progress):
    """One live display for all stages, with rate, time left and memory: for terminals."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Display

        self._display = Display(
            TextColumn("{task.description:>8}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            expand=True,
        )
        self._task: Any = None

    def __enter__(self) -> "LiveProgress":
        self._display.start()
        return self

    def note(self, text: str) -> None:
        self._display.console.print(text, highlight=False, markup=False)

    def show(self, event: str, **facts: object) -> None:
        if event == "begin":
            self._task = self._display.add_task(self.stage, total=self.total, completed=self.done, detail="")
            return
        if event == "end":
            self._display.update(
                self._task, completed=self.total, total=self.total, detail=self._figures(facts)
            )
            self._display.stop_task(self._task)
            return
        left = self.remaining
        words = [f"{self.rate:,.0f} {self.unit}/s"]
        if left is not None:
            words.append(f"{format_time(left)} left")
        if self.memory:
            words.append(format_size(self.memory()))
        self._display.update(self._task, completed=self.done, detail=" · ".join(words))

    def close(self) -> None:
        self._display.stop()

    def _figures(self, facts: dict[str, Any]) -> str:
        words = [f"{self.rate:,.0f} {self.unit}/s"] if self.done > self._began_done else ["done before"]
        words += [f"{name.replace('_', ' ')} {value}" for name, value in facts.items()]
        return " · ".join(words)


def format_time(seconds: float) -> str:
    """Seconds for people: `0.4 s`, `12 s`, `3 min 20 s`, `5 h 12 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


ProgressChoice = Progress | ProgressKind | bool | None
"""What a job reports to: a listener or a kind of one, False for none, None for the default."""


def make_progress(choice: ProgressChoice) -> Progress:
    """The chosen listener.

    By default it is a live display on a terminal or in a notebook, and the logger `aggtree` elsewhere; `auto`
    writes plain lines instead of log records. `none` shows nothing.
    """
    if isinstance(choice, Progress):
        return choice
    if choice is False:
        choice = "none"
    if choice is None or choice is True:
        choice = "auto" if _on_terminal() or in_notebook() else "log"
    if choice == "auto":
        choice = "live" if _on_terminal() or _has_widgets() else "plain"
    makers: dict[str, Callable[[], Progress]] = {
        "live": LiveProgress,
        "plain": PlainProgress,
        "log": LogProgress,
        "json": JsonProgress,
        "none": Progress,
    }
    if choice not in makers:
        raise ValueError(f"progress {choice!r}: expected one of {', '.join(get_args(ProgressKind))}")
    return makers[choice]()


def _on_terminal() -> bool:
    return bool(sys.stderr and sys.stderr.isatty())  # a service may have none


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _has_widgets() -> bool:
    """Whether a live display can be shown in a notebook."""
    return in_notebook() and find_spec("ipywidgets") is not None
