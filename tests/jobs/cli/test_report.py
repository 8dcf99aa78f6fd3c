"""The page of `aggtree report`: its figures are correct, and a browser draws it without other requests."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.services.chromium import Browser, browser, find_browser
from helpers.sizes import JIT
from helpers.small_builds import SMALL, vectors

import aggtree
from aggtree.engine.search.tuned import TunedPoint
from aggtree.engine.training import information
from aggtree.jobs.cli.main import cli, main
from aggtree.jobs.report import figures as report_figures
from aggtree.jobs.report.figures import IndexFigures, collect, spread_places
from aggtree.jobs.running.memory import MemoryTrace
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.build_report import read_report
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.index.format import REPORT
from aggtree.storage.index.reader import open_index
from aggtree.storage.sealed_json import read_sealed, write_sealed

PLOTS = "[...document.querySelectorAll('svg')]"
COUNT = 11
SECTIONS = ("Parameters", "Size", "Tree", "Codes", "Build", "Search")
POINTS = (
    TunedPoint(limits=(4, 32), rerank=0, recall=0.6, milliseconds=0.05),
    TunedPoint(limits=(8, 64), rerank=20, recall=0.9, milliseconds=0.2),
)


@pytest.fixture(scope="module")
def index(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tuned index of a file."""
    folder = tmp_path_factory.mktemp("report")
    shutil.copytree(reference, folder / "small.index")
    with open_index(folder / "small.index") as opened:
        opened.keep_tuning(10, POINTS)
    return folder / "small.index"


@pytest.fixture(scope="module")
def page(index: Path) -> Path:
    out = index.parent / "report.html"
    answer = CliRunner().invoke(cli, ["report", str(index), "-o", str(out)], catch_exceptions=False)
    assert answer.exit_code == 0 and answer.output == f"{out}: open it in a browser\n"
    return out


@pytest.fixture(scope="module")
def figures(index: Path) -> IndexFigures:
    with open_index(index) as opened:
        return collect(opened)


def test_what_the_build_took_is_kept(index: Path) -> None:
    with open_index(index) as opened:
        report = read_report(index, opened.manifest.first_segment.build)
    assert report is not None
    assert [stage.name for stage in report.stages] == ["train", "encode", "sort", "build", "commit"]
    for stage in report.stages:
        assert stage.done == stage.total > 0 and stage.peak > 0 and stage.disk > 0 and stage.rate > 0
    # The first batch at the start and after each round, then the second batch.
    assert len(report.distortions) == report.rounds + 2
    if JIT:  # otherwise a batch has too few rows for a round
        assert report.rounds > 0 and report.distortions[report.rounds] < report.distortions[0]


def test_a_report_of_another_build_is_none_and_a_damaged_one_is_reported(index: Path, tmp_path: Path) -> None:
    assert read_report(index, "0" * 12) is None
    assert read_report(tmp_path, "0" * 12) is None
    (tmp_path / REPORT).write_text("{}")
    with pytest.raises(IndexFormatError, match=re.escape(REPORT)):
        read_report(tmp_path, "0" * 12)


def test_stages_of_older_reports_have_the_names_of_today(index: Path, tmp_path: Path) -> None:
    record = read_sealed(index / REPORT)
    record["stages"][-1]["name"] = "stitch"
    write_sealed(tmp_path / REPORT, record)
    report = read_report(tmp_path, record["build"])
    assert report is not None and report.stages[-1].name == "commit"


def test_a_trace_is_bounded_and_keeps_peaks() -> None:
    trace = MemoryTrace()
    for moment in range(10_000):
        trace.add(float(moment), 5 if moment != 777 else 99)
    points = trace.since(0.0)
    assert 40 <= len(points) <= MemoryTrace.MOST
    assert max(used for _, used in points) == 99
    assert trace.since(1e9) == ()


def test_figures_of_the_tree_are_those_of_its_arrays(index: Path, figures: IndexFigures) -> None:
    with open_index(index) as opened:
        parts, manifest = opened.bytes_by_part(), opened.manifest
    # The root, and the sentinels of both offsets, belong to no level.
    offset = np.dtype(manifest.first_segment.counts.offset_dtype).itemsize
    tree = sum(size for name, size in parts.items() if name.startswith("tree/"))
    counted = sum(level.node_bytes + level.leaf_bytes for level in figures.levels)
    assert tree - counted == 1 + 4 + 2 * offset + 2 * offset
    for level in figures.levels:
        assert level.sampled == level.nodes == sum(level.children) == sum(level.leaf_counts)


def test_figures_of_the_codes(index: Path, figures: IndexFigures) -> None:
    codes = figures.codes
    assert codes is not None and codes.rows == len(vectors()) and codes.vectors > 1000
    with open_index(index) as opened:
        stored = CodeStore.open(index / opened.manifest.first_segment.directory / "codes.zarr").read(
            0, codes.rows
        )
        layout, dictionaries = opened.layout, opened.dictionaries
    np.testing.assert_allclose(
        [part.bits for part in codes.dictionaries],
        information.self_information(stored, layout, correction=True).clip(max=4),
        rtol=1e-6,
    )
    expected = information.mutual_information(stored, layout, correction=True)
    np.testing.assert_allclose(codes.mutual, expected, atol=0.05)
    assert (np.diff(codes.errors) <= 0).all()
    whole = ((vectors() - dictionaries.decode(stored)) ** 2).sum(axis=1).mean()
    assert codes.errors[-1] == pytest.approx(whole, rel=0.1)


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (5, 6), (0, 6400), (10, 10_000_000_000)])
def test_places_are_spread_and_bounded(start: int, stop: int) -> None:
    places = list(spread_places(start, stop, 100, seed=1))
    assert sum(high - low for low, high in places) == min(stop - start, 6400)
    assert all(start <= low < high <= stop for low, high in places)
    assert places == sorted(places)


def test_a_sample_of_a_large_index(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"PLACES": 8, "CODES_PER_PLACE": 50, "NODES_PER_PLACE": 2}.items():
        monkeypatch.setattr(report_figures, name, size)
    with open_index(index) as opened:
        few = collect(opened)
    assert few.codes is not None and few.codes.rows == 400
    assert any(level.sampled == 16 < level.nodes for level in few.levels)


def test_an_index_that_has_grown(index: Path, figures: IndexFigures, tmp_path: Path) -> None:
    shutil.copytree(index, tmp_path / "i")
    more = vectors(300, seed=5)
    aggtree.append(tmp_path / "i", more, workers=0)
    with open_index(tmp_path / "i") as opened:
        grown = collect(opened)
    for before, after in zip(figures.levels, grown.levels, strict=False):
        assert before.nodes < after.nodes and before.leaf_bytes <= after.leaf_bytes
        assert sum(after.children) == after.nodes == after.sampled
    leaves = sum(level.leaves for level in grown.levels)
    assert leaves == sum(level.leaves for level in figures.levels) + len(more)


def test_the_page_stands_alone(page: Path, source: Path) -> None:
    text = page.read_text()
    for section in SECTIONS:
        assert f"<h2>{section}</h2>" in text
    assert not re.search(r"https?://|<script|@import|url\(", text)
    assert text.count("<svg") == text.count('role="img"') == COUNT
    assert str(source) in text  # where the vectors are


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    aggtree.build(vectors()[:1500], tmp_path / "i", workers=0, **SMALL)
    (tmp_path / "i" / REPORT).unlink()
    for codes in (tmp_path / "i").glob("build-*/codes.zarr/zarr.json"):
        codes.unlink()
    answer = CliRunner().invoke(cli, ["report", str(tmp_path / "i"), "-o", str(tmp_path / "r.html")])
    assert answer.exit_code == 0
    text = (tmp_path / "r.html").read_text()
    for words in ("codes could not be read", "is not recorded", "was not measured", "was not tuned"):
        assert words in text


def test_errors_are_one_line(tmp_path: Path, index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["report", str(tmp_path / "none.index")],
        ["report", str(index), "-o", str(tmp_path / "no" / "where.html")],
        ["report", str(index), "--vectors", str(tmp_path / "none.npy"), "-o", str(tmp_path / "r.html")],
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium found; AGGTREE_BROWSER may name one")
    with browser(path, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_a_browser_draws_it(chromium: Browser, page: Path, width: int, scheme: str) -> None:
    chromium.open(page, width=width, scheme=scheme)
    assert chromium.requests() == [] and chromium.complaints() == []
    boxes = chromium.evaluate(
        "[...document.querySelectorAll('svg')].map(x => x.getBoundingClientRect().toJSON())"
    )
    assert len(boxes) == COUNT
    assert all(box["width"] > 250 and box["height"] > 50 and box["right"] <= width for box in boxes)
    marks = (
        "[...document.querySelectorAll('svg')].map(x => x.querySelectorAll('.mark, .curve, .area').length)"
    )
    assert min(chromium.evaluate(marks)) > 0
    empty = "[...document.querySelectorAll('svg .mark')].filter(x => !x.getBoundingClientRect().width).length"
    assert chromium.evaluate(empty) == 0
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    chromium.evaluate("document.querySelectorAll('details').forEach(x => { x.open = true })")
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    smallest = (
        "Math.min(...[...document.querySelectorAll('svg text')].map(x => x.getBoundingClientRect().height))"
    )
    assert chromium.evaluate(smallest) >= 8
    ink, card = (
        chromium.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()")
        for name in ("ink", "card")
    )
    assert (brightness(ink) < brightness(card)) == (scheme == "light")


def brightness(colour: str) -> int:
    return sum(bytes.fromhex(colour.removeprefix("#")))
