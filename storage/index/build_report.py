"""Time and memory of a build, stored beside the manifest: not part of the index, and not verified.

    sift.index/report.json   sealed record: the build, time and memory of each stage, and the learning curve

Times and memory differ from run to run while the files of a build do not, so they are kept apart from them.
An index without this file, or with that of another build, is as good as any.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggtree.engine.quality import Quality
from aggtree.storage.atomic import Json
from aggtree.storage.errors import AggtreeError, IndexFormatError
from aggtree.storage.index.format import REPORT
from aggtree.storage.sealed_json import read_beside, write_sealed
from aggtree.storage.work.job_facts import add_figures, read_facts
from aggtree.storage.work.job_record import JobRecord

FORMAT = "aggtree build report"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class StageFigures:
    """Time and memory of the run that finished a stage; runs that were killed before are not counted.

    began : seconds since 1970.
    done : units of work of this run, `total` of all runs; rows, or passes over rows in training.
    projected, peak : bytes of memory of the whole process tree, planned and measured.
    disk : bytes in the index directory at the end of the stage.
    memory : (seconds since the stage began, largest number of bytes until then since the point before).
    """

    name: str
    began: float
    seconds: float
    done: int
    total: int
    unit: str
    projected: int
    peak: int
    disk: int
    memory: tuple[tuple[float, int], ...] = ()

    @property
    def rate(self) -> float:
        """Units of work per second."""
        return self.done / max(self.seconds, 1e-9)

    def to_json(self) -> dict[str, Json]:
        return {**vars(self), "memory": [list(point) for point in self.memory]}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "StageFigures":
        return cls(
            name=stage_name(str(record["name"])),
            began=float(record["began"]),
            seconds=float(record["seconds"]),
            done=int(record["done"]),
            total=int(record["total"]),
            unit=str(record["unit"]),
            projected=int(record["projected"]),
            peak=int(record["peak"]),
            disk=int(record["disk"]),
            memory=tuple((float(seconds), int(used)) for seconds, used in record["memory"]),
        )


def stage_name(name: str) -> str:
    """The name of a stage today; older reports call the last one `stitch`."""
    return "commit" if name == "stitch" else name


@dataclass(frozen=True, kw_only=True)
class BuildReport:
    """The stages of a build in the order of their ends, and its learning curve.

    distortions : E of the first batch at the start and after each of `rounds` rounds, then of each further
        batch as it arrived, before anything was learned from it; empty when it was not recorded.
    quality : what was measured on a sample of the rows at the commit; None if it was not.
    """

    build: str
    stages: tuple[StageFigures, ...] = ()
    distortions: tuple[float, ...] = ()
    rounds: int = 0
    quality: Quality | None = None


def record_stage(job: JobRecord, figures: StageFigures) -> None:
    """Keep the figures of a stage until the commit; a failing disk does not stop the job."""
    with suppress(AggtreeError):
        add_figures(job, figures.to_json())


def write_report(job: JobRecord, quality: Quality | None = None) -> None:
    """Write the figures of a committed build beside its manifest, after those of an earlier repair."""
    with suppress(AggtreeError, KeyError, TypeError, ValueError):
        known = read_report(job.index, job.build)
        stages: list[Json] = [figures.to_json() for figures in known.stages] if known else []
        stages += [dict(stage) for stage in read_facts(job).figures]
        trained = next(iter(job.done("train").values()), {})
        curve: dict[str, Json] = {"distortions": [], "rounds": 0}
        if known:
            curve = {"distortions": list(known.distortions), "rounds": known.rounds}
        curve |= {name: trained[name] for name in curve if name in trained}
        record: dict[str, Json] = {"format": FORMAT, "version": VERSION, "build": job.build, "stages": stages}
        quality = known.quality if quality is None and known else quality
        measured: dict[str, Json] = {"quality": dict(vars(quality))} if quality else {}
        write_sealed(job.index / REPORT, record | curve | measured)


def read_report(index: Path, build: str) -> BuildReport | None:
    """The report of this build; None if there is none, or only one of another build.

    IndexFormatError when it is damaged.
    """
    path, remedy = index / REPORT, "remove it, nothing depends on it"
    record = read_beside(path, (FORMAT, VERSION), build, remedy)
    if record is None:
        return None
    try:
        return BuildReport(
            build=build,
            stages=tuple(StageFigures.from_json(stage) for stage in record["stages"]),
            distortions=tuple(float(value) for value in record["distortions"]),
            rounds=int(record["rounds"]),
            quality=_quality(record["quality"]) if "quality" in record else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IndexFormatError(f"{path}: cannot be understood; {remedy}") from error


def _quality(record: Mapping[str, Any]) -> Quality:
    return Quality(
        rows=int(record["rows"]),
        distortion=float(record["distortion"]),
        recall=float(record["recall"]),
        possible=float(record["possible"]),
    )
