"""The default listener of a job's progress."""

import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.small_builds import SMALL

from aggtree.jobs.build import build
from aggtree.jobs.running import progress
from aggtree.jobs.running.progress import (
    JsonProgress,
    LiveProgress,
    LogProgress,
    PlainProgress,
    Progress,
    make_progress,
)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


def test_a_program_without_a_terminal_logs() -> None:
    assert type(make_progress(None)) is type(make_progress(True)) is LogProgress
    assert type(make_progress("auto")) is PlainProgress


@pytest.mark.usefixtures("terminal")
def test_a_terminal_shows_a_live_display() -> None:
    assert type(make_progress(None)) is type(make_progress("auto")) is LiveProgress


@pytest.mark.usefixtures("notebook")
@pytest.mark.parametrize(("widgets", "kind"), [(object(), LiveProgress), (None, PlainProgress)])
def test_a_notebook_shows_what_it_can(
    monkeypatch: pytest.MonkeyPatch, widgets: object, kind: type[Progress]
) -> None:
    monkeypatch.setattr(progress, "find_spec", lambda _: widgets)
    assert type(make_progress(None)) is kind


def test_a_service_without_a_stream_for_errors_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert type(make_progress(None)) is LogProgress


def test_a_listener_is_taken_as_it_is_and_kinds_by_their_names() -> None:
    own = Progress()
    assert make_progress(own) is own
    assert type(make_progress(False)) is type(make_progress("none")) is Progress
    assert type(make_progress("json")) is JsonProgress
    with pytest.raises(ValueError, match="progress 'loud': expected one of auto, live"):
        make_progress("loud")  # type: ignore[arg-type]


def test_a_build_logs_its_stages(source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="aggtree"):
        build(source, tmp_path / "index", workers=0, **SMALL)
    ends = [line for line in caplog.messages if ": done in " in line]
    assert [line.partition(":")[0] for line in ends] == ["train", "encode", "sort", "build", "commit"]
    assert {record.name for record in caplog.records} == {"aggtree"}
