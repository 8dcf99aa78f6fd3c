"""Where the tests and the repository are, and how a program of the tests is started."""

import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent


def program(module: str, *arguments: object) -> list[str]:
    """Command that runs a module of the tests in a process of its own; `conftest` puts them on its path."""
    return [sys.executable, "-m", module, *map(str, arguments)]
