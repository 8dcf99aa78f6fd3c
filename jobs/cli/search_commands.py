"""The commands that answer queries: `search`, and `exact` without an index."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aggtree.engine.params import METRICS, Metric, SearchParams
from aggtree.jobs.cli.options import Renamed, candidates, id_set, json_option, progress_for
from aggtree.jobs.running.job_run import DEFAULT_MEMORY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aggtree.engine.search.request import Rerank
    from aggtree.storage.index.reader import Index


def _limits(_context: object, _parameter: object, text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected numbers such as 32,512") from None


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The options of `search`."""

    k: int
    out: Path | None
    ground_truth: str | None
    limits: tuple[int, ...]
    pruning_ratio: float
    rerank: "Rerank"
    within: range | str | None
    radius: float | None
    recall: float | None
    time_ms: float | None
    vectors: str | None
    threads: int
    as_json: bool

    @property
    def params(self) -> SearchParams:
        return SearchParams(limits=self.limits, pruning_ratio=self.pruning_ratio)


@click.command()
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("queries")
@click.option("-k", type=click.IntRange(1), default=100, show_default=True, help="Neighbours per query.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the ids to this .ivecs or .npy file.")
@click.option(
    "--ground-truth", metavar="FILE", help="True neighbours, for recall: .ivecs, .ibin, .npy, .hdf5."
)
@click.option(
    "--limits", callback=_limits, metavar="L1,L2,..", help="Nodes kept per level.  [default: by size]"
)
@click.option(
    "--pruning-ratio",
    cls=Renamed,
    former="--reach",
    type=click.FloatRange(1),
    default=math.inf,
    show_default="with --limits none, else by size",
    metavar="R",
    help="Prune nodes of level 1 beyond R times the mean squared distance of the ten nearest.",
)
@click.option(
    "--rerank",
    callback=candidates,
    default="auto",
    show_default=True,
    metavar="R|auto",
    help="Re-rank the best R, at least k, by exact distance; 0 for none. auto: if the vectors are available.",
)
@click.option(
    "--within",
    callback=id_set,
    metavar="SET",
    help="Only answers with these ids: 1000:2000, or a .npy file of ids or of one boolean per row.",
)
@click.option(
    "--radius",
    type=click.FloatRange(0),
    metavar="R",
    help="All answers within this distance instead of the k nearest, written to a .npz file.",
)
@click.option(
    "--recall",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Use the fastest setting with this recall, as measured by `tune` for this k.",
)
@click.option(
    "--time-ms",
    type=float,
    metavar="MS",
    help="Use the setting with the highest recall within this time, as measured by `tune`.",
)
@click.option("--vectors", metavar="PATH", help="Where the vectors are now, if they moved since the build.")
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads for the batch."
)
@json_option
def search(index: Path, queries: str, **given: Any) -> None:
    """Search the nearest neighbours of QUERIES in INDEX, and measure.

    Prints time per query, the numbers of nodes and leaves visited, and recall if the true neighbours are
    given. Where nothing is re-ranked, distances are those to the reconstructions of the vectors.

    \b
    Examples:
      aggtree search sift.index query.bvecs -k 10 --out answers.ivecs
      aggtree search sift.index query.bvecs --ground-truth groundtruth.ivecs --limits 64,1024
      aggtree search sift.index query.bvecs -k 10 --rerank 100 --out answers.npy
      aggtree search sift.index query.bvecs -k 10 --within 0:50000
      aggtree search sift.index query.bvecs --radius 200 --rerank 100 --out near.npz
      aggtree search sift.index query.bvecs -k 10 --recall 0.95
    """
    from aggtree.jobs import search as search_job
    from aggtree.storage.index.reader import open_index

    options = SearchOptions(**given)
    if options.out is not None:
        search_job.check_output(options.out, (".ivecs", ".npy") if options.radius is None else (".npz",))
    with open_index(index, options.vectors) as opened:
        block = search_job.read_queries(queries, opened.dimension)
        if options.radius is None:
            _answer_nearest(opened, block, options)
        else:
            _answer_ranges(opened, block, options, options.radius)


def _answer_nearest(opened: "Index", block: "NDArray[Any]", options: SearchOptions) -> None:
    """The k nearest of each query."""
    from aggtree.jobs import search as search_job
    from aggtree.jobs.cli import tables

    truth = search_job.load_truth(options.ground_truth, len(block)) if options.ground_truth else None
    answer, report = search_job.run_queries(
        opened,
        block,
        k=options.k,
        params=options.params,
        rerank=options.rerank,
        within=options.within,
        recall=options.recall,
        time_ms=options.time_ms,
        threads=options.threads,
        truth=truth,
    )
    if options.out is not None:
        search_job.save_ids(options.out, answer.ids)
    tables.show_search(report, options.out, as_json=options.as_json)


def _answer_ranges(opened: "Index", block: "NDArray[Any]", options: SearchOptions, radius: float) -> None:
    """All neighbours within the radius of each query."""
    from aggtree.jobs import search as search_job
    from aggtree.jobs.cli import tables

    found, milliseconds = search_job.run_range_queries(
        opened,
        block,
        radius,
        params=options.params,
        rerank=options.rerank not in ("auto", 0),
        within=options.within,
        threads=options.threads,
    )
    if options.out is not None:
        search_job.save_ranges(options.out, found)
    tables.show_ranges(found, milliseconds, options.out, as_json=options.as_json)


@click.command()
@click.argument("source")
@click.argument("queries")
@click.option("-k", type=click.IntRange(1), default=100, show_default=True, help="Neighbours per query.")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Write the ids to this .ivecs or .npy file."
)
@click.option(
    "--metric",
    type=click.Choice(METRICS),
    default="l2",
    show_default=True,
    help="Euclidean distance, inner product or cosine.",
)
@click.option(
    "--ids",
    metavar="FILE",
    help="Your ids of the rows, as for `build`; they are written instead of row numbers.",
)
@click.option("--threads", type=click.IntRange(1), default=None, help="Threads.  [default: all cores]")
@click.option(
    "--memory",
    default=DEFAULT_MEMORY,
    show_default=True,
    metavar="SIZE",
    help="Memory limit for this process.",
)
@json_option
def exact(
    source: str,
    queries: str,
    *,
    k: int,
    out: Path,
    metric: Metric,
    ids: str | None,
    threads: int | None,
    memory: str,
    as_json: bool,
) -> None:
    """Find the exact neighbours of QUERIES in SOURCE.

    Compares every query with every row (brute force). Rows are streamed, so SOURCE may be larger than memory.

    \b
    Example:
      aggtree exact base.bvecs query.bvecs -k 100 --out groundtruth.ivecs
    """
    from aggtree.jobs import search as search_job
    from aggtree.jobs.cli import tables
    from aggtree.jobs.exact import exact as exact_search

    search_job.check_output(out)
    found, _ = exact_search(
        source,
        queries,
        k=k,
        metric=metric,
        ids=ids or None,
        threads=threads,
        memory=memory,
        progress=progress_for(as_json),
    )
    search_job.save_ids(out, found)
    tables.show_exact(out, found.shape, as_json=as_json)
