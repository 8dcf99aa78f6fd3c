"""A cluster that was there before: a scheduler and workers started by their own commands."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.services.cluster import Cluster, wait_for_workers
from helpers.small_builds import SMALL, contents, vectors

from aggtree.jobs.build import build
from aggtree.jobs.running import checks, executors
from aggtree.jobs.running.checks import Probe, check_workers, probe
from aggtree.jobs.running.executors import existing_cluster
from aggtree.jobs.running.progress import Progress
from aggtree.jobs.running.tasks import Tick, differing_versions, run_task, versions
from aggtree.storage.errors import JobError, MemoryBudgetError
from aggtree.storage.sources.base import open_source
from aggtree.storage.work.job_record import JobRecord

"""Seconds until something that takes one is given up."""
MANY_SHARDS = SMALL | {"shard_rows": 100}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster
    finally:
        cluster.close()


def test_a_worker_dies_and_another_joins(
    cluster: Cluster, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JobError, match="no workers"):
        build(source, tmp_path / "index", scheduler=cluster.address, **MANY_SHARDS)
    first, _ = cluster.start_worker(), cluster.start_worker()
    wait_for_workers(cluster, 2)
    index = tmp_path / "index"

    plain = JobRecord.record_done

    def disturb(job: JobRecord, stage: str, *record: Any) -> None:
        plain(job, stage, *record)
        if stage == "encode" and first.poll() is None:
            first.send_signal(signal.SIGKILL)
            first.wait()
            cluster.start_worker()

    monkeypatch.setattr(JobRecord, "record_done", disturb)
    monkeypatch.chdir(tmp_path)
    result = build(source, "index", scheduler=cluster.address, **MANY_SHARDS)
    assert first.poll() == -signal.SIGKILL
    assert result.rows == len(vectors())
    build(source, tmp_path / "reference", workers=0, **MANY_SHARDS)
    assert contents(index) == contents(tmp_path / "reference")

    with pytest.raises(MemoryBudgetError, match="fewer workers"):
        build(source, tmp_path / "other", scheduler=cluster.address, memory="400MiB", **SMALL)


def test_an_unknown_scheduler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "CONNECT_SECONDS", 0.5)
    with pytest.raises(JobError, match=r"scheduler tcp://127\.0\.0\.1:9: cannot connect"):
        existing_cluster("tcp://127.0.0.1:9")
    with pytest.raises(JobError, match="scheduler nonsense://x"):
        existing_cluster("nonsense://x")


class FakeCluster:
    """Answers a probe as its workers would."""

    def __init__(self, **answers: Probe) -> None:
        self.client = SimpleNamespace(run=lambda *_: answers)


def good() -> dict[str, Any]:
    return {"worker": "host:1", "versions": versions(), "problem": ""}


def test_unfit_workers_are_named_before_the_work(tmp_path: Path) -> None:
    check_workers(FakeCluster(a=Probe(**good())), None, tmp_path)  # type: ignore[arg-type]
    old = Probe(**good() | {"versions": versions() | {"numpy": "1.0"}})
    with pytest.raises(JobError, match=r"worker b \(host:1\) has numpy 1\.0 instead of"):
        check_workers(FakeCluster(a=Probe(**good()), b=old), None, tmp_path)  # type: ignore[arg-type]
    blind = Probe(**good() | {"problem": "/data is not there"})
    with pytest.raises(JobError, match=r"worker b .*does not see the data: /data is not there"):
        check_workers(FakeCluster(b=blind), None, tmp_path)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_probe_looks_at_the_source_and_the_index(source: Path, tmp_path: Path) -> None:
    mark, fingerprint = tmp_path / "mark", open_source(source).fingerprint()
    mark.write_bytes(b"secret")
    assert probe(str(source), fingerprint, "", str(mark), b"secret").problem == ""
    assert "is another directory" in probe(str(source), fingerprint, "", str(mark), b"other").problem
    assert "is not there" in probe(str(source), fingerprint, "", str(tmp_path / "no"), b"secret").problem
    assert "no such file" in probe("/no/such.bvecs", fingerprint, "", str(mark), b"secret").problem.lower()
    assert "other data" in probe(str(source), {}, "", str(mark), b"secret").problem
    assert checks.worker_problem(probe(None, None, "", str(mark), b"secret")) == ""
    assert "nowhere" in probe(None, None, "memory://nowhere/codes.zarr", str(mark), b"secret").problem


def test_a_worker_of_another_version_refuses_tasks() -> None:
    theirs = versions() | {"aggtree": "9.9"}
    assert "instead of 9.9" in differing_versions(versions(), theirs)
    with pytest.raises(JobError, match="install the same versions everywhere"):
        run_task(lambda task, tick: None, SimpleNamespace(number=0, rows=1), theirs, lambda rows: None)


class Dies(SimpleNamespace):
    """A task that ends its worker."""


def die(task: Dies, tick: Tick) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_task_that_kills_its_workers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with executors.local_cluster(2) as executor:
        task = Dies(number=4, rows=1)
        with pytest.raises(JobError, match="encode: partition 4 failed: several workers died"):
            list(executor.run("encode", die, [task], Progress()))


def test_a_worker_killed_while_it_starts_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def start(workers: int) -> str:
        started.append(workers)
        if len(started) < needed:
            raise RuntimeError("Nanny failed to start.")
        return "a cluster"

    monkeypatch.setattr(executors, "_start_local_cluster", start)
    needed = 3
    assert executors.local_cluster(2) == "a cluster"  # type: ignore[comparison-overlap]
    started.clear()
    needed = 9
    with pytest.raises(JobError, match=r"do not start \(Nanny failed to start\.\): is there enough memory"):
        executors.local_cluster(2)
    assert len(started) == 3


SCRIPT = """
import sys
from aggtree.jobs.planning import plan
from aggtree.jobs.build import build
plan.CLUSTER_ROWS = 1
print("the script runs")
print(build(sys.argv[1], sys.argv[2], workers=2, words=(16, 16, 16), train_rows=500, shard_rows=700).rows)
"""


def test_a_script_needs_no_guard(source: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, tmp_path / "script.py", source, tmp_path / "index"]
    answer = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert answer.stdout.split("\n") == ["the script runs", str(len(vectors())), ""], answer.stderr
    assert "Traceback" not in answer.stderr
