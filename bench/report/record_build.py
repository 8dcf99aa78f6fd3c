"""Time and memory of a build as a line of results: from the report beside its manifest, or from its logs.

    python -m bench record_build --index INDEX [--log RUN1.log RUN2.log ...] [--workers N] [--note TEXT]

Without logs the figures are those of report.json, which counts the runs that finished each stage. Logs are
the plain progress lines of all runs in order. The work of killed runs up to their last line counts too, with
the time of these rows at the rate in that line. With logs the index may be unfinished.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aggtree
from aggtree.jobs.running.memory import parse_size
from aggtree.storage.errors import AggtreeError
from aggtree.storage.index.build_report import read_report
from aggtree.storage.index.manifest import read_manifest
from aggtree.storage.work.job_record import unfinished_jobs
from bench import record

BEGIN = re.compile(r"(\w+): ([\d,]+) (rows|row passes|slices)(?:, ([\d,]+) done before)?")
ADVANCE = re.compile(r"(\w+): ([\d,]+) of [\d,]+ (?:rows|row passes|slices), ([\d,]+)/s(.*)")
END = re.compile(r"(\w+): done in ([^,]+)(.*)")
SIZE = re.compile(r"([\d.]+ [KMGT]iB)")
TIME = re.compile(r"([\d.]+) (h|min|s)\b")
UNITS = {"h": 3600.0, "min": 60.0, "s": 1.0}


@dataclass
class LoggedStage:
    """What one run did of a stage, as far as its log goes."""

    name: str
    total: int
    unit: str
    before: int
    done: int = 0
    seconds: float = 0.0
    peak: int = 0
    ended: bool = False


@dataclass
class Figures:
    """A stage over all runs."""

    name: str
    total: int
    unit: str
    done: int = 0
    seconds: float = 0.0
    peak: int = 0
    runs: int = 0
    finished: bool = field(default=False)

    def add(self, part: LoggedStage) -> None:
        self.done += part.done
        self.seconds += part.seconds
        self.peak = max(self.peak, part.peak)
        self.runs += 1
        self.finished = self.finished or part.ended


def number(text: str | None) -> int:
    return int((text or "0").replace(",", ""))


def seconds_of(text: str) -> float:
    """Seconds of a time as progress lines show it: `3 min 20 s`."""
    return sum(float(value) * UNITS[unit] for value, unit in TIME.findall(text))


def logged_stages(lines: Sequence[str]) -> Iterator[LoggedStage]:
    """The stages of one run, in order."""
    stage: LoggedStage | None = None
    for line in lines:
        begin, advance, end = BEGIN.fullmatch(line), ADVANCE.fullmatch(line), END.fullmatch(line)
        if begin:
            if stage is not None:
                yield stage
            stage = LoggedStage(begin[1], number(begin[2]), begin[3], number(begin[4]))
        elif stage is None:
            continue
        elif advance and advance[1] == stage.name:
            stage.done = number(advance[2]) - stage.before
            stage.seconds = stage.done / max(1, number(advance[3]))
            stage.peak = max([stage.peak, *map(parse_size, SIZE.findall(advance[4]))])
        elif end and end[1] == stage.name:
            stage.done, stage.seconds, stage.ended = stage.total - stage.before, seconds_of(end[2]), True
            stage.peak = max([stage.peak, *map(parse_size, SIZE.findall(end[3]))])
            yield stage
            stage = None
    if stage is not None:
        yield stage


def read_logs(paths: Sequence[Path]) -> list[Figures]:
    """The stages of a build over all its runs."""
    found: dict[str, Figures] = {}
    for path in paths:
        for stage in logged_stages(path.read_text(errors="replace").splitlines()):
            figures = found.setdefault(stage.name, Figures(stage.name, stage.total, stage.unit))
            figures.add(stage)
    return list(found.values())


def reported_stages(index: Path) -> list[dict[str, Any]]:
    """The stages as report.json has them, without the course of memory."""
    report = read_report(index, read_manifest(index).first_segment.build)
    if report is None or not report.stages:
        raise SystemExit(f"{index}: no report.json of its build; name the logs of its runs by --log")
    return [
        {name: value for name, value in stage.to_json().items() if name not in ("memory", "began")}
        for stage in report.stages
    ]


def build_facts(index: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters of a build, and the sizes of what it made, if it is finished."""
    jobs = unfinished_jobs(index)
    if jobs:
        parameters, source, sizes = jobs[0].parameters, jobs[0].source, {}
    else:
        with aggtree.open(index) as opened:
            built, parts = opened.manifest.first_segment, opened.bytes_by_part()
            parameters, source = built.parameters, built.source
            needed = sum(size for part, size in parts.items() if part != "codes.zarr")
            sizes = {
                "bytes": parts,
                "bytes_per_vector": needed / len(opened),
                "level_nodes": list(built.level_nodes),
                "level_leaves": list(built.level_leaves),
            }
    shown = {name: source[name] for name in ("rows", "dimension", "dtype", "kind") if name in source}
    names = ("words", "beam", "bucket", "stray", "train_rows")
    return shown | {name: parameters[name] for name in names}, sizes


def write_line(index: Path, *, logs: Sequence[Path] = (), more: dict[str, Any] | None = None) -> None:
    """Record one build."""
    stages = [vars(figures) for figures in read_logs(logs)] if logs else reported_stages(index)
    parameters, sizes = build_facts(index)
    parameters |= {"figures": "log" if logs else "report", **(more or {})}
    record.write("build", parameters, {"stages": stages, **sizes})


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench record_build", description=__doc__)
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--log", type=Path, nargs="+", default=[])
    parser.add_argument("--workers", type=int, help="processes or threads it ran on")
    parser.add_argument("--memory", help="what was allowed")
    parser.add_argument("--note", help="what a reader should know, such as other work on the machine")
    options = parser.parse_args(arguments)
    more = {name: getattr(options, name) for name in ("workers", "memory", "note") if getattr(options, name)}
    try:
        write_line(options.index, logs=options.log, more=more)
    except AggtreeError as error:
        raise SystemExit(str(error)) from error
    return 0
