"""Parts of README and docs that are made from `bench/results` alone, between two marks in the page.

    <!-- NAME: begin -->
    ...
    <!-- NAME: end -->

A test regenerates and compares them, so every figure on a page matches the results.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from aggtree.jobs.report.html import CHART_STYLE, COLOURS

ROOT = Path(__file__).parent.parent.parent
IMAGES = ROOT / "docs" / "images"
MISSING = "*Not measured yet.*"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; without rows, a remark instead."""
    if not rows:
        return f"{MISSING}\n"
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def filled(text: str, parts: Mapping[str, str]) -> str:
    """A page with its marked parts as given; ValueError if a mark is missing."""
    for name, content in parts.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"no part {name} between {begin} and {end}")
        text = f"{before}{begin}\n{content.strip()}\n{end}{after}"
    return text


def image_file(svg: str) -> str:
    """A chart as a file of its own, with the colours of the report."""
    opening, _, marks = svg.partition(">")
    size = opening.partition('viewBox="0 0 ')[2].partition('"')[0]
    width, height = size.split()
    head = opening.replace(
        "<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" width="{1.6 * float(width):.0f}" '
    )
    card = f'<rect width="{width}" height="{height}" style="fill:var(--card)"/>'
    font = "svg { font-family: system-ui, -apple-system, Roboto, sans-serif; }"
    return f"{head}><style>{font}\n{COLOURS}\n{CHART_STYLE}\n</style>{card}{marks}\n"


class Output:
    """Generated files: `files` by path."""

    def __init__(self) -> None:
        self.files: dict[Path, str] = {}

    def page(self, path: Path, parts: Mapping[str, str]) -> None:
        self.files[path] = filled(path.read_text(encoding="utf-8"), parts)

    def image(self, name: str, svg: str) -> str:
        """Add a chart; returns its path relative to a page in docs/<folder>/."""
        self.files[IMAGES / f"{name}.svg"] = image_file(svg)
        return f"../images/{name}.svg"

    def stale(self) -> list[str]:
        """Files that differ from the generated ones."""
        return [
            str(path.relative_to(ROOT))
            for path, text in self.files.items()
            if not path.exists() or path.read_text(encoding="utf-8") != text
        ]

    def write(self) -> None:
        for path, text in self.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
