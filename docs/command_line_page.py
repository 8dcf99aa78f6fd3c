"""Write the reference page of the command line from the commands: `python docs/command_line_page.py`.

`make docs` runs it. A test checks that the committed page names every command and option.
"""

from pathlib import Path

import click

from aggtree.jobs.cli.main import cli

PAGE = Path(__file__).parent / "reference" / "command-line.md"

HEAD = """\
# Command line

`python docs/command_line_page.py` writes this page from the help of the commands.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | a check failed: damage was found |
| 2 | a wrong input or argument, reported in one line |
| 130, 143 | stopped by Ctrl-C or SIGTERM; the same command continues |

`--json` prints one JSON object per line.

Shell completion: put `eval "$(_AGGTREE_COMPLETE=bash_source aggtree)"` into `~/.bashrc`. For other shells use
`zsh_source` or `fish_source`.
"""


def page() -> str:
    """The whole page."""
    parent = click.Context(cli, info_name="aggtree", max_content_width=100, terminal_width=100)
    parts = [HEAD, f"## aggtree\n\n```text\n{cli.get_help(parent)}\n```\n"]
    for name, command in sorted(cli.commands.items()):
        context = click.Context(
            command, info_name=name, parent=parent, max_content_width=100, terminal_width=100
        )
        parts.append(f"## aggtree {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
