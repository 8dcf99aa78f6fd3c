"""Tables of docs/explanation/embeddings.md, from `bench/results` alone."""

from typing import Any

import numpy as np

from bench import record
from bench.data.data_sets import title_of
from bench.report.generated import MISSING, markdown
from bench.search.targets import TARGETS

Line = dict[str, Any]


def newest() -> dict[tuple[str, str], Line]:
    """The newest line of each set and instruction set."""
    return {(line["parameters"]["set"], instructions(line)): line for line in record.read("embeddings")}


def instructions(line: Line) -> str:
    """The instruction set that both sides were measured with."""
    forced = line["parameters"]["forced"]["FAISS_OPT_LEVEL"]
    return forced or ("AVX-512" if line["machine"]["byte_permutations"] else "AVX2")


def time_at(points: list[dict[str, Any]], kind: str, target: float) -> float:
    """Milliseconds at R@10 = target, on the line through the measured points (logarithm of time)."""
    mine = sorted((point["recall"], point[kind]) for point in points)
    if not mine or target > mine[-1][0]:
        return float("nan")
    recalls, times = zip(*mine, strict=True)
    return float(np.exp(np.interp(target, recalls, np.log(times))))


def table(line: Line) -> str:
    """Time of each system at each recall, with its bytes, and what codes alone give."""
    results, rows = line["results"], []
    for name, system in results["systems"].items():
        size, alone = system.get("bytes_per_vector"), system.get("codes_alone")
        times = []
        for target in TARGETS:
            both = [time_at(system["points"], kind, target) for kind in ("batch_ms", "single_ms")]
            times.append("-" if np.isnan(both[0]) else " / ".join(f"{value:.3f}" for value in both))
        rows.append(
            [
                name,
                "-" if size is None else f"{size:.1f}",
                *times,
                "-" if alone is None else f"{alone:.3f}",
            ]
        )
    header = ["index", "bytes per vector", *(f"ms at R@10 {target:.2f}" for target in TARGETS), "codes alone"]
    default = results["systems"]["aggtree"]["default"]
    return (
        f"{title_of(line['parameters']['set'])}, {results['metric']}, {instructions(line)}, one thread of "
        f"{line['machine']['processor']}, commit {line['commit']}; a default search finds {default:.3f} of "
        f"the ten nearest:\n\n{markdown(header, rows)}"
    )


def parts() -> dict[str, str]:
    """The generated part of the page."""
    tables = [table(line) for _, line in sorted(newest().items())]
    return {"embeddings": "\n".join(tables) if tables else MISSING}
