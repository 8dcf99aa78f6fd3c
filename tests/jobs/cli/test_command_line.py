"""The command `aggtree` as a user meets it: results, one-line errors, exit codes, JSON for programs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.sizes import sized
from helpers.small_builds import DIMENSION, ROWS, SMALL_ARGUMENTS, contents, vectors

from aggtree.jobs.cli.main import cli, main
from aggtree.jobs.running import executors
from aggtree.jobs.running.progress import JsonProgress, PlainProgress, format_time, make_progress
from aggtree.storage.sources.base import read_ground_truth

QUERIES = sized(30, 8)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with vectors, queries, exact neighbours and an index, all made by the command itself."""
    place = tmp_path_factory.mktemp("place")
    np.save(place / "base.npy", vectors())
    np.save(place / "query.npy", vectors(QUERIES, seed=1))
    run("exact", place / "base.npy", place / "query.npy", "-k", "20", "--out", place / "truth.ivecs")
    run("build", place / "base.npy", place / "index", "--workers", "1", *SMALL_ARGUMENTS)
    return place


def run(*arguments: object) -> str:
    answer = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.output


def fail(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Exit code and message of a command that must fail with one line."""
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    return int(str(left.value.code)), output.err.strip()


def test_exact_neighbours_are_exact(place: Path) -> None:
    base, queries = vectors().astype(int), vectors(QUERIES, seed=1).astype(int)
    distances = ((queries[:, None] - base) ** 2).sum(axis=2)
    expected = np.lexsort((np.broadcast_to(np.arange(ROWS), distances.shape), distances))[:, :20]
    np.testing.assert_array_equal(read_ground_truth(place / "truth.ivecs"), expected)


def test_search_reports_recall_and_writes_answers(place: Path) -> None:
    index, query = place / "index", place / "query.npy"
    text = run(
        *("search", index, query, "-k", "50", "--ground-truth", place / "truth.ivecs"),
        *("--out", place / "answers.npy", "--limits", "0"),
    )
    for word in ("R@1 ", "R@10 ", "p50", "p99", "as a batch", "nodes", "leaves"):
        assert word in text
    assert "R@100" not in text
    report = json.loads(run("search", index, query, "--json", "--ground-truth", place / "truth.ivecs"))
    assert 0 <= report["recall"]["R@1"] <= report["recall"]["R@100"] <= 1 and report["recall"]["R@100"] > 0
    assert np.load(place / "answers.npy").shape == (QUERIES, 50)


def test_re_ranked_answers_are_exact(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index, query, out = place / "index", place / "query.npy", tmp_path / "answers.npy"
    options = ("-k", "20", "--limits", "0", "--rerank", ROWS)
    text = run("search", index, query, *options, "--ground-truth", place / "truth.ivecs", "--out", out)
    assert f"best {ROWS} re-ranked" in text and "R@1 1.0000" in text
    np.testing.assert_array_equal(np.load(out), read_ground_truth(place / "truth.ivecs"))
    np.save(tmp_path / "moved.npy", vectors())
    assert json.loads(run("search", index, query, *options, "--json", "--vectors", tmp_path / "moved.npy"))
    np.save(tmp_path / "moved.npy", vectors(seed=1))
    code, message = fail(capsys, "search", index, query, *options, "--vectors", tmp_path / "moved.npy")
    assert code == 2 and "not the vectors that" in message and "as `vectors`" in message
    code, message = fail(capsys, "search", index, query, "-k", "20", "--rerank", "10")
    assert code == 2 and message == "error: rerank 10: expected k (20) or more, or 0 for none"


def test_answers_within_a_set(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index, query, out = place / "index", place / "query.npy", tmp_path / "answers.npy"
    text = run("search", index, query, "-k", "9", "--rerank", "9", "--within", "100:200", "--out", out)
    assert "100 rows allowed" in text
    near = ((vectors(QUERIES, seed=1)[:, None].astype(int) - vectors()[100:200].astype(int)) ** 2).sum(axis=2)
    assert np.load(out)[:, 0].tolist() == (100 + near.argmin(axis=1)).tolist()
    np.save(tmp_path / "few.npy", np.array([7, 5]))
    run("search", index, query, "-k", "3", "--within", tmp_path / "few.npy", "--out", out)
    assert (np.sort(np.load(out), axis=1) == [-1, 5, 7]).all()
    code, message = fail(capsys, "search", index, query, "--within", tmp_path / "nothing.npy")
    assert code == 2 and "nothing.npy: no such file" in message


def test_info_and_verify(place: Path) -> None:
    text = run("info", place / "index")
    for word in (f"{ROWS:,} rows", "16x3", "bytes per vector", "tree/records", "level"):
        assert word in text
    facts = json.loads(run("info", place / "index", "--json"))
    assert facts["rows"] == ROWS and sum(facts["level_leaves"]) == ROWS
    assert "no damage found" in run("verify", place / "index", "--workers", "2")


def test_verify_names_damage_and_exits_with_1(place: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    shutil.copytree(place / "index", index)
    damaged = next(index.glob("build-*/tree/records"))
    data = bytearray(damaged.read_bytes())
    data[1000] ^= 1
    damaged.write_bytes(data)
    answer = CliRunner().invoke(cli, ["verify", str(index)])
    assert answer.exit_code == 1
    assert "tree/records: block 0" in answer.output
    answer = CliRunner().invoke(cli, ["verify", str(index), "--json"])
    (last,) = [json.loads(line) for line in answer.output.splitlines() if '"result"' in line]
    assert last["damages"][0]["file"].endswith("tree/records")


def test_the_plan_shows_what_a_build_needs(place: Path) -> None:
    text = run("plan", place / "base.npy", "--memory", "1GiB", *SMALL_ARGUMENTS)
    for word in ("train", "encode", "sort", "build", "commit", "projected", "disk", "about"):
        assert word in text
    facts = json.loads(run("plan", place / "base.npy", "--memory", "1GiB", "--json", *SMALL_ARGUMENTS))
    assert facts["projected"] <= 2**30
    assert facts["total_seconds"] > 0


def test_stages_one_by_one(place: Path, tmp_path: Path) -> None:
    index, base = tmp_path / "index", place / "base.npy"
    assert "aggtree encode" in run("train", base, index, "--workers", "0", *SMALL_ARGUMENTS)
    assert "aggtree commit" in run("encode", base, index, "--workers", "0")
    run("commit", index, "--workers", "0")
    assert contents(index) == contents(place / "index")
    assert "already built" in run("tree", index)  # the former name
    assert "tree" not in cli.commands


@pytest.mark.parametrize("name", ["commit", "tree", "info"])
def test_ctrl_c_names_the_remedy_of_commands_that_can_continue(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("aggtree.jobs.build.continue_build", stop)
    monkeypatch.setattr("aggtree.storage.index.reader.open_index", stop)
    code, message = fail(capsys, name, place / "index")
    assert code == 130 and message.startswith("stopped by Ctrl-C")
    assert ("the same command continues" in message) == (name != "info")


def test_json_events_of_a_build(place: Path, tmp_path: Path) -> None:
    output = run(
        "build", place / "base.npy", tmp_path / "index", "--workers", "0", "--json", *SMALL_ARGUMENTS
    )
    events = [json.loads(line) for line in output.splitlines()]
    stages = [event["stage"] for event in events if event["event"] == "begin"]
    assert stages == ["train", "encode", "sort", "build", "commit"]
    ends = [event for event in events if event["event"] == "end"]
    assert all(event["done"] == event["total"] and event["memory"] > 0 for event in ends)
    assert events[-1]["event"] == "result" and events[-1]["rows"] == ROWS
    assert events[-1]["peak"] <= events[-1]["allowed"]


def test_a_built_index_says_so(place: Path) -> None:
    assert "already built" in run("build", place / "base.npy", place / "index", *SMALL_ARGUMENTS)


class TestErrors:
    def test_other_parameters(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["build", place / "base.npy", place / "index", *SMALL_ARGUMENTS, "--seed", "9"]
        code, message = fail(capsys, *arguments)
        assert code == 2 and "seed 0 → 9" in message and "`replace`" in message
        assert len(message.splitlines()) == 1

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["build", "missing.bvecs", "index"], "missing.bvecs"),
            (["build", "base.npy", "new", "--memory", "lots"], "memory 'lots'"),
            (["build", "base.npy", "new", "--memory", "10MB"], "not enough for"),
            (["build", "base.npy", "new", "--words", "many"], "words 'many'"),
            (["build", "base.npy", "new", "--words", "70000"], "70000 words"),
            (["build", "base.npy", "new", "--scheduler", "tcp://127.0.0.1:9"], "tcp://127.0.0.1:9"),
            (["search", "missing", "query.npy"], "no index here"),
            (["search", "index", "wide.npy"], f"the vectors have {DIMENSION}"),
            (["search", "index", "query.npy", "--out", "answers.txt"], ".ivecs or .npy"),
            (["search", "index", "query.npy", "--ground-truth", "short.npy"], "ground truth of 5 queries"),
            (["search", "index", "nan.npy"], "query 3"),
            (["search", "index", "query.npy", "--limits", "-3"], "limit -3"),
            (["search", "index", "query.npy", "--reach", "1.3"], "pruning_ratio 1.3 without limits"),
            (["search", "index", "query.npy", "--pruning-ratio", "1.3"], "pruning_ratio 1.3 without limits"),
            (["info", "base.npy"], "no index here"),
            (["verify", "missing"], "no index here"),
            (["commit", "empty"], "no build was started here"),
            (["exact", "base.npy", "query.npy", "--out", "no/such/place.npy"], "make it first"),
            (["exact", "base.npy", "query.npy", "--out", "a.npy", "--memory", "1MB"], "not enough for"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_is_one_line_and_exit_code_2(
        self,
        place: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        arguments: list[str],
        words: str,
    ) -> None:
        monkeypatch.chdir(place)
        monkeypatch.setattr(executors, "CONNECT_SECONDS", 0.5)
        np.save("wide.npy", np.zeros((3, DIMENSION + 1), np.uint8))
        np.save("short.npy", np.zeros((5, 3), np.int64))
        odd = np.zeros((5, DIMENSION), np.float32)
        odd[3, 0] = np.nan
        np.save("nan.npy", odd)
        code, message = fail(capsys, *arguments)
        assert (code, len(message.splitlines())) == (2, 1), message
        assert words in message
        assert not (place / "new").exists()

    def test_usage(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, message = fail(capsys, "build", "only-one")
        assert code == 2 and "Usage" in message

    def test_a_directory_that_cannot_be_written(
        self, place: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (place / "file").write_text("in the way")
        code, message = fail(capsys, "build", place / "base.npy", place / "file" / "index", *SMALL_ARGUMENTS)
        assert code == 2 and len(message.splitlines()) == 1 and "file" in message


def test_completion_and_version_work_as_a_program(tmp_path: Path) -> None:
    script = [sys.executable, "-m", "aggtree"]
    version = subprocess.run([*script, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("aggtree, version")
    environment = os.environ | {
        "_AGGTREE_COMPLETE": "bash_complete",
        "COMP_WORDS": "aggtree v",
        "COMP_CWORD": "1",
    }
    completion = subprocess.run(script, capture_output=True, text=True, env=environment, check=False)
    assert "verify" in completion.stdout


def test_help_of_every_command_has_an_example() -> None:
    for name in cli.commands:
        assert f"aggtree {name} " in run(name, "--help")


def test_plain_lines_and_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    for progress in (PlainProgress(), JsonProgress()):
        with progress:
            progress.begin("encode", 10, done=4)
            progress.advance(6)
            progress.note("a remark")
            progress.end(error="1.5")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["encode: 10 rows, 4 done before", "a remark"]
    assert "error 1.5" in lines[2]
    assert [json.loads(line)["event"] for line in lines[3:]] == ["begin", "advance", "note", "end"]
    with pytest.raises(ValueError, match="expected one of"):
        make_progress("loud")


def test_a_live_display_shows_all_stages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with make_progress("live") as progress:
        progress.memory = lambda: 2**30
        for stage in ("train", "encode"):
            progress.begin(stage, 10)
            progress.advance(5)
            progress.advance(5)
            progress.end()
        progress.note("a remark")
    shown = capsys.readouterr().err
    assert "train" in shown and "encode" in shown and "a remark" in shown


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.42, "0.4 s"), (59, "59 s"), (61, "1 min 1 s"), (7500, "2 h 5 min")]
)
def test_times_are_written(seconds: float, text: str) -> None:
    assert format_time(seconds) == text
