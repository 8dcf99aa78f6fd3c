"""`aggtree report`: parameters, tree and codes of an index, and the cost of its build, as one page."""

from collections.abc import Sequence
from pathlib import Path

from aggtree.jobs.cli.tables import format_words
from aggtree.jobs.report.build import build_section, tuning_section
from aggtree.jobs.report.charts import column_chart, heat_map, histogram_rows, row_chart
from aggtree.jobs.report.figures import CodeFigures, IndexFigures, LevelFigures, collect
from aggtree.jobs.report.html import Figure, Section, Table, html_page
from aggtree.jobs.running.memory import format_size
from aggtree.jobs.running.progress import format_time
from aggtree.storage.atomic import write_bytes
from aggtree.storage.index.format import CODES
from aggtree.storage.index.opened.vectors import Vectors
from aggtree.storage.index.reader import Index, open_index
from aggtree.storage.version import __version__
from aggtree.storage.work.job_record import python_names


def write_page(path: Path, out: Path, vectors: Vectors | None = None) -> None:
    """Write the page of the index at `path` to the file `out`."""
    with open_index(path, vectors) as index:
        page = make_page(index, collect(index))
    write_bytes(out, page.encode())


def make_page(index: Index, figures: IndexFigures) -> str:
    """The whole page."""
    manifest = index.manifest
    about = (
        f"{index.rows:,} vectors of dimension {index.dimension}, metric {manifest.metric}, "
        f"build {manifest.first_segment.build}."
    )
    sections = [
        parameter_section(index),
        size_section(index, figures.levels),
        tree_section(figures),
        code_section(index, figures),
        build_section(figures),
        tuning_section(figures),
    ]
    foot = (
        f"Written by aggtree {__version__}. Counts and bytes are exact; samples come from "
        "places spread over the whole index. This page loads nothing and runs no scripts."
    )
    return html_page(f"{index.path.name or index.path}", about, _cards(index, figures), sections, foot)


def _cards(index: Index, figures: IndexFigures) -> list[tuple[str, str]]:
    parts = index.bytes_by_part()
    needed = sum(size for part, size in parts.items() if part != CODES)
    leaves = sum(level.leaves for level in figures.levels)
    depth = sum(level.level * level.leaves for level in figures.levels) / max(1, leaves)
    cards = [
        ("vectors", f"{index.rows:,}"),
        ("dimension", f"{index.dimension:,}"),
        ("dictionaries", format_words(index.layout.words)),
        ("for queries", format_size(needed)),
        ("bytes per vector", f"{needed / index.rows:.2f}"),
        ("mean depth of a leaf", f"{depth:.2f}"),
    ]
    if figures.report and figures.report.stages:
        stages = figures.report.stages
        cards.append(("built in", format_time(sum(stage.seconds for stage in stages))))
        cards.append(("peak memory", format_size(max(stage.peak for stage in stages))))
    return cards


def parameter_section(index: Index) -> Section:
    first = index.manifest.first_segment
    rows = [
        (name, format_words(value) if name == "words" else str(value))
        for name, value in sorted(python_names(first.parameters).items())
    ]
    source = [(name, str(value)) for name, value in sorted(first.source.items())]
    source.append(("vectors", first.vectors or "an array; location unknown"))
    if first.codes:
        source.append(("codes", first.codes.location))
    note = "What decides the bytes of this index: the same values on the same vectors give the same files."
    figures = [
        Figure(title="Build", note="As recorded in the manifest.", table=_pairs(rows)),
        Figure(title="Source", note="How the vectors are recognised.", table=_pairs(source)),
    ]
    return Section(title="Parameters", note=note, figures=figures)


def _pairs(rows: Sequence[tuple[str, str]]) -> Table:
    return Table(columns=("name", "value"), rows=rows, words=True)


def size_section(index: Index, levels: Sequence[LevelFigures]) -> Section:
    parts = {name: size for name, size in index.bytes_by_part().items() if size}
    per_vector = {name: size / index.rows for name, size in parts.items()}
    by_part = Figure(
        title="Bytes per vector, by part",
        note="Queries map everything but codes.zarr, which is kept to build the tree again.",
        svg=row_chart(
            "Bytes per vector, by part",
            [(name, size, f"{size:.2f} · {format_size(parts[name])}") for name, size in per_vector.items()],
        ),
        table=Table(
            columns=("part", "bytes", "per vector"),
            rows=[(name, f"{size:,}", f"{per_vector[name]:.3f}") for name, size in parts.items()],
        ),
    )
    figures = [by_part, *([_level_sizes(index.rows, levels)] if levels else [])]
    note = f"{format_size(sum(parts.values()))} on disk, {sum(per_vector.values()):.2f} bytes per vector."
    return Section(title="Size", note=note, figures=figures)


def _level_sizes(rows: int, levels: Sequence[LevelFigures]) -> Figure:
    return Figure(
        title="Bytes per vector, by level",
        note="Nodes carry a label, a norm and two offsets; leaves a norm, the rest of the code and an id.",
        svg=column_chart(
            "Bytes per vector, by level of the tree",
            "level",
            "bytes per vector",
            [(str(level.level), (level.node_bytes / rows, level.leaf_bytes / rows)) for level in levels],
        ),
        keys=("nodes", "leaves"),
        table=Table(
            columns=("level", "nodes", "bytes of nodes", "leaves", "bytes of leaves"),
            rows=[
                (str(x.level), *(f"{n:,}" for n in (x.nodes, x.node_bytes, x.leaves, x.leaf_bytes)))
                for x in levels
            ],
        ),
    )


def tree_section(figures: IndexFigures) -> Section:
    levels = figures.levels
    if not levels:
        return Section(title="Tree", note=f"Not shown: {figures.missing.get('tree', 'there is none')}.")
    total = max(1, sum(level.leaves for level in levels))
    depth = Figure(
        title="Depth of the leaves",
        note="The level whose node a vector hangs from: the words its path gives for free.",
        svg=column_chart(
            "Share of the vectors by depth",
            "level",
            "% of the vectors",
            [(str(level.level), (100 * level.leaves / total,)) for level in levels],
        ),
        table=Table(
            columns=("level", "leaves", "share"),
            rows=[(str(x.level), f"{x.leaves:,}", f"{x.leaves / total:.2%}") for x in levels],
        ),
    )
    note = f"Exact up to {64 * 4096:,} nodes of a level, sampled beyond."
    shown = [depth, *(_fan_out(levels, kind, note) for kind in ("children", "leaves"))]
    return Section(
        title="Tree",
        note="How the radix tree over the codes branches; a query scans ranges of children and of leaves.",
        figures=shown,
    )


def _fan_out(levels: Sequence[LevelFigures], kind: str, note: str) -> Figure:
    """Histograms of how many children, or leaves, the nodes of each level have."""
    counts = [level.children if kind == "children" else level.leaf_counts for level in levels]
    bins = [_bin_name(number) for number in range(max(map(len, counts), default=1))]
    rows = [(f"level {level.level}", line) for level, line in zip(levels, counts, strict=True)]
    table = [
        (name, *(f"{count:,}" for count in (*line, *(0,) * (len(bins) - len(line))))) for name, line in rows
    ]
    return Figure(
        title=f"{kind.capitalize()} of a node",
        note=f"Share of the nodes of each level, by how many {kind} they have. {note}",
        svg=histogram_rows(f"{kind} of a node, by level", rows, bins, f"{kind} of a node"),
        table=Table(columns=("level", *bins), rows=table),
    )


def _bin_name(number: int) -> str:
    if number <= 1:
        return str(number)
    low = 2 ** (number - 1)
    return f"{low}+" if low < 1024 else f"{low // 1024}k+"


def code_section(index: Index, figures: IndexFigures) -> Section:
    codes = figures.codes
    if codes is None:
        reason = figures.missing.get("codes", "not available")
        return Section(title="Codes", note=f"The codes could not be read: {reason}")
    shown = [_usage_figure(codes), _mutual_figure(codes)]
    if codes.errors:
        shown.append(_error_figure(codes))
    place = "the first segment" if index.manifest.appended_segments else "the index"
    note = f"From {codes.rows:,} codes spread over {place}."
    if not codes.errors:
        note += f" Errors need the vectors, which are not available: {figures.missing.get('vectors', '')}"
    return Section(title="Codes", note=note, figures=shown)


def _usage_figure(codes: CodeFigures) -> Figure:
    from math import log2

    rows = [
        (
            f"dictionary {number}: {part.words:,} words",
            part.bits / log2(part.words) if part.words > 1 else 0.0,
            f"{part.bits:.2f} of {log2(part.words):.4g} bits",
        )
        for number, part in enumerate(codes.dictionaries, start=1)
    ]
    return Figure(
        title="Use of the words",
        note="Self-information H(I_m) of each dictionary; a full bar: all words equally often.",
        svg=row_chart("Self-information of each dictionary", rows, most=1.0, limits=True),
        table=Table(
            columns=("dictionary", "words", "bits", "words used", "most used"),
            rows=[
                (
                    str(number),
                    f"{part.words:,}",
                    f"{part.bits:.3f}",
                    f"{part.used:,}",
                    f"{part.most_used:.2%}",
                )
                for number, part in enumerate(codes.dictionaries, start=1)
            ],
        ),
    )


def _mutual_figure(codes: CodeFigures) -> Figure:
    names = [str(number) for number in range(1, len(codes.dictionaries) + 1)]
    matrix = codes.mutual.tolist()
    return Figure(
        title="Mutual information",
        note="Mutual information in bits: less leaves more capacity. The bias of the sample is subtracted.",
        svg=heat_map("Mutual information of the dictionaries", matrix, names, "bits"),
        table=Table(
            columns=("", *names),
            rows=[
                (name, *("" if i == j else f"{value:.3f}" for j, value in enumerate(line)))
                for i, (name, line) in enumerate(zip(names, matrix, strict=True))
            ],
        ),
    )


def _error_figure(codes: CodeFigures) -> Figure:
    whole = codes.errors[0]
    return Figure(
        title="Distortion by dictionary",
        note=f"Mean squared error of {codes.vectors:,} vectors, rebuilt from the first words of their codes.",
        svg=column_chart(
            "Mean squared error after so many words",
            "words of the code",
            "mean squared error",
            [(str(level), (error,)) for level, error in enumerate(codes.errors) if level],
        ),
        table=Table(
            columns=("words", "error", "of the mean squared norm"),
            rows=[
                (str(level), f"{error:,.4g}", f"{error / whole:.2%}" if whole else "")
                for level, error in enumerate(codes.errors)
            ],
        ),
    )
