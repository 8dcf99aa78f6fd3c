"""The paper's figures from `bench/results` alone, as SVG files and as text for a page."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from aggtree.jobs.report.charts import LineChart, Series, heat_map, short
from bench import record
from bench.data.data_sets import title_of
from bench.report.generated import MISSING, Output
from bench.report.quantizer_report import latest, of_last_run

Line = dict[str, Any]


def parts(output: Output) -> dict[str, str]:
    """The generated figures of docs/explanation/paper.md."""
    return {
        "figure-information": information(output),
        "figure-online": _all(output, "online", online_chart, _quantizer("online")),
        "figure-training": _all(output, "training", training_chart, _training_sets()),
        "figure-beams": _all(output, "beams", beam_chart, _quantizer("encoding")),
        "figure-retrieved": _all(output, "retrieved", retrieved_chart, _searches()),
        "figure-limits": limits(output),
    }


def _quantizer(table: str) -> dict[str, Line]:
    """The newest line of each set and width of a table."""
    lines = [line for line in record.read("quantizer") if line["parameters"]["table"] == table]
    return {f"{prefix}_{width}": line for (prefix, width), line in latest(lines, "prefix", "bytes").items()}


def _searches() -> dict[str, Line]:
    return {prefix: line for (prefix,), line in latest(record.read("paper_search"), "prefix").items()}


def _all(output: Output, kind: str, draw: Any, found: dict[str, Any]) -> str:
    """A picture for each set; missing ones are named."""
    if not found:
        return MISSING
    pictures = []
    for name, what in sorted(found.items()):
        chart = draw(what)
        pictures.append(f"![{chart.title}]({output.image(f'paper_{kind}_{name}', chart.svg())})")
    return "\n".join(pictures)


def information(output: Output) -> str:
    """A square of cells for each method, local codes above all codes."""
    found = latest(record.read("information"), "prefix", "method")
    if not found:
        return MISSING
    text = []
    for prefix in dict.fromkeys(name for name, _ in found):
        methods = [method for name, method in found if name == prefix]
        text += [title_of(prefix), "", "| | " + " | ".join(method.upper() for method in methods) + " |"]
        text.append("|" + " --- |" * (1 + len(methods)))
        for kind, name in (("local_mutual", "local codes"), ("mutual", "all codes")):
            cells = []
            for method in methods:
                matrix = found[prefix, method]["results"][kind]
                labels = [str(number) for number in range(1, len(matrix) + 1)]
                title = f"{method.upper()}, {name}: mutual information"
                picture = output.image(
                    f"paper_information_{prefix}_{method}_{kind}", heat_map(title, matrix, labels, "bits")
                )
                cells.append(f"![{title}]({picture})")
            text.append(f"| {name} | " + " | ".join(cells) + " |")
        text.append("")
    return "\n".join(text)


def _title(line: Line, words: str) -> str:
    parameters = line["parameters"]
    return f"{words}, {title_of(parameters['prefix'])}, {parameters.get('bytes', 8)} bytes"


def online_chart(line: Line) -> LineChart:
    points = [(float(number), error) for number, error in enumerate(line["results"]["E"], start=1)]
    batch = line["parameters"]["batch_rows"]
    return LineChart(
        title=_title(line, "Online learning"),
        x=f"batches of {batch:,}",
        y="E of rows held out",
        series=[Series(name="online DA", points=points)],
    )


def _training_sets() -> dict[str, tuple[list[Line], Line | None]]:
    lines = [line for line in record.read("quantizer") if line["parameters"]["table"] == "training"]
    streams = _quantizer("online")
    found: dict[str, tuple[list[Line], Line | None]] = {}
    for (prefix, width, _), line in latest(of_last_run(lines), "prefix", "bytes", "method").items():
        name = f"{prefix}_{width}"
        found.setdefault(name, ([], streams.get(name)))[0].append(line)
    return found


def training_chart(found: tuple[list[Line], Line | None]) -> LineChart:
    lines, stream = found
    series = []
    for line in sorted(lines, key=lambda line: line["parameters"]["method"] != "da"):
        method, results = line["parameters"]["method"], line["results"]
        curve = results.get("curve") or [(results["seconds"], results["sample_E"], 0)]
        points = [(max(seconds, 0.1), error) for seconds, error, _ in curve]
        name = "offline DA" if method == "da" else f"Faiss {method.upper()}"
        series.append(Series(name=name, points=points, dots=method != "da"))
    if stream:
        seconds = accumulate(stream["results"]["seconds"])
        points = list(zip(seconds, stream["results"]["E"], strict=True))
        series.append(Series(name="online DA", points=points, dots=False))
    return LineChart(
        title=_title(lines[0], "Training time against error"),
        x="processor seconds of one thread",
        y="E",
        series=series,
        x_logarithmic=True,
        keys=True,
    )


def beam_chart(line: Line) -> LineChart:
    beams = line["results"]["beams"]
    points = [(float(width), error) for width, (error, _) in beams.items()]
    return LineChart(
        title=_title(line, "Multi-path encoding"),
        x="beam width L",
        y="E",
        series=[Series(name="E", points=points)],
        x_logarithmic=True,
    )


def retrieved_chart(line: Line) -> LineChart:
    every = line["results"]["exhaustive"]
    points = list(zip(map(float, every["retrieved"]), every["recall"], strict=True))
    return LineChart(
        title=f"Recall against items retrieved, {title_of(line['parameters']['prefix'])}",
        x="items retrieved",
        y="recall",
        series=[Series(name="DA, 8 bytes, exhaustive", points=points)],
        x_logarithmic=True,
    )


def limits(output: Output) -> str:
    """Recall, nodes visited and time against L_0, a line for each L_s."""
    found = _searches()
    if not found:
        return MISSING
    pictures = []
    for prefix, line in sorted(found.items()):
        for kind, chart in limit_charts(line).items():
            pictures.append(f"![{chart.title}]({output.image(f'paper_{kind}_{prefix}', chart.svg())})")
    return "\n".join(pictures)


def limit_charts(line: Line) -> dict[str, LineChart]:
    points = line["results"]["points"]
    prefix = title_of(line["parameters"]["prefix"])

    def lines(x: str, y: Any) -> Sequence[Series]:
        return [
            Series(
                name=f"L_s = {growth:g}",
                points=[(float(point[x]), float(y(point))) for point in points if point["L_s"] == growth],
            )
            for growth in sorted({point["L_s"] for point in points})
        ]

    def recall(point: Line) -> float:
        return float(point["recall"][2])

    def visited(point: Line) -> float:
        return float(point["nodes"] + point["leaves"])

    common: dict[str, Any] = {"x_logarithmic": True, "keys": True}
    quality, nodes, speed = lines("L_0", recall), lines("L_0", visited), lines("batch_ms", recall)
    return {
        "quality": LineChart(title=f"Search quality, {prefix}", x="L_0", y="R@100", series=quality, **common),
        "visited": LineChart(
            title=f"Nodes and leaves visited per query, {prefix}",
            x="L_0",
            y="visited",
            series=nodes,
            y_logarithmic=True,
            y_text=short,
            **common,
        ),
        "performance": LineChart(
            title=f"Performance curve, {prefix}", x="ms per query", y="R@100", series=speed, **common
        ),
    }
