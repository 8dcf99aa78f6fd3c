"""Write the README's table and plot from `bench/results` alone: `python -m bench numbers`.

`make numbers DATA=DIR` runs the benchmarks first. Ratios compare figures of one run on one core count;
rows that speak against us are kept.
"""

from pathlib import Path
from typing import Any

import numpy as np

from bench import record

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- numbers: begin -->", "<!-- numbers: end -->"
PLOT = ROOT / "docs" / "images" / "recall_time.png"
RECALL = 0.94


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
            ]
        )
    return rows


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def search_part(line: dict[str, Any]) -> str:
    machine, build, parameters = line["machine"], line["results"]["build"], line["parameters"]
    header = ["index", "R@1", "R@10", "ms, batch", "ms, one by one", "our speed-up, batch"]
    place = f"one thread of {machine['processor']}, Faiss {machine['packages']['faiss-cpu']} in the same run"
    vectors = f"{parameters['rows']:,} SIFT of real photographs, {parameters['queries']:,} queries"
    peak = f"{build['peak'] / 2**20:.0f} MiB under `--memory {parameters['memory']}`"
    return f"""\
Search at R@100 = {RECALL} on {parameters["prefix"]} ({vectors}), {place}, commit {line["commit"]}:

{markdown(header, search_rows(line))}

It was built from the file in {build["seconds"]:.0f} s on {machine["cores"]} cores with a measured peak of
{peak}; a query process needs {build["bytes_per_vector"]:.1f} bytes per vector, ids and dictionaries
included. Command: `python -m bench recall_time --data DIR`.
"""


def draw(line: dict[str, Any]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name in dict.fromkeys(point["system"] for point in line["results"]["points"]):
        mine = sorted(
            (p["recall"][2], p["batch_ms"]) for p in line["results"]["points"] if p["system"] == name
        )
        axes.plot(*zip(*mine, strict=True), "o-", linewidth=2.5 if name == "aggtree" else 1.2, label=name)
    parameters = line["parameters"]
    axes.set(xlabel="R@100", ylabel="ms per query, one thread, batch", yscale="log", xlim=(0.7, 1.0))
    axes.set_title(f"{parameters['prefix']}: {parameters['rows']:,} SIFT descriptors of real photographs")
    axes.grid(alpha=0.3)
    axes.legend()
    PLOT.parent.mkdir(exist_ok=True)
    figure.savefig(PLOT, dpi=110)


def quantizer_part(lines: list[dict[str, Any]]) -> str:
    """E at equal bytes and encoding speed, as ratios to Faiss."""
    newest = {
        tuple(line["parameters"].get(key) for key in ("table", "prefix", "bytes", "method")): line["results"]
        for line in lines
    }
    rows = []
    for (table, prefix, width, method), rival in sorted(newest.items(), key=str):
        ours = newest.get((table, prefix, width, "da"))
        if table != "training" or method == "da" or ours is None:
            continue
        speed = ours["rows_per_second"] / rival["rows_per_second"]
        rows.append(
            [prefix, str(width), f"Faiss {method.upper()}", f"{ours['E'] / rival['E']:.3f}", f"{speed:.1f} x"]
        )
    if not rows:
        return ""
    header = ["vectors", "bytes", "against", "our distortion / theirs", "our encoding speed / theirs"]
    return (
        "Quantizers trained on the same vectors, one thread each (beam 10):\n\n"
        f"{markdown(header, rows)}\n\nCommand: `python -m bench quantizer --data DIR training`.\n"
    )


def main(arguments: list[str]) -> int:
    if arguments:
        raise SystemExit("usage: python -m bench numbers")
    searches = record.read("recall_time")
    parts = [quantizer_part(record.read("quantizer"))]
    if searches:
        draw(searches[-1])
        parts.insert(0, search_part(searches[-1]))
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    readme.write_text(f"{before}{BEGIN}\n" + "\n".join(part for part in parts if part) + f"{END}{after}")
    return 0
