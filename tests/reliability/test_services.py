"""Object stores and clusters in trouble: the same bytes, or one line and a command that continues."""

import pytest

from reliability.long import clusters, stores

FEW = {"frozen": 1}
MORE = {"frozen": 1, "scheduler restarted": 1, "too little memory": 1, "two jobs": 1}


@pytest.mark.parametrize(
    "kinds", [("truncated",), pytest.param(("503", "reset", "expired"), marks=pytest.mark.slow)]
)
def test_an_object_store_in_trouble(tmp_path, kinds):
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    counts = stores.run(tmp_path, 0, step=80, lasting=0, kinds=kinds)
    assert counts["faults"] >= len(kinds)
    assert {counts[name] for name in stores.BAD} == {0}, counts


@pytest.mark.parametrize("plan", [FEW, pytest.param(MORE, marks=pytest.mark.slow)])
def test_a_cluster_in_trouble(tmp_path, plan):
    counts = clusters.run(tmp_path, 0, plan)
    assert counts["faults"] >= len(plan)
    assert counts.get("jobs stopped by one line", 0) >= 2 * ("scheduler restarted" in plan)
    assert {counts[name] for name in clusters.BAD} == {0}, counts
