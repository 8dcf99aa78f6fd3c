"""The demonstration: index real SIFT, answer queries, and compare with exact search.

`python -m aggtree.jobs.demo --directory DIR`, which is what `make demo` runs.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import click

from aggtree.jobs.build import build
from aggtree.jobs.cli import tables as reports
from aggtree.jobs.exact import exact_neighbours
from aggtree.jobs.running.job_run import BuildResult
from aggtree.jobs.running.memory import parse_size
from aggtree.jobs.running.progress import make_progress
from aggtree.jobs.search import SearchReport, read_queries, run_queries
from aggtree.storage.index.reader import open_index
from aggtree.storage.sources.base import open_source
from aggtree.storage.sources.demo_data import demo_paths

MEMORY = "1GiB"
NEIGHBOURS = 100


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """Results of the demonstration; exact_ms is per query, on one thread."""

    built: BuildResult
    report: SearchReport
    exact_ms: float
    open_ms: float


def run_demo(directory: Path) -> DemoResult:
    """Build an index of the embedded descriptors below `directory`, query it, compare with exact search."""
    base, query = demo_paths()
    built = build(base, directory / "photos.index", memory=MEMORY, progress="auto")
    queries = read_queries(query, 128)
    with open_source(base) as source, make_progress("auto") as progress:
        began = time.perf_counter()
        truth, _ = exact_neighbours(
            source, queries, k=NEIGHBOURS, threads=1, allowed=parse_size(MEMORY), progress=progress
        )
        exact_seconds = time.perf_counter() - began
    began = time.perf_counter()
    with open_index(built.path) as index:
        open_seconds = time.perf_counter() - began
        _, report = run_queries(index, queries, k=NEIGHBOURS, truth=truth)
    return DemoResult(
        built=built,
        report=report,
        exact_ms=1000 * exact_seconds / len(queries),
        open_ms=1000 * open_seconds,
    )


@click.command()
@click.option("--directory", type=click.Path(path_type=Path), default=Path("demo"), show_default=True)
def main(directory: Path) -> None:
    """Build an index of real SIFT out of core, open it by mmap, answer queries, compare with exact search."""
    result = run_demo(directory)
    base, query = demo_paths()
    reports.show_build(result.built, as_json=False)
    click.echo(f"\nopened by mmap in {result.open_ms:.1f} ms")
    reports.show_search(result.report, None, as_json=False)
    faster = result.exact_ms / result.report.p50
    click.echo(f"exact search, one thread: {result.exact_ms:.3f} ms per query, {faster:.0f} times as long")
    click.echo("\nwhere the files are:")
    for what, path in (("vectors", base), ("queries", query), ("index", result.built.path)):
        click.echo(f"  {what:8} {path}")
    for path in sorted(result.built.path.rglob("*")):
        if path.is_file():
            click.echo(f"  {path.stat().st_size:12,}  {path.relative_to(result.built.path)}")


if __name__ == "__main__":
    main()
