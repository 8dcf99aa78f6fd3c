"""Workers of a real cluster that are unfit or fail: named, with the cause, on one line."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.places import TESTS
from helpers.services.cluster import Cluster, wait_for_workers
from helpers.small_builds import SMALL, contents, vectors

from aggtree.jobs.build import build
from aggtree.jobs.running import executors
from aggtree.jobs.running.checks import check_scheduler
from aggtree.jobs.running.executors import existing_cluster
from aggtree.jobs.running.progress import Progress
from aggtree.jobs.running.tasks import ATTEMPTS, versions
from aggtree.storage.errors import JobError

# Python imports this module by itself when it is on the path: a worker then has another numba.
OTHER_VERSIONS = """
import importlib.metadata

plain = importlib.metadata.version
importlib.metadata.version = lambda name: "0.1.2" if name == "numba" else plain(name)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start_worker()
        wait_for_workers(cluster, 1)
        yield cluster
    finally:
        cluster.close()


def one_line(error: pytest.ExceptionInfo[JobError]) -> str:
    (line,) = str(error.value).splitlines()
    return line


def test_a_partition_that_fails_on_a_worker_is_one_line(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Under the name that an uploaded file has on a worker.
    monkeypatch.syspath_prepend(TESTS / "helpers" / "services")
    failing_task = importlib.import_module("failing_task")
    tasks = [failing_task.Failing(3, str(tmp_path / "tried"))]
    with existing_cluster(cluster.address) as executor, pytest.raises(JobError) as error:
        executor.client.upload_file(failing_task.__file__)  # they know aggtree, not its tests
        list(executor.run("encode", failing_task.fail, tasks, Progress()))
    cause = "RuntimeError: a cosmic ray and what it hit"
    assert one_line(error) == f"encode: partition 3 failed {ATTEMPTS} times: {cause}"
    assert (tmp_path / "tried").read_text() == "x" * ATTEMPTS


def test_a_worker_that_does_not_see_the_data_is_named(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "base.npy", vectors())
    monkeypatch.chdir(tmp_path)
    # This name leads each process to its own directory, as if the workers had other disks.
    with pytest.raises(JobError) as error:
        build("/proc/self/cwd/base.npy", tmp_path / "index", scheduler=cluster.address, **SMALL)
    assert "worker tcp://" in one_line(error) and "does not see the data" in one_line(error)
    assert "/proc/self/cwd/base.npy: no such file" in one_line(error)


def test_a_worker_with_other_versions_is_named(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "base.npy", vectors())
    (tmp_path / "sitecustomize.py").write_text(OTHER_VERSIONS)
    stranger = cluster.start_worker(PYTHONPATH=str(tmp_path))
    wait_for_workers(cluster, 2)
    index = tmp_path / "index"
    with pytest.raises(JobError) as error:
        build(tmp_path / "base.npy", index, scheduler=cluster.address, **SMALL)
    assert "has numba 0.1.2 instead of" in one_line(error)
    assert f":{stranger.pid})" in one_line(error)
    assert not [path for path in index.rglob("*") if path.is_file() and path.name != "job.json"]
    stranger.kill()
    stranger.wait()
    build(tmp_path / "base.npy", index, scheduler=cluster.address, **SMALL)
    build(tmp_path / "base.npy", tmp_path / "reference", workers=0, **SMALL)
    assert contents(index) == contents(tmp_path / "reference")


def fake_client(link: str, library: object) -> Any:
    return SimpleNamespace(dashboard_link=link, run_on_scheduler=lambda *_: library)


def test_the_dashboard_is_named_where_there_is_one() -> None:
    assert executors._dashboard(fake_client("http://x:8787/status", object())) == (
        ", dashboard http://x:8787/status"
    )
    assert executors._dashboard(fake_client("http://x:8787/status", None)) == ""
    assert executors._dashboard(fake_client("", object())) == ""
    assert executors._dashboard(SimpleNamespace()) == ""


def test_an_unfit_scheduler_is_named() -> None:
    """It reads the tasks it hands out, so it needs aggtree too."""

    def missing(_: object) -> None:
        raise ModuleNotFoundError("No module named 'aggtree'")

    for answer, words in (
        (lambda _: versions() | {"numpy": "1.0"}, r"scheduler tcp://x has numpy 1\.0 instead of"),
        (missing, "scheduler tcp://x cannot run aggtree: .*No module named 'aggtree'.*install"),
    ):
        client = SimpleNamespace(run_on_scheduler=answer, scheduler=SimpleNamespace(address="tcp://x"))
        with pytest.raises(JobError, match=words):
            check_scheduler(client)
