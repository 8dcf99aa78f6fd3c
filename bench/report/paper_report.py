"""The paper's tables beside ours, from `bench/results` alone; figures are in `paper_figures`.

A data set of the paper (`sift`, `gist`, `bigann`) is shown if it was measured, otherwise our data of the same
kind, under its own name. Missing measurements are marked.
"""

from collections.abc import Sequence
from typing import Any

from bench import record
from bench.data.data_sets import title_of
from bench.report.generated import MISSING, markdown
from bench.report.quantizer_report import latest

Line = dict[str, Any]

FAMILIES = {"SIFT1M": ("sift", "photosift500k"), "GIST1M": ("gist", "photogist10k")}
METHODS = {
    "PQ": "pq",
    "OPQ": "opq",
    "RQ": "rq",
    "LSQ": "lsq",
    "AQ": None,
    "TQ": None,
    "offline DA": "da",
    "online DA": "online",
}
PAPER_ERRORS: dict[str, dict[str, dict[int, float]]] = {
    "SIFT1M": {
        "AQ": {8: 19196.26, 16: 9799.86},
        "OPQ": {8: 22239.78, 16: 10468.39},
        "PQ": {8: 23540.75, 16: 10534.82},
        "TQ": {8: 20000, 16: 9000},
        "offline DA": {8: 18416.55, 16: 9444.11},
        "online DA": {8: 16573.20, 16: 5901.43},
    },
    "GIST1M": {
        "AQ": {8: 0.6785, 16: 0.5277},
        "OPQ": {8: 0.6973, 16: 0.5361},
        "PQ": {8: 0.7056, 16: 0.6976},
        "offline DA": {8: 0.6456, 16: 0.4847},
        "online DA": {8: 0.6201, 16: 0.4583},
    },
}
PAPER_SEARCH = {
    "ivfadc": ("IVFADC", "0.107", "0.729", "65"),
    "multi_d_adc": ("Multi-D-ADC", "0.149", "0.717", "3.4"),
    "multi_adc": ("Multi-ADC", "0.064", "0.582", "3.2"),
    "lopq": ("LOPQ", "0.182", "0.890", "69"),
    "a_tree": ("A-Tree", "0.137", "0.7451", "0.63"),
    "exhaustive": ("exhaustive ADC over DA codes", "", "0.834", "7,200"),
    "pq": ("exhaustive ADC over PQ codes", "", "about 0.55", ""),
    "default": ("A-Tree as `aggtree build` makes it", "", "", ""),
}
OURS = {
    "ivfadc": "Faiss IVF{cells},PQ8",
    "multi_d_adc": "Faiss IMI2x{bits},PQ8",
    "a_tree": "256x8, T = 1, L_s = 1.25",
    "exhaustive": "all leaves of that tree",
    "pq": "Faiss PQ8",
    "default": "a wide first dictionary, buckets",
}
TARGET = 0.9
NOTHING = "-"
EMPTY = f"`{NOTHING}`: not in the paper, or not measured."


def measured_errors(prefix: str, width: int) -> dict[str, float]:
    """The newest E of each method at a code size; E is the same in every run."""
    lines = [line for line in record.read("quantizer") if line["parameters"]["table"] == "training"]
    mine = [
        line
        for line in lines
        if (line["parameters"]["prefix"], line["parameters"]["bytes"]) == (prefix, width)
    ]
    found = {method: line["results"]["E"] for (method,), line in latest(mine, "method").items()}
    online = [line for line in record.read("quantizer") if line["parameters"]["table"] == "online"]
    stream = latest(online, "prefix", "bytes").get((prefix, width))
    return found | ({"online": stream["results"]["E"][-1]} if stream else {})


def family_set(family: str) -> str:
    """The data set that stands for one of the paper's: itself if it was measured."""
    known = {line["parameters"]["prefix"] for line in record.read("quantizer")}
    names = FAMILIES[family]
    return next((name for name in names if name in known), names[-1])


def error_table(family: str) -> str:
    """Errors of all methods, the paper's and ours, each also as a share of PQ's."""
    prefix = family_set(family)
    ours = {width: measured_errors(prefix, width) for width in (8, 16)}
    theirs = PAPER_ERRORS[family]
    rows = []
    for method, name in METHODS.items():
        row = [method]
        for width in (8, 16):
            row.append(_beside(theirs.get(method, {}).get(width), theirs["PQ"][width]))
            row.append(_beside(ours[width].get(name) if name else None, ours[width].get("pq")))
        rows.append(row)
    header = ["method"]
    for width in (8, 16):
        header += [f"{width} B, paper", f"{width} B, ours"]
    words = f"The paper on {family}; ours on {title_of(prefix)}. In brackets: relative to the error of PQ. "
    return f"{words}{EMPTY}\n\n{markdown(header, rows)}"


def _beside(error: float | None, product: float | None) -> str:
    if error is None:
        return NOTHING
    text = f"{error:,.0f}" if error >= 100 else f"{error:.4f}"
    return f"{text} ({error / product:.3f})" if product else text


def chosen_point(points: Sequence[Line], system: str) -> Line | None:
    """The fastest point of a system that reaches the target, or the one with the highest recall."""
    mine = [point for point in points if point["system"] == system]
    enough = [point for point in mine if point["recall"][2] >= TARGET]
    if enough:
        return min(enough, key=lambda point: point["single_p50_ms"])
    return max(mine, key=lambda point: point["recall"][2], default=None)


def search_table() -> str:
    """The table of non-exhaustive search, the paper's and ours."""
    lines = record.read("non_exhaustive")
    if not lines:
        return f"{MISSING}\n"
    line = latest(lines, "prefix")[(lines[-1]["parameters"]["prefix"],)]
    rows = []
    for system, (name, first, hundred, time) in PAPER_SEARCH.items():
        point = chosen_point(line["results"]["points"], system)
        mine = [NOTHING] * 5
        if point is not None:
            what = OURS[system].format(**line["parameters"])
            recalls = [f"{point['recall'][rank]:.3f}" for rank in (0, 2)]
            mine = [what, *recalls, f"{point['single_p50_ms']:.3f}", f"{point['bytes_per_vector']:.1f}"]
        rows.append([name, first or NOTHING, hundred or NOTHING, time or NOTHING, *mine])
    names = ["R@1", "R@100", "ms per query"]
    header = ["paper", *names, "ours", *names, "bytes per vector"]
    words = (
        f"The paper on SIFT1B (left); ours on {title_of(line['parameters']['prefix'])}, codes of 8 bytes, "
        f"single queries on one thread, each at the least effort that reaches R@100 = {TARGET}.\n\n"
    )
    return words + markdown(header, rows)


def information_table() -> str:
    """Bits of all dictionaries, and what two of them share among all codes and among local ones."""
    lines = latest(record.read("information"), "prefix", "method")
    rows = []
    for (prefix, method), line in lines.items():
        results = line["results"]
        shared = (f"{between(results[kind]):.3f}" for kind in ("mutual", "local_mutual"))
        local = " ".join(f"{bits:.2f}" for bits in results["local_conditional"])
        total = f"{sum(results['self_information']):.2f}"
        rows.append([title_of(prefix), method.upper(), total, *shared, local])
    header = [
        "set",
        "method",
        "Σ H(I_m), bits",
        "mean mutual information, all codes",
        "mean mutual information, local codes",
        "local H(I_m given those before), bits",
    ]
    return markdown(header, rows)


def between(matrix: Sequence[Sequence[float]]) -> float:
    """Mean of a matrix beside its diagonal."""
    values = [value for i, row in enumerate(matrix) for j, value in enumerate(row) if i != j]
    return sum(values) / max(1, len(values))


def parts() -> dict[str, str]:
    """The generated tables of docs/explanation/paper.md."""
    return {
        "errors-sift": error_table("SIFT1M"),
        "errors-gist": error_table("GIST1M"),
        "search": search_table(),
        "information": information_table(),
    }
