"""The table of build times beside Faiss, from `bench/results` alone."""

from bench import record
from bench.data.data_sets import title_of
from bench.report.generated import MISSING, markdown


def part() -> str:
    """The newest line of each set and quality: the best turn of each system, and the ratio to Faiss."""
    newest = {
        (line["parameters"]["set"], line["parameters"]["quality"]): line for line in record.read("build_time")
    }
    if not newest:
        return f"{MISSING}\n"
    rows = []
    for (name, quality), line in newest.items():
        best = {
            system: {kind: min(turn[kind] for turn in turns) for kind in ("wall", "cpu")}
            for system, turns in line["results"]["seconds"].items()
        }
        peer = line["parameters"]["peer"]
        ratios = [f"{best['aggtree'][kind] / best['faiss'][kind]:.1f}" for kind in ("wall", "cpu")]
        ours = f"{best['aggtree']['wall']:.1f} / {best['aggtree']['cpu']:.1f}"
        theirs = f"{best['faiss']['wall']:.1f} / {best['faiss']['cpu']:.1f}"
        rows.append([title_of(name), quality, ours, f"{peer}: {theirs}", " / ".join(ratios)])
    header = ["set", "quality", "aggtree, s wall / processor", "Faiss", "ratio, wall / processor"]
    return f"{markdown(header, rows)}\nCommand: `python -m bench build_time --data DIR`, two threads."
