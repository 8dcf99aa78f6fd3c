"""Run one of the long tests, or all of them.

    python -m reliability NAME [--work DIR] [--seed N]

NAME is one of NAMES, or all.

Started in tests/ with the repository's root on PYTHONPATH, as `make reliability` does. Prints one line of
counts for each, appends it to bench/results/reliability.jsonl and to the page on reliability, and ends with
1 if a bar was missed.
"""

import argparse
import importlib
import sys
import tempfile
import time
from pathlib import Path

from bench import record
from reliability import page

NAMES = (
    "kills",
    "faults",
    "damage",
    "fuzz",
    "readers",
    "forgeries",
    "threads",
    "stores",
    "clusters",
    "budgets",
    "invariance",
)


def run(name: str, work: Path | None, seed: int) -> bool:
    """Run one; whether its bar was met."""
    form = importlib.import_module(f"reliability.long.{name}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=work, prefix=f"{name}-") as place:
        counts: dict[str, int] = form.run(Path(place), seed)
    seconds = round(time.monotonic() - began)
    met = bool(form.met(counts))
    words = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    print(f"{name}: {words} ({seconds} s): {'met' if met else 'MISSED'}", flush=True)
    record.write("reliability", {"test": name, "seed": seed}, counts | {"seconds": seconds, "met": met})
    page.write()
    return met


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="reliability", description=__doc__)
    parser.add_argument("name", choices=[*NAMES, "all"])
    parser.add_argument(
        "--work", type=Path, help="where indexes are made; a file system in memory is fastest"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    names = NAMES if options.name == "all" else (options.name,)
    results = [run(name, options.work, options.seed) for name in names]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
