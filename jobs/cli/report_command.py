"""The command `report`: an HTML page about an index."""

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
@click.option("--vectors", metavar="PATH", help="Where the vectors are now, if they moved since the build.")
def report(index: Path, *, out: Path, vectors: str | None) -> None:
    """Write a report about INDEX: one self-contained HTML file.

    Shows parameters, sizes, branching of the tree, use of the words and mutual information of the
    dictionaries, distortion, the learning curve, time and memory of the build, and recall against time if the
    index was tuned. A large index is sampled, so this takes seconds.

    \b
    Example:
      aggtree report sift.index -o sift.html
    """
    from aggtree.jobs.report import report as write_report

    write_report(index, out, vectors=vectors)
    click.echo(f"{out}: open it in a browser")
