"""The benchmark of compilation: seconds of nested kernels counted once, and its tables."""

from types import SimpleNamespace
from typing import Any

import pytest

from bench import record
from bench.build import compilation
from bench.report import compilation_report


def of_kernel(name: str) -> Any:
    """Numba's event of a kernel."""
    function = SimpleNamespace(__module__="aggtree.some_kernels", __name__=name)
    return SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=function)})


def test_seconds_of_a_kernel_are_without_those_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 7.0])
    monkeypatch.setattr(compilation.time, "process_time", lambda: next(times))
    monkeypatch.setattr(compilation.event, "register", lambda *_: None)
    found = compilation.Compilations()
    outer, inner = of_kernel("outer"), of_kernel("inner")
    for notify, event in (
        (found.on_start, outer),
        (found.on_start, inner),
        (found.on_end, inner),
        (found.on_end, outer),
    ):
        notify(event)
    assert found.own == {"some_kernels.inner": 2.0, "some_kernels.outer": 5.0}


def test_tables_name_every_step_and_sum_the_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = {f"kernel_{number}": float(number) for number in range(1, 15)}
    line = {
        "machine": {"processor": "P", "cores": 2, "packages": {"numba": "1"}},
        "commit": "c",
        "results": {
            "seconds": dict.fromkeys(compilation_report.STEPS, 1.25),
            "kernels": {"search": kernels},
            "open_and_search": {"wall": 0.5, "cpu": 0.25},
            "import": {"wall": 0.005, "cpu": 0.004},
            "cache_bytes": 2_000_000,
        },
    }
    monkeypatch.setattr(record, "read", lambda _: [line])
    text = compilation_report.part()
    assert all(f"| {step} | 1.2 |" in text for step in compilation_report.STEPS.values())
    assert "| `kernel_14` | 14.00 |" in text and "| 2 others | 3.00 |" in text


def test_nothing_measured_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "read", lambda _: [])
    assert "Not measured" in compilation_report.part()
