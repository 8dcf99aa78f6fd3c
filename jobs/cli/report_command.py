"""The command `report`: a page about an index."""

from pathlib import Path

import click


@click.command()
@click.argument("index", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("report.html"),
    show_default=True,
    help="File to write.",
)
@click.option("--vectors", metavar="PATH", help="Where the vectors are, if not where they were at the build.")
def report(index: Path, *, out: Path, vectors: str | None) -> None:
    """Write a page about INDEX: one HTML file that needs nothing else.

    Parameters, sizes, the tree's branching, use of the dictionaries and their mutual information, distortion,
    the learning curve, what the build took, and recall against time if the index was tuned. Of a large
    index samples are taken, so it takes seconds.

    \b
    Example:
      aggtree report sift.index -o sift.html
    """
    from aggtree.jobs.report import report as write_report

    write_report(index, out, vectors=vectors)
    click.echo(f"{out}: open it in a browser")
