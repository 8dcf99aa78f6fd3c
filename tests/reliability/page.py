"""Write the newest counts into docs/explanation/reliability.md."""

from pathlib import Path
from typing import Any

from bench import record

PAGE = Path(__file__).parent.parent.parent / "docs" / "explanation" / "reliability.md"
BEGIN, END = "<!-- counts: begin -->\n", "<!-- counts: end -->"
BARS = {
    "kills": (
        "kill -9 at random moments, resume, compare bytes",
        "make torture",
        "≥ 200 kills, 0 differences",
    ),
    "faults": (
        "ENOSPC, EIO and SIGTERM at every operation of a build",
        "make faults",
        "0 lost or half-visible",
    ),
    "damage": (
        "cuts at every 4 KiB and random bit flips",
        "make damage",
        "≥ 2,000 flips, all found, 0 crashes, 0 hangs",
    ),
    "fuzz": ("corrupted files for every reader", "make fuzz", "≥ 100,000 inputs, 0 crashes, own errors only"),
    "forgeries": (
        "indexes forged under matching checksums",
        "make forgeries",
        "≥ 5,000, 0 crashes, hangs or rows that do not exist",
    ),
    "threads": (
        "16 threads that share one index",
        "make threads",
        "≥ 1,000,000 answers, 0 wrong, 0 other errors",
    ),
    "stores": (
        "an object store that fails, in every stage",
        "make stores",
        "≥ 100 faults; same bytes, or one line and a command that continues",
    ),
    "clusters": (
        "Dask workers and schedulers frozen, killed, restarted, shared, too small",
        "make clusters",
        "≥ 30 faults; same bytes, or one line and a command that continues",
    ),
    "budgets": (
        "the smallest budget for vectors of 1,536 and 960 floats, 32 dictionaries, a wide first one",
        "make budgets",
        "every stage within its projection, the largest at least 75 % of it",
    ),
    "readers": (
        "readers while the index is rebuilt",
        "make readers",
        "8 for 60 s, 20 commits, 0 wrong, 0 errors",
    ),
    "invariance": (
        "recall of moved, scaled, turned, repeated, padded data and of data with outliers",
        "make invariance",
        "≥ 300 cases of each property, 0 silent losses",
    ),
}
VERIFY = ("throughput of `verify`, warm, 2 workers", "python -m bench verify --work DIR", "≥ 1 GB/s")


def newest(lines: list[dict[str, Any]], **wanted: Any) -> dict[str, Any] | None:
    """The results of the last line with these parameters."""
    found = [line for line in lines if wanted.items() <= line["parameters"].items()]
    return found[-1]["results"] if found else None


def counted(results: dict[str, Any]) -> str:
    """The counts of one test, in words."""
    counts = [f"{value:,} {what}" for what, value in results.items() if what not in ("seconds", "met")]
    return ", ".join(counts) + f"; {results['seconds']} s"


def table() -> str:
    rows = ["| test | command | requirement | measured |", "|---|---|---|---|"]
    for name, (what, command, bar) in BARS.items():
        results = newest(record.read("reliability"), test=name)
        rows.append(f"| {what} | `{command}` | {bar} | {counted(results) if results else 'not measured'} |")
    speed = newest(record.read("verify"), workers=2)
    measured = f"{speed['gigabytes_per_second']:.2f} GB/s" if speed else "not measured"
    rows.append(f"| {VERIFY[0]} | `{VERIFY[1]}` | {VERIFY[2]} | {measured} |")
    return "\n".join(rows) + "\n"


def write() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2])
