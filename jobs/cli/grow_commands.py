"""The commands that change an index: `append`, `delete`, `compact`; and `export`, which copies from it."""

from pathlib import Path
from typing import Any

import click

from aggtree.jobs.cli.build_commands import index_argument
from aggtree.jobs.cli.options import (
    given_options,
    id_set,
    ids_option,
    json_option,
    progress_for,
    restart_option,
    run_options,
)


@click.command()
@index_argument
@click.argument("source")
@run_options
@ids_option
@restart_option
@click.option("--repair", is_flag=True, help="Verify what was appended, and rebuild what is damaged.")
def append(index: Path, source: str, **options: Any) -> None:
    """Add the vectors of SOURCE to INDEX.

    The vectors are encoded with the dictionaries of INDEX and become a segment with its own tree. Searches
    visit all segments, and can run meanwhile. Row numbers continue. After an interruption, the same command
    continues where it stopped. A warning is shown if the new vectors differ so much from the old ones that
    the dictionaries should be trained further.

    \b
    Examples:
      aggtree append sift.index more.bvecs
      aggtree append my.index new.npy --ids new_ids.npy --memory 1GiB
    """
    from aggtree.jobs.append import append as append_rows
    from aggtree.jobs.cli import grow_tables

    given, as_json = given_options(options)
    grow_tables.show_append(append_rows(index, source, **given), source, as_json=as_json)


@click.command()
@index_argument
@click.argument("ids", callback=id_set)
@json_option
def delete(index: Path, ids: range | str, as_json: bool) -> None:
    """Delete the vectors IDS from INDEX.

    IDS is a range such as 100:200, a .npy file of ids or of one boolean per row, or a text file with one id
    per line. If the index has own ids, IDS are those. Searches that open INDEX afterwards return other
    vectors instead. `compact` frees the space.

    \b
    Examples:
      aggtree delete sift.index 100:200
      aggtree delete my.index gone.npy
    """
    from aggtree.jobs.cli import grow_tables
    from aggtree.jobs.delete import delete as delete_rows

    grow_tables.show_delete(delete_rows(index, ids), as_json=as_json)


@click.command()
@index_argument
@run_options
@restart_option
def compact(index: Path, **options: Any) -> None:
    """Merge the segments of INDEX into one tree.

    The codes of all segments, except those of deleted vectors, are copied and sorted, and one tree built from
    them replaces all others. No vector is encoded again, and ids do not change. After an interruption, the
    same command continues where it stopped.

    \b
    Example:
      aggtree compact sift.index --memory 1GiB
    """
    from aggtree.jobs.cli import grow_tables
    from aggtree.jobs.compact import compact as compact_index

    given, as_json = given_options(options)
    grow_tables.show_compact(compact_index(index, **given), as_json=as_json)


@click.command()
@index_argument
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="Output file; the suffix chooses the format: .npy, .parquet or .faiss.",
)
@json_option
def export(index: Path, to: Path, as_json: bool) -> None:
    """Export the ids and codes of INDEX to other formats.

    Writes codes.npy and codes.ids.npy, or codes.parquet with the columns `id` and `code`, or a Faiss index
    with the dictionaries as its additive quantizer. Deleted vectors are omitted.

    \b
    Examples:
      aggtree export sift.index --to codes.npy
      aggtree export sift.index --to sift.faiss
    """
    from aggtree.jobs.cli import grow_tables
    from aggtree.jobs.export import export as export_codes

    result = export_codes(index, to, progress=progress_for(as_json))
    grow_tables.show_export(result, as_json=as_json)
