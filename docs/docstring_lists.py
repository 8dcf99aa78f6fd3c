"""Extension of the API reference: `name : meaning` lines of docstrings become a list.

Docstrings name their parameters one per line, continuation lines indented. Markdown would run them together.
"""

import re

from griffe import Extension, Object

ENTRY = re.compile(r"(?P<names>\w+(?:, \w+)*) : (?P<meaning>.+)")


def with_lists(text: str) -> str:
    """A docstring with its parameters as a Markdown list."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        entry = ENTRY.fullmatch(line)
        if entry:
            lines += [] if inside else [""]
            names = ", ".join(f"`{name}`" for name in entry["names"].split(", "))
            lines.append(f"- {names}: {entry['meaning']}")
        elif inside and line[:1] == " ":
            lines.append(f"  {line.strip()}")
        else:
            lines += ["", line] if inside else [line]
        inside = bool(entry) or (inside and line[:1] == " ")
    return "\n".join(lines)


class DocstringLists(Extension):
    """Rewrites every docstring before it is rendered."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        if obj.docstring:
            obj.docstring.value = with_lists(obj.docstring.value)
