"""Tables of `aggtree info`: sizes by part, levels of the trees, segments and deleted rows."""

import click
import numpy as np

from aggtree.engine.search.request import SearchRequest
from aggtree.engine.search.tuned import TunedPoint
from aggtree.jobs.cli.tables import format_words, print_json, print_table
from aggtree.storage.index.live_rows import live_bits
from aggtree.storage.index.manifest import IndexManifest
from aggtree.storage.index.reader import Index
from aggtree.storage.index.segment_manifest import SegmentManifest
from aggtree.storage.index.tuning import read_tuning
from aggtree.storage.row_bits import unpacked
from aggtree.storage.work.job_record import python_names


def show_info(index: Index, *, as_json: bool) -> None:
    """Parameters, sizes by part, the segments, and the levels of their trees."""
    manifest, parts = index.manifest, index.bytes_by_part()
    if as_json:
        print_json(_without_files(manifest) | {"live_rows": manifest.live_rows, "bytes": parts})
        return
    build = manifest.first_segment.build
    click.echo(f"{index.path}: {index.rows:,} rows of dimension {index.dimension}, build {build}")
    left_out = sum(segment.source_rows - segment.rows for segment in manifest.segments)
    if left_out:
        click.echo(f"{left_out:,} rows of the source were skipped")
    if manifest.live:
        click.echo(f"{manifest.live.deleted:,} rows were deleted; `aggtree compact` frees their space")
    for segment in manifest.segments:
        if segment.codes:
            size = sum(record.bytes for record in segment.codes.files)
            click.echo(f"codes at {segment.codes.location}, {size:,} bytes, not needed by queries")
    if manifest.own_ids:
        click.echo("ids are the user's own")
    for k, points in _tuned_points(index).items():
        ends = " to ".join(
            f"recall {p.recall:.3f} at {p.milliseconds:.3f} ms" for p in (points[0], points[-1])
        )
        click.echo(f"tuned for k {k}: {ends}")
    default = index.resolved(SearchRequest(k=10))
    ranking = f"re-ranks {default.rerank} candidates by the vectors" if default.rerank else "ranks by codes"
    click.echo(f"a search for 10 neighbours {ranking} by default")
    for piece in manifest.all_pieces:
        click.echo(
            f"vectors for exact distances: {piece.vectors or 'an array; open the index with its location'}"
        )
    parameters = python_names(manifest.first_segment.parameters)
    click.echo(f"dictionaries {format_words(manifest.words)}; made by aggtree {manifest.made_by}")
    click.echo(", ".join(f"{name} {value}" for name, value in sorted(parameters.items()) if name != "words"))
    rows = max(1, index.rows)
    print_table(
        "",
        ("part", "bytes", "bytes per vector"),
        [
            *((name, f"{size:,}", f"{size / rows:.2f}") for name, size in parts.items()),
            ("total", f"{sum(parts.values()):,}", f"{sum(parts.values()) / rows:.2f}"),
        ],
    )
    if manifest.appended_segments:
        _show_segments(index)
    _show_levels(manifest)


def _without_files(manifest: IndexManifest) -> dict[str, object]:
    """The manifest without the long lists of checksums."""
    record: dict[str, object] = dict(manifest.to_json()) | _segment_record(manifest.first_segment)
    del record["files"]
    if manifest.appended_segments:
        record["segments"] = [_segment_record(segment) for segment in manifest.appended_segments]
    if manifest.live:
        record["live"] = {"deleted": manifest.live.deleted}
    return record


def _segment_record(segment: SegmentManifest) -> dict[str, object]:
    record: dict[str, object] = dict(segment.to_json())
    del record["files"]
    if segment.codes:
        record["codes"] = segment.codes.location
    return record


def _show_segments(index: Index) -> None:
    """Rows, deleted rows and error of each segment."""
    manifest = index.manifest
    bits = live_bits(index.path, manifest) if manifest.live else None

    def deleted(segment: SegmentManifest) -> int:
        if bits is None:
            return 0
        inside = unpacked(bits, segment.first_row, segment.first_row + segment.source_rows)
        return segment.source_rows - int(np.count_nonzero(inside))

    print_table(
        "",
        ("segment", "first row", "rows", "deleted", "mean squared error"),
        (
            (
                segment.build,
                f"{segment.first_row:,}",
                f"{segment.rows:,}",
                f"{deleted(segment):,}",
                "" if segment.distortion is None else f"{segment.distortion:.5g}",
            )
            for segment in manifest.segments
        ),
    )


def _show_levels(manifest: IndexManifest) -> None:
    """Nodes and leaves of each level, of all segments together."""
    nodes = np.sum([segment.level_nodes for segment in manifest.segments], axis=0)
    leaves = np.sum([segment.level_leaves for segment in manifest.segments], axis=0)
    print_table(
        "",
        ("level", "nodes", "leaves", "share of leaves"),
        (
            (str(level), f"{nodes[level]:,}", f"{leaves[level]:,}", f"{leaves[level] / leaves.sum():.1%}")
            for level in range(int(np.flatnonzero(nodes)[-1]) + 1)
        ),
    )


def _tuned_points(index: Index) -> dict[int, tuple[TunedPoint, ...]]:
    tuning = read_tuning(index.path, index.manifest.identity)
    return tuning.points if tuning else {}
