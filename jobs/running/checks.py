"""Check before work starts on a cluster: every worker has our versions and sees data and index."""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggtree.jobs.running.executors import DaskExecutor
from aggtree.jobs.running.memory import format_size
from aggtree.jobs.running.tasks import describe, differing_versions, process_name, versions
from aggtree.storage.atomic import TEMPORARY, remove_file, write_bytes
from aggtree.storage.errors import JobError
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.sources.base import VectorSource, open_source

DASK_SHARE = 0.8
"""Of its memory limit, beyond which Dask pauses a worker."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Findings of one worker: its versions, and what it cannot access, as text."""

    worker: str
    versions: dict[str, str]
    problem: str


def probe(
    spec: str | None, fingerprint: dict[str, Any] | None, codes: str, mark: str, secret: bytes
) -> Probe:
    """Runs in a worker: try to read the source, and files that the driver wrote to index and codes."""
    problem = ""
    try:
        if Path(mark).read_bytes() != secret:
            problem = f"{Path(mark).parent} is another directory there"
    except OSError:
        problem = f"{Path(mark).parent} is not there"
    try:
        if not problem and spec is not None:
            with open_source(spec) as source:
                if source.fingerprint() != fingerprint:
                    problem = f"{spec} holds other data there"
        if not problem and codes:
            CodeStore.open(codes)
    except Exception as error:
        problem = describe(error)
    return Probe(worker=process_name(), versions=versions(), problem=problem)


def check_scheduler(client: Any) -> None:
    """JobError if the scheduler could not unpickle the tasks that it distributes."""
    name = f"scheduler {client.scheduler.address}"
    remedy = "install the same versions everywhere"
    try:
        theirs = client.run_on_scheduler(versions)
    except Exception as error:
        raise JobError(f"{name} cannot run aggtree: {describe(error)}: {remedy}") from error
    difference = differing_versions(theirs, versions())
    if difference:
        raise JobError(f"{name} has {difference}: {remedy}")


def check_workers(executor: DaskExecutor, source: VectorSource | None, index: Path, codes: str = "") -> None:
    """Probe every worker; JobError names the first that cannot do the work, and the reason.

    codes : URL of a code store outside the index.
    """
    # Named as temporary, so that the next build removes it should this process be killed now.
    mark = index.resolve() / f".probe-{secrets.token_hex(4)}{TEMPORARY}"
    secret = secrets.token_bytes(16)
    spec = None if source is None else source.spec
    fingerprint = None if source is None else source.fingerprint()
    write_bytes(mark, secret)
    try:
        probes = executor.client.run(probe, spec, fingerprint, codes, str(mark), secret)
    finally:
        remove_file(mark)
    for address, found in probes.items():
        complaint = worker_problem(found)
        if complaint:
            raise JobError(f"worker {address} ({found.worker}) {complaint}")


def check_worker_memory(client: Any, needed: int) -> None:
    """JobError names a worker whose memory limit is too low for its tasks: Dask would pause or kill it.

    needed : bytes of a worker at work, as planned.
    """
    for address, worker in client.scheduler_info(n_workers=-1)["workers"].items():
        limit = int(worker.get("memory_limit") or 0)
        if limit and DASK_SHARE * limit < needed:
            raise JobError(
                f"worker {address} has a memory limit of {format_size(limit)}, of which Dask lets it use "
                f"{DASK_SHARE:.0%}, and needs {format_size(needed)}: start it with a higher --memory-limit"
            )


def worker_problem(found: Probe) -> str:
    """The reason why a worker cannot do the work; empty if it can."""
    difference = differing_versions(found.versions, versions())
    if difference:
        return f"has {difference}: install the same versions everywhere"
    if found.problem:
        return f"does not see the data: {found.problem}"
    return ""
