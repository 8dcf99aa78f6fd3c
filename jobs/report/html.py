"""The page of `aggtree report` as HTML: one file without scripts, fonts or external resources.

Its content security policy forbids a browser to load anything. The colours follow the light or dark scheme of
the reader's system. Every picture has its numbers as a table below it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

COLOURS = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #1b2430; --soft: #5b6675;
  --line: #e2e6eb; --axis: #9aa4b0; --s0: #2f6fde; --s1: #e07b1f; --s2: #1f9d74; --s3: #b0479b; --s4: #c0392b;
  --s5: #6b7785; --heat: #2f6fde; --on: #ffffff; --track: #e8ecf1; }
@media (prefers-color-scheme: dark) { :root { --page: #12161c; --card: #1b2129; --ink: #e6eaf0;
  --soft: #9aa6b5; --line: #2b333e; --axis: #5c6876; --s0: #6ea3ff; --s1: #f2a154; --s2: #4fc79d;
  --s3: #d98acb; --s4: #ef7a6d;  --s5: #95a1b0; --heat: #6ea3ff; --on: #10151c; --track: #2a323d; } }
""".strip()

CHART_STYLE = """
svg text { fill: var(--ink); font-size: 10.5px; font-family: inherit; font-variant-numeric: tabular-nums; }
svg .small { font-size: 9.5px; } svg .name { fill: var(--soft); } svg .on { fill: var(--on); }
svg .grid { stroke: var(--line); stroke-width: 1; } svg .axis { stroke: var(--axis); stroke-width: 1; }
svg .mark-line { stroke: var(--soft); stroke-dasharray: 3 3; }
svg .curve { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; }
svg .area { fill: var(--c); fill-opacity: 0.22; stroke: var(--c); stroke-width: 1.5; stroke-linejoin: round; }
svg .dashed { fill: none; stroke: var(--c); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg .dot { fill: var(--c); stroke: var(--card); stroke-width: 1; }
svg .hollow { fill: var(--card); stroke: var(--c); stroke-width: 1.6; }
svg .heat { fill: var(--heat); } svg .track { fill: var(--track); }
""".strip()

PAGE_STYLE = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 0.3rem; }
p { margin: 0.3rem 0; max-width: 46rem; }
.soft, figcaption p, footer { color: var(--soft); }
.cards { display: grid; gap: 0.75rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 8.4rem), 1fr));
  margin: 1.2rem 0 0; padding: 0; }
.cards div { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 0.7rem 0.9rem; min-width: 0; }
.cards dt { color: var(--soft); font-size: 0.8rem; }
.cards dd { margin: 0; font-size: 1.3rem; font-weight: 600; overflow-wrap: anywhere;
  font-variant-numeric: tabular-nums; }
.grid { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr));
  align-items: start; margin-top: 0.8rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 0.9rem 1rem; min-width: 0; }
figcaption h3 { font-size: 0.98rem; margin: 0; }
figcaption p { font-size: 0.85rem; margin: 0.1rem 0 0.6rem; }
svg { display: block; width: 100%; max-width: 30rem; height: auto; margin: 0 auto; }
.keys { display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; font-size: 0.82rem; margin: 0.5rem 0 0; padding: 0;
  list-style: none; color: var(--soft); }
.keys i { display: inline-block; width: 0.75em; height: 0.75em; border-radius: 2px; margin-right: 0.4em; }
details { margin-top: 0.6rem; font-size: 0.85rem; } summary { cursor: pointer; color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 0.4rem 0 0; font-variant-numeric: tabular-nums;
  font-size: 0.85rem; }
th, td { padding: 0.2rem 0.8rem 0.2rem 0; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } th:first-child, td:first-child { text-align: left; }
.words th, .words td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.words td:first-child { white-space: nowrap; }
footer { margin-top: 2.5rem; font-size: 0.82rem; }
""".strip()


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns and rows of text; names of things come first. `words`: cells are text, not numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: bool = False

    def html(self, caption: str) -> str:
        style = ' class="words"' if self.words else ""
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows
        )
        return (
            f'<div class="wide"><table{style} aria-label="{escape(caption)}"><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture with caption, legend and numbers; without a picture, the table alone."""

    title: str
    note: str
    svg: str = ""
    table: Table | None = None
    keys: Sequence[str] = ()

    def html(self) -> str:
        parts = [
            f"<figcaption><h3>{escape(self.title)}</h3><p>{escape(self.note)}</p></figcaption>",
            self.svg,
        ]
        if self.keys:
            items = "".join(
                f'<li><i style="background:var(--s{number})"></i>{escape(name)}</li>'
                for number, name in enumerate(self.keys)
            )
            parts.append(f'<ul class="keys">{items}</ul>')
        if self.table is not None:
            table = self.table.html(self.title)
            parts.append(f"<details><summary>Table</summary>{table}</details>" if self.svg else table)
        return f"<figure>{''.join(parts)}</figure>"


@dataclass(frozen=True, kw_only=True)
class Section:
    """Related figures; `note` explains them, or why there are none."""

    title: str
    note: str
    figures: Sequence[Figure] = ()

    def html(self) -> str:
        figures = "".join(figure.html() for figure in self.figures)
        grid = f'<div class="grid">{figures}</div>' if figures else ""
        return (
            f"<section><h2>{escape(self.title)}</h2><p class='soft'>{escape(self.note)}</p>{grid}</section>"
        )


def html_page(
    title: str, about: str, cards: Sequence[tuple[str, str]], sections: Sequence[Section], foot: str
) -> str:
    """The whole page."""
    heads = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in cards)
    body = "\n".join(section.html() for section in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{COLOURS}
{PAGE_STYLE}
{CHART_STYLE}
</style>
</head>
<body>
<main>
<header><h1>{escape(title)}</h1><p class="soft">{escape(about)}</p><dl class="cards">{heads}</dl></header>
{body}
<footer>{escape(foot)}</footer>
</main>
</body>
</html>
"""
