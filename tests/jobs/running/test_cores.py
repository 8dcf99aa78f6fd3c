"""Cores are counted by affinity, and without it where the system has none."""

import os

import pytest

from aggtree.jobs.running.cores import usable_cores
from aggtree.jobs.running.job_run import RunOptions


def test_a_process_counts_the_cores_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 4, 5}, raising=False)
    assert usable_cores() == RunOptions().most_workers == 3


def test_a_system_without_affinity_counts_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cores() == RunOptions().most_workers == 6
    assert RunOptions(workers=2).most_workers == 2
