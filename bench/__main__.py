"""Run one benchmark by name: `python -m bench NAME [options]`.

A module of the folders below is a benchmark when it has a function `main`; nothing lists it elsewhere.
"""

import ast
import importlib
import sys
from pathlib import Path

BENCH = Path(__file__).parent


def benchmarks() -> dict[str, str]:
    """Full module name of each benchmark, by the name that runs it."""
    found = {}
    for path in sorted(BENCH.glob("*/*.py")):
        functions = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef))
        if any(function.name == "main" for function in functions):
            found[path.stem] = f"bench.{path.parent.name}.{path.stem}"
    return found


def main(arguments: list[str]) -> int:
    known = benchmarks()
    if not arguments or arguments[0] not in known:
        sys.stderr.write(f"usage: python -m bench NAME [options]; names: {', '.join(sorted(known))}\n")
        return 2
    return int(importlib.import_module(known[arguments[0]]).main(arguments[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
