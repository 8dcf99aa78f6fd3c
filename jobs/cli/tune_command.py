"""The command `tune`: measure recall and time of searches, store them in the index, and show them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aggtree.jobs.cli.options import json_option, progress_for
from aggtree.jobs.running.job_run import DEFAULT_MEMORY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggtree.engine.search.tuned import TunedPoint

WIDTH, HEIGHT = 64, 14


@click.command()
@click.argument("index", type=click.Path(path_type=Path))
@click.option("--queries", metavar="FILE", help="Queries to tune with.  [default: rows of the index]")
@click.option("--ground-truth", metavar="FILE", help="Their true neighbours.  [default: computed]")
@click.option(
    "--sample",
    type=click.IntRange(1),
    default=None,
    help="Number of rows to tune with.  [default: 1000, more for k < 4]",
)
@click.option("-k", type=click.IntRange(1), default=10, show_default=True, help="Neighbours per query.")
@click.option("--vectors", metavar="PATH", help="Where the vectors are now, if they moved since the build.")
@click.option("--no-rerank", is_flag=True, help="Measure only searches that do not read vectors.")
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed of the sample.")
@click.option(
    "--memory",
    default=DEFAULT_MEMORY,
    show_default=True,
    metavar="SIZE",
    help="Memory limit for computing true neighbours.",
)
@json_option
def tune(
    index: Path,
    *,
    queries: str | None,
    ground_truth: str | None,
    sample: int | None,
    k: int,
    vectors: str | None,
    no_rerank: bool,
    seed: int,
    memory: str,
    as_json: bool,
) -> None:
    """Measure recall and time on this machine.

    Searches INDEX with many limits and numbers of re-ranked candidates, and stores and prints the points on
    the Pareto front of recall and time. Recall is the share of the true k nearest neighbours among the k
    answers; ± is its sampling error, which four times as many queries halve. Time is the median over queries
    answered one by one on one thread. Afterwards `aggtree search --recall 0.95` and `--time-ms 0.3` choose
    among these points, for the same k.

    Without --queries, rows of the index are used. Their neighbours may be easier to find than those of real
    queries.

    \b
    Examples:
      aggtree tune sift.index --queries query.bvecs --ground-truth groundtruth.ivecs
      aggtree tune sift.index --sample 1000 -k 1
    """
    from aggtree.jobs.tune import tune as tune_index

    points = tune_index(
        index,
        k=k,
        queries=queries,
        ground_truth=ground_truth,
        sample=sample,
        vectors=vectors,
        rerank=not no_rerank,
        seed=seed,
        memory=memory,
        progress=progress_for(as_json),
    )
    show_points(index, k, points, as_json=as_json)


def show_points(index: Path, k: int, points: "Sequence[TunedPoint]", *, as_json: bool) -> None:
    """A table of the points, and how recall grows with time."""
    from math import inf

    from aggtree.jobs.cli.tables import print_table
    from aggtree.storage.index.tuning import point_to_json

    if as_json:
        click.echo(json.dumps({"event": "result", "k": k, "points": [*map(point_to_json, points)]}))
        return
    print_table(
        f"{index}: k {k}",
        ("recall", "±", "ms", "limits", "pruning ratio", "rerank"),
        (
            (
                f"{point.recall:.4f}",
                f"{point.error:.4f}",
                f"{point.milliseconds:.3f}",
                ",".join(map(str, point.limits)),
                f"{point.pruning_ratio:.3f}" if point.pruning_ratio < inf else "",
                str(point.rerank or ""),
            )
            for point in points
        ),
    )
    click.echo("\n".join(plot(points)))


def plot(points: "Sequence[TunedPoint]") -> list[str]:
    """Recall over the logarithm of time, in characters."""
    from math import log

    times = [log(point.milliseconds) for point in points]
    low, high = points[0].recall, points[-1].recall
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    for point, place in zip(points, times, strict=True):
        column = round((WIDTH - 1) * (place - times[0]) / ((times[-1] - times[0]) or 1))
        row = round((HEIGHT - 1) * (high - point.recall) / ((high - low) or 1))
        grid[row][column] = "o"
    labels = [high - (high - low) * row / (HEIGHT - 1) for row in range(HEIGHT)]
    lines = [f"{label:6.3f} |{''.join(row).rstrip()}" for label, row in zip(labels, grid, strict=True)]
    first, last = points[0].milliseconds, points[-1].milliseconds
    scale = f"{first:.3f} ms".ljust(WIDTH - 12) + f"{last:.3f} ms".rjust(12)
    return ["", *lines, "       +" + "-" * WIDTH, "        " + scale, "        (time on a logarithmic scale)"]
