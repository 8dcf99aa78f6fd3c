"""What a reader sees is true: code on pages runs, links and paths lead somewhere, references are complete."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers.places import ROOT
from helpers.sizes import many_rows

import aggtree
from aggtree.jobs.cli.main import cli

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
ARCHITECTURE = ROOT / "docs" / "explanation" / "architecture.md"
FIRST_READ = (ROOT / "README.md", ROOT / "docs" / "tutorial.md")
"""Pages whose code always runs; that of the others takes minutes."""
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+?)(?:#[^)]*)?\)")
SPAN = re.compile(r"`([^`\n]+)`")
TOP_FOLDERS = ("aggtree", "bench", "docs", "engine", "jobs", "storage", "tests", ".ci", ".github")
PATH = re.compile(rf"(?:{'|'.join(map(re.escape, TOP_FOLDERS))})/[\w./-]*")


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in BLOCK.finditer(page.read_text())]


def run_console(text: str) -> None:
    for line in text.replace("\\\n", " ").splitlines():
        if not line.startswith("$ aggtree"):
            continue
        arguments = shlex.split(line.removeprefix("$ aggtree"), comments=True)
        answer = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert answer.exit_code == 0, f"{line}\n{answer.output}"


@many_rows
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page in FIRST_READ else [pytest.mark.slow])
        for page in PAGES
        if blocks(page)
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_code_on_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for kind, text in blocks(page):
        if kind == "python":
            exec(compile(text, str(page), "exec"), names)
        else:
            run_console(text)


def named_paths(text: str) -> list[str]:
    """Paths of the repository that a text names in code spans."""
    return [span for span in SPAN.findall(text) if PATH.fullmatch(span)]


def missing_paths(text: str) -> list[str]:
    return [name for name in named_paths(text) if not (ROOT / name).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_on_the_page_exist(page: Path) -> None:
    assert missing_paths(page.read_text()) == []


def test_the_architecture_page_leads_from_tasks_to_files() -> None:
    section = ARCHITECTURE.read_text().partition("| I want to … |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines()[2:]]
    assert len(rows) >= 15
    for task, place in rows:
        assert named_paths(place), f"{task.strip()} leads to no path"
        assert missing_paths(place) == []


def test_the_architecture_page_has_the_question_of_each_folder() -> None:
    page = ARCHITECTURE.read_text()
    for layer in ("engine", "storage", "jobs"):
        assert f"\n## `{layer}/`: " in page
        for path in sorted((ROOT / layer).glob("*/**/__init__.py")):
            purpose = ast.get_docstring(ast.parse(path.read_text())) or ""
            question = purpose.partition("?")[0] + "?"
            folder = path.parent.relative_to(ROOT)
            assert f"\n### `{folder}/`: {question[0].lower()}{question[1:]}\n" in page


def test_the_api_reference_is_made_from_all_public_names() -> None:
    """The page includes `aggtree` as a whole; its own links name what is public."""
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    assert "\n::: aggtree\n" in page
    linked = set(re.findall(r"\(#aggtree\.(\w+)\)", page))
    assert linked <= set(aggtree.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_the_command_line_page_names_every_command_and_option() -> None:
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    wanted = {f"## aggtree {name}" for name in cli.commands}
    wanted |= {
        flag
        for command in cli.commands.values()
        for option in command.params
        for flag in option.opts
        if flag[0] == "-"
    }
    missing = sorted(name for name in wanted if name not in page)
    assert not missing, f"run `python docs/command_line_page.py`: {missing}"
