"""Tables of the quantizer benchmark, from its JSON lines alone."""

from itertools import pairwise
from pathlib import Path
from typing import Any

Record = dict[str, Any]
Rows = list[tuple[str, ...]]


def latest(records: list[Record], *keys: str) -> dict[tuple[Any, ...], Record]:
    """The newest record of each combination of parameters."""
    return {tuple(line["parameters"].get(key) for key in keys): line for line in records}


def markdown(header: tuple[str, ...], rows: Rows) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def of_last_run(records: list[Record]) -> list[Record]:
    """The records of each set's newest run with our method, so that all compared figures are of one run."""
    ours = [line for line in records if line["parameters"]["method"] == "da"]
    runs = {key: line["parameters"].get("run") for key, line in latest(ours, "prefix", "bytes").items()}
    unknown = object()
    return [
        line
        for line in records
        for key in [(line["parameters"]["prefix"], line["parameters"]["bytes"])]
        if runs.get(key, unknown) == line["parameters"].get("run")
    ]


def training_rows(records: list[Record]) -> Rows:
    rows: Rows = []
    found = latest(of_last_run(records), "prefix", "bytes", "method")
    for (prefix, width, method), line in sorted(found.items()):
        results = line["results"]
        ours = found.get((prefix, width, "da"))
        ratios = [ratio(ours, results, key) for key in ("E", "learn_E")]
        numbers = (f"{results['E']:.0f}", *ratios, f"{results['seconds']:.1f}", reached(ours, results))
        speed = f"{results['rows_per_second']:.0f}"
        rows.append((prefix, str(width), method, str(line["parameters"]["base_rows"]), *numbers, speed))
    return rows


def ratio(ours: Record | None, rival: dict[str, Any], key: str) -> str:
    """Our error over the rival's."""
    known = ours is not None and key in rival and key in ours["results"]
    return f"{ours['results'][key] / rival[key]:.3f}" if known and ours is not None else ""


def reached(ours: Record | None, rival: dict[str, Any]) -> str:
    """Our training time until the rival's E, as a fraction of the rival's training time."""
    if ours is None or rival is ours["results"]:
        return ""
    for seconds, error, _ in ours["results"]["curve"]:
        if error <= rival["sample_E"]:
            return f"{seconds / rival['seconds']:.3f}"
    return "not reached"


def encoding_rows(records: list[Record]) -> Rows:
    rows: Rows = []
    for (prefix, width), line in latest(records, "prefix", "bytes").items():
        results = line["results"]
        ours, theirs = max(results["rows_per_second"]), max(results["faiss_rows_per_second"])
        errors = (f"{results['E']:.1f}", f"{results['faiss_E']:.1f}")
        rows.append((prefix, str(width), f"{ours:.0f}", f"{theirs:.0f}", f"{ours / theirs:.2f}", *errors))
    return rows


def online_rows(records: list[Record]) -> Rows:
    rows: Rows = []
    for (prefix, width), line in latest(records, "prefix", "bytes").items():
        errors = line["results"]["E"]
        rise = max((after / before - 1 for before, after in pairwise(errors)), default=0.0)
        for batch in (1, 3, 10, 20, 30, 47, len(errors)):
            if batch <= len(errors):
                ratio = f"{errors[batch - 1] / errors[0]:.3f}"
                rows.append(
                    (prefix, str(width), str(batch), f"{errors[batch - 1]:.0f}", ratio, f"{rise:.2%}")
                )
    return list(dict.fromkeys(rows))


def norm_rows(records: list[Record]) -> Rows:
    rows: Rows = []
    for (prefix, width), line in latest(records, "prefix", "bytes").items():
        for size, recall in line["results"]["recall"].items():
            numbers = (f"{value:.4f}" for value in recall)
            rows.append(
                (prefix, str(width), size, *numbers, f"{line['results']['bytes_per_vector'][size]:.2f}")
            )
    return rows


def wide_rows(records: list[Record]) -> Rows:
    rows: Rows = []
    for (prefix, words), line in latest(records, "prefix", "words").items():
        first, whole, seconds = (line["results"][key] for key in ("first_E", "E", "seconds"))
        losses = [f"{part['two_stage'] / part['exact'] - 1:.3%}" for part in (first, whole)]
        rows.append((prefix, str(words), *losses, f"{seconds['exact'] / seconds['two_stage']:.1f}"))
    return rows


TABLES = {
    "training": (
        training_rows,
        (
            "set",
            "bytes",
            "method",
            "rows",
            "E",
            "ours / E",
            "ours / E, training rows",
            "training s",
            "our time to its E / its time",
            "encoded/s",
        ),
    ),
    "encoding": (
        encoding_rows,
        ("set", "bytes", "ours/s", "Faiss RQ LUT/s", "ratio", "E", "Faiss E"),
    ),
    "online": (online_rows, ("set", "bytes", "batch", "held-out E", "against the first", "largest rise")),
    "norms": (norm_rows, ("set", "bytes", "bytes of a norm", "R@1", "R@10", "R@100", "tree bytes / vector")),
    "wide": (wide_rows, ("set", "words", "loss of E, first word", "loss of E, whole code", "speed-up")),
}


def write(records: list[Record], folder: Path) -> None:
    """Write quantizer.md into `folder`."""
    by_table = {name: [r for r in records if r["parameters"]["table"] == name] for name in TABLES}
    parts = []
    for name, (make_rows, header) in TABLES.items():
        if by_table[name]:
            parts.append(f"## {name}\n\n{markdown(header, make_rows(by_table[name]))}")
    (folder / "quantizer.md").write_text("\n".join(parts), encoding="utf-8")
