"""The code a reader sees is run: `python` blocks and `$ aggtree` lines of README and docs, page by page."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers.places import ROOT

from aggtree.jobs.cli.main import cli

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIRST_READ = (ROOT / "README.md", ROOT / "docs" / "tutorial.md")
"""Pages whose code always runs; that of the others takes minutes."""
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+?)(?:#[^)]*)?\)")


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in BLOCK.finditer(page.read_text())]


def run_console(text: str) -> None:
    for line in text.replace("\\\n", " ").splitlines():
        if not line.startswith("$ aggtree"):
            continue
        arguments = shlex.split(line.removeprefix("$ aggtree"), comments=True)
        answer = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert answer.exit_code == 0, f"{line}\n{answer.output}"


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
