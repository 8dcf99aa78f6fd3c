"""Write every generated figure of README and docs from `bench/results` alone.

    python -m bench numbers [--check]

`make numbers DATA=DIR` runs the benchmarks of the README first. Ratios compare figures of one run on one core
count; unfavourable rows are kept. --check writes nothing and lists the stale files; a test does the same.
"""

import sys
from typing import Any

import numpy as np

from aggtree.jobs.report.charts import LineChart, Series
from bench import record
from bench.report import (
    algorithm_report,
    build_time_report,
    compilation_report,
    embeddings_report,
    paper_figures,
    paper_report,
    scale_report,
)
from bench.report.generated import IMAGES, MISSING, ROOT, Output, image_file, markdown

RECALL = 0.94
LEAST = 0.7
"""Recall below which a plot shows nothing."""


def time_at(points: list[dict[str, Any]], name: str, kind: str, target: float) -> float:
    """Milliseconds at R@100 = target, on the line through the measured points (logarithm of time)."""
    mine = sorted((p["recall"][2], p[kind]) for p in points if p["system"] == name)
    recalls, times = zip(*mine, strict=True)
    if target > recalls[-1]:
        return float("nan")
    return float(np.exp(np.interp(target, recalls, np.log(times))))


def recall_at(points: list[dict[str, Any]], name: str, target: float) -> list[float]:
    """R@1 and R@10 where R@100 reaches the target."""
    mine = sorted(tuple(p["recall"]) for p in points if p["system"] == name)
    mine.sort(key=lambda recall: recall[2])
    return [float(np.interp(target, [r[2] for r in mine], [r[i] for r in mine])) for i in (0, 1)]


def search_rows(line: dict[str, Any]) -> list[list[str]]:
    points, rows = line["results"]["points"], []
    sizes = line["results"].get("bytes_per_vector", {})
    ours = {kind: time_at(points, "aggtree", kind, RECALL) for kind in ("batch_ms", "single_ms")}
    for name in dict.fromkeys(point["system"] for point in points):
        times = {kind: time_at(points, name, kind, RECALL) for kind in ours}
        first, ten = recall_at(points, name, RECALL)
        faster = "" if name == "aggtree" else f"{times['batch_ms'] / ours['batch_ms']:.2f} x"
        rows.append(
            [
                name,
                f"{first:.3f}",
                f"{ten:.3f}",
                f"{times['batch_ms']:.3f}",
                f"{times['single_ms']:.3f}",
                faster,
                *([f"{sizes[name]:.1f}"] if sizes else []),
            ]
        )
    return rows


def search_part(line: dict[str, Any]) -> str:
    machine, build, parameters = line["machine"], line["results"]["build"], line["parameters"]
    sizes = line["results"].get("bytes_per_vector", {})
    header = [
        "index",
        "R@1",
        "R@10",
        "ms per query, batch",
        "ms per query, single",
        "speed-up of aggtree, batch",
    ]
    header += ["bytes per vector"] if sizes else []
    place = f"one thread of {machine['processor']}, Faiss {machine['packages']['faiss-cpu']} in the same run"
    vectors = f"{parameters['rows']:,} SIFT of real photographs, {parameters['queries']:,} queries"
    peak = f"{build['peak'] / 2**20:.0f} MiB under `--memory {parameters['memory']}`"
    return f"""\
Search at R@100 = {RECALL} on {parameters["prefix"]} ({vectors}), {place}, commit {line["commit"]}:

{markdown(header, search_rows(line)).strip()}

The build took {build["seconds"]:.0f} s on {machine["cores"]} cores, with a measured peak of {peak}.
Queries need {build["bytes_per_vector"]:.1f} bytes per vector, including ids and dictionaries. Command:
`python -m bench recall_time --data DIR`.
"""


def plot(line: dict[str, Any]) -> LineChart:
    """R@100 against time, a curve for each system."""
    points, parameters = line["results"]["points"], line["parameters"]
    series = []
    for name in dict.fromkeys(point["system"] for point in points):
        mine = sorted((p["batch_ms"], p["recall"][2]) for p in points if p["system"] == name)
        series.append(Series(name=name, points=[point for point in mine if point[1] >= LEAST]))
    return LineChart(
        title=f"R@100 against time per query, {parameters['prefix']}, {parameters['rows']:,} vectors",
        x="ms per query, one thread, batch",
        y="R@100",
        series=[line for line in series if line.points],
        x_logarithmic=True,
        keys=True,
    )


def quantizer_part(lines: list[dict[str, Any]], prefix: str) -> str:
    """E at equal bytes and encoding speed, as ratios to Faiss, each of the newest run that has both."""
    ours, rivals = {}, {}
    for line in lines:
        of = line["parameters"]
        if of["table"] != "training" or of["prefix"] != prefix:
            continue
        run = of["bytes"], of.get("run")
        if of["method"] == "da":
            ours[run] = line["results"]
        elif run in ours:
            rivals[of["bytes"], of["method"]] = line["results"], ours[run]
    rows = []
    for (width, method), (rival, own) in sorted(rivals.items(), key=lambda item: item[0]):
        speed = own["rows_per_second"] / rival["rows_per_second"]
        error = own["E"] / rival["E"]
        rows.append([str(width), f"Faiss {method.upper()}", f"{error:.3f}", f"{speed:.1f}"])
    header = ["bytes", "compared with", "distortion, ours / theirs", "encoding speed, ours / theirs"]
    return (
        f"Quantizers trained on the same vectors of {prefix}, one thread each, beam 10:\n\n"
        f"{markdown(header, rows)}\nCommand: `python -m bench quantizer --data DIR training`. More: "
        "[the paper's results and ours](docs/explanation/paper.md).\n"
    )


def make() -> Output:
    """Generate every file from the results."""
    output = Output()
    searches = record.read("recall_time")
    found = [search_part(searches[-1]) if searches else MISSING]
    found.append(quantizer_part(record.read("quantizer"), "photosift500k"))
    output.page(ROOT / "README.md", {"numbers": "\n".join(found)})
    if searches:
        output.files[IMAGES / "recall_time.svg"] = image_file(plot(searches[-1]).svg())
    explanation = ROOT / "docs" / "explanation"
    output.page(explanation / "paper.md", {**paper_report.parts(), **paper_figures.parts(output)})
    algorithm = {**algorithm_report.parts(), "build-time": build_time_report.part()}
    output.page(explanation / "algorithm.md", algorithm)
    output.page(explanation / "scale.md", scale_report.parts(output))
    output.page(explanation / "embeddings.md", embeddings_report.parts())
    output.page(explanation / "memory.md", {"projected": scale_report.memory_table()})
    output.page(ROOT / "docs" / "how-to" / "deploy.md", {"compilation": compilation_report.part()})
    return output


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        raise SystemExit("usage: python -m bench numbers [--check]")
    output = make()
    if not arguments:
        output.write()
        return 0
    stale = output.stale()
    sys.stderr.writelines(
        f"{path}: does not match bench/results; run `python -m bench numbers`\n" for path in stale
    )
    return 1 if stale else 0
