"""The parameters and the progress of a job, in work-<id>/.

    work-<id>/job.json                       parameters and source fingerprint
    work-<id>/done/<stage>/<partition>.json  one sealed record per finished partition

The id is a hash of the parameters and the fingerprint, so the same command finds its own work. A
partition's record is written after its output was renamed and synced; it is renamed into place
itself, so a process killed at any moment leaves only whole records of whole outputs.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from aggtree.storage.atomic import (
    Json,
    canonical,
    make_directory,
    remove_file,
    remove_temporaries,
    remove_tree,
)
from aggtree.storage.errors import BuildMismatchError, IndexFormatError
from aggtree.storage.index.format import (
    BUILD_PREFIX,
    FORMAT_VERSION,
    LIVE_PREFIX,
    MANIFEST,
    WORK_PREFIX,
    build_name,
    work_name,
)
from aggtree.storage.index.manifest import IndexManifest, read_manifest
from aggtree.storage.sealed_json import read_sealed, write_sealed
from aggtree.storage.work.directory import builds_in, work_in

JOB = "job.json"
DONE = "done"
PYTHON_NAMES = {"taken": "reused", "stray": "direct_leaves"}
"""Keys of parameters in JSON, by which builds of every release are known, that Python names otherwise."""

Task = Literal["build", "append", "compact"]


def build_id(parameters: Mapping[str, Any], source: Mapping[str, Any]) -> str:
    """Id of a build: 12 hexadecimal digits, a hash of everything that decides its bytes."""
    whole: dict[str, Json] = {
        "version": FORMAT_VERSION,
        "parameters": dict(parameters),
        "source": dict(source),
    }
    return hashlib.sha256(canonical(whole)).hexdigest()[:12]


@dataclass(frozen=True)
class JobRecord:
    """A build in progress.

    build : its id.
    parameters : JSON values that decide the bytes of the index; never memory or workers.
    source : fingerprint of the vectors.
    codes : URL of the code store; "" when it is in the build's directory.
    task : the result of the job: an index, a segment (`append`), or one segment of all (`compact`).
    """

    index: Path
    build: str
    parameters: dict[str, Any]
    source: dict[str, Any]
    codes: str = ""
    task: Task = "build"

    @property
    def work_directory(self) -> Path:
        """Directory of the job's temporary files, removed at the commit."""
        return self.index / work_name(self.build)

    @property
    def build_directory(self) -> Path:
        """Directory of the job's permanent files."""
        return self.index / build_name(self.build)

    def save(self) -> None:
        """Write the record of the job's parameters."""
        record: dict[str, Json] = {"parameters": self.parameters, "source": self.source}
        record |= {"codes": self.codes} if self.codes else {}
        record |= {"task": self.task} if self.task != "build" else {}
        write_sealed(self.work_directory / JOB, record)

    def record_done(self, stage: str, partition: int, record: Mapping[str, Json]) -> None:
        """Record that the output of a partition is in place, with facts about it."""
        directory = self.work_directory / DONE / stage
        make_directory(directory)
        write_sealed(directory / f"{partition}.json", {"partition": partition, "record": dict(record)})

    def done(self, stage: str) -> dict[int, dict[str, Any]]:
        """The records of a stage's finished partitions; a damaged one counts as not finished."""
        records: dict[int, dict[str, Any]] = {}
        for path in sorted((self.work_directory / DONE / stage).glob("[0-9]*.json")):
            try:
                content = read_sealed(path)
                records[int(content["partition"])] = dict(content["record"])
            except (IndexFormatError, KeyError, TypeError, ValueError):
                remove_file(path)
        return dict(sorted(records.items()))

    def forget(self, stage: str, partition: int | None = None) -> None:
        """Remove the record of a partition, or of a whole stage, whose output must be recomputed."""
        directory = self.work_directory / DONE / stage
        if partition is None:
            remove_tree(directory)
        else:
            remove_file(directory / f"{partition}.json")


def start_job(
    index: Path,
    parameters: Mapping[str, Any],
    source: Mapping[str, Any],
    *,
    replace: bool = False,
    codes: str = "",
    task: Task = "build",
) -> JobRecord:
    """Start or resume the build of these parameters; the caller holds the BuildLock.

    codes : URL of the code store of a new job; one that is resumed has its own.
    task : a build replaces an index; the other tasks extend the existing one.

    An unfinished or committed build of other parameters is refused by BuildMismatchError, unless
    `replace`: then unfinished work is removed, and the committed index stays until the new commit.
    Leftovers of killed processes are removed.
    """
    parameters, source = _as_json(parameters), _as_json(source)
    job = JobRecord(index, build_id(parameters, source), parameters, source, codes, task)
    with suppress(IndexFormatError):  # a damaged record is written again: the id stands for its content
        job = _read_job(job.work_directory) or job
    for work in list(work_in(index)):
        if work != job.work_directory:
            if not replace:
                _refuse(job, f"{index}: holds an unfinished build", _read_job(work))
            remove_tree(work)
    committed = _committed(index, replace=replace)
    if committed and not replace and task == "build" and job.build not in committed:
        _refuse(job, f"{index}: holds an index", next(iter(committed.values())))
    for build in list(builds_in(index)):
        if build != job.build_directory and build.name.removeprefix(BUILD_PREFIX) not in committed:
            remove_tree(build)
    remove_temporaries(index)
    make_directory(job.work_directory)
    job.save()
    return job


def finish_job(index: Path) -> None:
    """Remove files that the manifest does not name: work directories, older builds and deletions."""
    manifest = read_manifest(index)
    kept = {segment.directory for segment in manifest.segments}
    for path in (*work_in(index), *builds_in(index)):
        if path.name not in kept:
            remove_tree(path)
    remove_old_live(index, manifest)
    remove_temporaries(index)


def remove_old_live(index: Path, manifest: IndexManifest) -> None:
    """Remove files of deleted rows that the manifest does not name."""
    for path in index.glob(f"{LIVE_PREFIX}*"):
        if manifest.live is None or path.name != manifest.live.file.path:
            remove_file(path)


def unfinished_jobs(index: Path) -> list[JobRecord]:
    """Builds that were started in `index` and not committed."""
    jobs = (_read_job(work) for work in work_in(index))
    return [job for job in jobs if job]


def _read_job(work: Path) -> JobRecord | None:
    """The job of a work directory; None if it was killed before its record was written."""
    if not (work / JOB).is_file():
        return None
    record = read_sealed(work / JOB)
    build = work.name.removeprefix(WORK_PREFIX)
    codes = str(record.get("codes", ""))
    tasks: tuple[Task, ...] = get_args(Task)
    task: Task = next((known for known in tasks if known == record.get("task")), tasks[0])
    return JobRecord(work.parent, build, dict(record["parameters"]), dict(record["source"]), codes, task)


def _committed(index: Path, *, replace: bool) -> dict[str, JobRecord]:
    """The builds of the existing index, by their ids; the first one first."""
    if not (index / MANIFEST).exists():
        return {}
    try:
        manifest = read_manifest(index)
    except IndexFormatError as error:
        if replace:
            return {}
        raise IndexFormatError(f"{error}; start over with `replace`") from error
    return {
        segment.build: JobRecord(index, segment.build, segment.parameters, segment.source)
        for segment in manifest.segments
    }


def _refuse(new: JobRecord, what: str, old: JobRecord | None) -> None:
    if old is None:
        return
    remedy = "repeat the old command, or start over with `replace`"
    raise BuildMismatchError(f"{what} with other {_difference(old, new)}; {remedy}")


def python_names(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a build under their names in Python functions."""
    return {PYTHON_NAMES.get(key, key): value for key, value in parameters.items()}


def _difference(old: JobRecord, new: JobRecord) -> str:
    """The values that differ, the old one first."""
    for kind, before, after in (
        ("parameters", old.parameters, new.parameters),
        ("input", old.source, new.source),
    ):
        keys = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
        if keys:
            changes = (f"{PYTHON_NAMES.get(key, key)} {before.get(key)} → {after.get(key)}" for key in keys)
            return f"{kind}: {', '.join(changes)}"
    return "format version"


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as they come back from JSON (tuples as lists), so that comparisons are fair."""
    return dict(json.loads(canonical(dict(values))))
