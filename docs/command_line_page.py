"""Write the command line's reference page from the commands themselves: `python docs/command_line_page.py`.

`tests/project/test_docs.py` holds the committed page to name every command and option there is.
"""

from pathlib import Path

import click

from aggtree.jobs.cli.main import cli

PAGE = Path(__file__).parent / "reference" / "command-line.md"

HEAD = """\
# Command line

Written by `python docs/command_line_page.py` from the commands' own help.

Exit codes: 0 done; 1 what was asked is not so (damage found); 2 a wrong input or argument, told in one line;
130 and 143 stopped by Ctrl-C or SIGTERM, and the same command continues. `--json`: one JSON object a line.

Shell completion: `eval "$(_AGGTREE_COMPLETE=bash_source aggtree)"` in `~/.bashrc`; `zsh_source` and
`fish_source` likewise.
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
