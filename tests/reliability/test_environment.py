"""Builds where something around them is odd: limits, rights, clocks, names, and processes that vanish."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from helpers.places import program
from helpers.small_builds import SMALL, SMALL_ARGUMENTS, contents, vectors

import aggtree
from aggtree.jobs.build import build
from aggtree.jobs.cli.main import main
from aggtree.jobs.planning import plan
from aggtree.storage.index.format import MANIFEST, REPORT
from aggtree.storage.index.reader import open_index
from aggtree.storage.verify.index import verify_index
from aggtree.storage.work.job_record import JobRecord


@pytest.fixture(scope="module")
def odd() -> Iterator[tuple[Path, dict[str, str]]]:
    """Directory and messages of all odd cases; a directory of everyone's, which another user can enter."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        np.save(directory / "base.npy", vectors())
        command = program("reliability.programs.odd_environments", directory / "base.npy", directory)
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr
        yield directory, json.loads(answer.stdout)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("few_files", ""),
        ("few_files_to_search", ""),
        ("too_few_files", "too many open files"),
        ("too_little_memory", "memory"),
        ("clock_going_backwards", ""),
        ("files_too_large", "File too large"),
        ("read_only_directory", "permission denied"),
        ("reading_without_writing", ""),
    ],
)
def test_odd_circumstances(odd: tuple[Path, dict[str, str]], case: str, words: str) -> None:
    directory, messages = odd
    message = messages[case]
    assert words.lower() in message.lower()
    assert bool(message) == bool(words)
    assert "\n" not in message and "ended with" not in message
    assert messages.get(f"{case}, then", "") == ""
    assert contents(directory / case / "index") == contents(directory / "reference")


@pytest.mark.parametrize("operations", range(5))
def test_killed_between_the_commit_and_the_end(odd: tuple[Path, dict[str, str]], operations: int) -> None:
    """The next run, of the whole build or of its last stage, leaves nothing behind."""
    directory, messages = odd
    name = f"killed {operations} after the commit"
    assert messages[name] == "ended with -9"
    assert messages[f"{name}, then"] == ""
    assert contents(directory / name / "index") == contents(directory / "reference")
    names = {path.name.partition("-")[0] for path in (directory / name / "index").iterdir()}
    assert names - {REPORT} == {"build", "manifest.json"}


@pytest.mark.parametrize("name", ["with spaces in it", "ünï-日本語", "semi;colon&$HOME", "-dash", "a.zarr"])
def test_any_name_of_a_directory(
    source: Path, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    place = tmp_path / name
    place.mkdir()
    shutil.copy(source, place / "base vectors.npy")
    np.save(place / "some queries.npy", vectors(20))
    index = place / f"{name}.index"
    for arguments in (
        ["build", str(place / "base vectors.npy"), str(index), "--workers", "0", *SMALL_ARGUMENTS],
        ["search", str(index), str(place / "some queries.npy"), "-k", "3", "--out", str(place / "ids ü.npy")],
        ["verify", str(index), "--deep"],
    ):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 0, capsys.readouterr().err
    assert contents(index) == contents(reference)
    assert np.load(place / "ids ü.npy").shape == (20, 3)


def test_an_index_behind_a_link(source: Path, reference: Path, tmp_path: Path) -> None:
    """The directory itself may be a link, to another disk for example; nothing below it may."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "index").symlink_to(tmp_path / "disk", target_is_directory=True)
    build(source, tmp_path / "index", workers=0, **SMALL | {"seed": 5})
    with open_index(tmp_path / "index") as old:
        build(source, tmp_path / "index", workers=0, replace=True, **SMALL)
        assert old.search(vectors(2), 3).ids.shape == (2, 3)
    assert contents(tmp_path / "disk") == contents(reference)
    assert (tmp_path / "index").is_symlink()
    assert verify_index(tmp_path / "index", deep=True) == []


@pytest.mark.parametrize("tool", ["cp", "tar", "rsync"])
def test_a_copy_elsewhere_is_the_index(source: Path, reference: Path, tmp_path: Path, tool: str) -> None:
    """Copied, with times or without, by whatever program: opened, re-ranked, grown, merged."""
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool} here")
    old, new = tmp_path / "old" / "index", tmp_path / "new" / "index"
    new.parent.mkdir()
    build(source, old, workers=0, **SMALL)
    commands = {
        "cp": f"cp -r '{old}' '{new}'",
        "tar": f"tar -C '{old.parent}' -cf - index | tar -C '{new.parent}' -xf -",
        "rsync": f"rsync -a '{old}/' '{new}'",
    }
    subprocess.run(commands[tool], shell=True, check=True)
    shutil.rmtree(old)
    assert contents(new) == contents(reference)
    assert build(source, new, workers=0, **SMALL).already_built
    with aggtree.open(new) as index:
        assert index.search(vectors()[:9], 1, rerank=50).distances.max() == 0
    aggtree.append(new, vectors(200, seed=3), workers=0)
    aggtree.delete(new, [0, 3100])
    aggtree.compact(new, workers=0)
    assert verify_index(new, deep=True) == []


def test_commits_of_a_clock_that_was_set_back_a_year(reference: Path, tmp_path: Path) -> None:
    """A newer commit is told from the one before by more than its time."""
    index, year = Path(shutil.copytree(reference, tmp_path / "i")), 365 * 86_400
    with aggtree.open(index) as opened:
        for rows in ([1, 2], [3]):
            before = (index / MANIFEST).stat().st_mtime
            aggtree.delete(index, rows)
            os.utime(index / MANIFEST, (before - year, before - year))
            assert opened.refresh() and not opened.refresh()
        assert len(opened) == len(vectors()) - 3


@pytest.mark.slow
def test_ten_million_equal_vectors(tmp_path: Path) -> None:
    """One code, one node with all leaves: cut into partitions, verified, and searched in bounded time."""
    rows = 10_000_000
    array = np.lib.format.open_memmap(tmp_path / "base.npy", "w+", np.uint8, (rows, 4))
    array[:] = (1, 2, 3, 4)
    array.flush()
    result = build(tmp_path / "base.npy", tmp_path / "i", words=(16, 16), beam=1, memory="1GiB")
    assert result.rows == rows and result.peak <= result.allowed
    assert verify_index(tmp_path / "i") == []
    with aggtree.open(tmp_path / "i") as index:
        ids, distances = index.search(np.array([1, 2, 3, 4]), 10)
        assert ids.tolist() == [list(range(10))] and distances.max() < 1e-3


def test_a_worker_killed_as_the_system_does_when_memory_runs_out(
    source: Path, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "CLUSTER_ROWS", 1)
    plain, killed = JobRecord.record_done, []

    def kill_one(job: JobRecord, stage: str, *record: Any) -> None:
        plain(job, stage, *record)
        if stage == "encode" and not killed:
            children = psutil.Process().children(recursive=True)
            killed.extend(child for child in children if "spawn_main" in " ".join(child.cmdline()))
            killed[0].kill()

    monkeypatch.setattr(JobRecord, "record_done", kill_one)
    build(source, tmp_path / "index", workers=2, **SMALL)
    assert len(killed) == 2
    assert contents(tmp_path / "index") == contents(reference)


def test_two_builders_at_once(source: Path, reference: Path, tmp_path: Path) -> None:
    """One of them builds; the others are refused, or find the finished index."""
    command = [
        sys.executable,
        "-m",
        "aggtree.jobs.cli.main",
        "build",
        str(source),
        str(tmp_path / "index"),
    ]
    command += ["--workers", "0", *SMALL_ARGUMENTS]
    builders = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")
        for _ in range(3)
    ]
    answers = [builder.communicate() for builder in builders]
    codes = [builder.returncode for builder in builders]
    assert set(codes) <= {0, 2} and 0 in codes, answers
    for code, (_, error) in zip(codes, answers, strict=True):
        if code == 2:
            assert "is building here; wait for it" in error
    assert contents(tmp_path / "index") == contents(reference)


def test_a_build_in_a_file_system_of_another_owner_names_the_path(tmp_path: Path) -> None:
    if os.geteuid() == 0 and not Path("/proc/1/fd").exists():
        pytest.skip("no directory that root cannot write")
    with pytest.raises(Exception, match="/proc/1/fd"):
        build(vectors(), "/proc/1/fd/index", workers=0, **SMALL)
