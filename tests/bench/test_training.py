"""The benchmark of training at a tiny size: it runs, and what it records makes sense and becomes tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.sizes import measures_speed
from helpers.training import correlated_rows

from aggtree.engine.training import mixing
from aggtree.storage.sources.formats.vecs import write_vecs
from bench import record
from bench.codes import training
from bench.report import algorithm_report, generated


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that measure nothing, and results that are recorded nowhere else."""
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    sizes: dict[str, Any] = {"BATCH": 2000, "HELD_OUT": 500, "ROWS_PER_WORD": (5, 10), "BEAM": 4}
    choices: dict[str, Any] = {"SHARES": (0.0, 0.5), "SPARE_AXES": (1, 2)}
    for name, value in (sizes | choices).items():
        monkeypatch.setattr(training, name, value)


@measures_speed
def test_rows_of_a_wide_first_dictionary() -> None:
    options = ["--first", "300", "--words", "16x2", "--rounds", "2", "--rows-per-word", "7"]
    assert training.main([*options, "first_words", "other_rows"]) == 0
    words, rows = record.read("training")
    errors = words["results"]["E"]
    assert list(errors) == ["5", "10"] and all(len(values) == 7 for values in errors.values())
    assert all(values[-1] < values[0] for values in errors.values()) and errors["10"][-1] < errors["5"][-1]
    first, codes = rows["results"]["first_E"], rows["results"]["E"]
    assert first["learned"] < min(first["others"], first["neither"])
    assert codes["learned"]["learned"] < codes["others"]["learned"] < first["learned"]
    parts = algorithm_report.parts()
    assert "| 10 | " in parts["first-words"] and "after 1 pass | 2 | 3 | 4 | 5 | 6 |" in parts["first-words"]
    assert "`300,16x2`" in parts["other-rows"] and "| 7 | held-out rows | " in parts["other-rows"]
    assert all(generated.MISSING in parts[name] for name in ("few-rows", "mixtures", "bound"))


@measures_speed
def test_few_rows(tmp_path: Path) -> None:
    for name, rows in {"learn": correlated_rows(1600), "base": correlated_rows(900, seed=1)}.items():
        (tmp_path / f"tiny_{name}.fvecs").write_bytes(write_vecs(rows.astype(np.float32), "fvecs"))
    options = ["--data", str(tmp_path), "--prefix", "tiny", "--words", "64x4", "--rounds", "4"]
    assert training.main([*options, "few_rows"]) == 0
    (line,) = record.read("training")
    found, parameters = line["results"], line["parameters"]
    assert (parameters["rows"], parameters["held_out"]) == (1440, 160)
    assert found["joint"]["trained"] < found["mixed"]["trained"]
    assert found["mixed"]["held_out"] < min(found["start"]["held_out"], found["joint"]["held_out"])
    ideal = found["ideal_axes"]
    assert list(found["shares"]) == ["0.0", "0.5"] and list(found["axes"]) == [str(ideal), str(2 * ideal)]
    assert found["shares"]["0.5"] == found["axes"][str(2 * ideal)] == found["mixed"]
    assert 0 < found["bound"] < found["mixed"]["held_out"]
    parts = algorithm_report.parts()
    assert f"| axes | {ideal} (ideal) | {2 * ideal} |" in parts["mixtures"]
    assert "1,440 training rows" in parts["few-rows"] and "lower bound" in parts["bound"]


@measures_speed
def test_more_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(training, "MORE_ROUNDS", 2)
    for name, rows in {"learn": correlated_rows(2000), "base": correlated_rows(1000, seed=1)}.items():
        (tmp_path / f"tiny_{name}.fvecs").write_bytes(write_vecs(rows.astype(np.float32), "fvecs"))
    options = ["--data", str(tmp_path), "--prefix", "tiny", "--words", "256x2"]
    assert training.main([*options, "more_rows"]) == 0
    errors = record.read("training")[0]["results"]["E"]
    assert list(errors["da"]) == list(errors["rq"]) == ["500", "1000", "2000", "2800"]
    assert all(found["2800"] < found["500"] for found in errors.values())
    assert "| 2,800 | " in algorithm_report.parts()["more-rows"]


@measures_speed
def test_the_usual_mixture_is_one_of_those_compared() -> None:
    rows = correlated_rows(1500)
    few = training.FewRows(rows[:1400], rows[1400:], (64, 64), rounds=2)
    assert few.mixtures(mixing.MIX, mixing.SPARE_AXES * few.ideal_axes) == few.mixed


@pytest.mark.parametrize(("bits", "least"), [(0, 21), (1, 9), (2, 5), (3, 3)])
def test_the_bound_of_a_gaussian(bits: float, least: float) -> None:
    """Variances 16, 4 and 1: a bit leaves 4 of the first, each further one halves both first errors."""
    signs = np.array([[i, j, k] for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)])
    rows = np.repeat(signs * (4, 2, 1), 1000, axis=0)
    assert training.gaussian_bound(rows, bits) == pytest.approx(least, rel=1e-3)


def test_wrong_names_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in {("few_rows",): "--data", ("nothing",): "expected some of"}.items():
        with pytest.raises(SystemExit):
            training.main(list(arguments))
        assert words in capsys.readouterr().err
