"""Tables of docs/explanation/algorithm.md, from `bench/results` alone."""

from typing import Any

from aggtree.engine.params import parse_words
from bench import record
from bench.report.generated import MISSING, markdown
from bench.report.paper_report import measured_errors
from bench.report.quantizer_report import latest

Line = dict[str, Any]

KINDS = {
    "learned": "rows of the first dictionary",
    "others": "other training rows",
    "neither": "held-out rows",
}


def newest(what: str) -> Line | None:
    """The newest line of one measurement."""
    lines = [line for line in record.read("training") if line["parameters"]["what"] == what]
    return lines[-1] if lines else None


def thousands(error: float) -> str:
    return f"{error / 1000:.1f}k"


def first_words(line: Line) -> str:
    """E of the first word alone by rows per word and passes."""
    errors, parameters = line["results"]["E"], line["parameters"]
    passes = max(len(values) for values in errors.values()) - 1
    header = ["rows per word", "rows drawn as words", "after 1 pass", *map(str, range(2, passes + 1))]
    rows = [[count, *map(thousands, values)] for count, values in errors.items()]
    words = (
        f"E of the first word alone, {parameters['first']:,} words, on {parameters['held_out']:,} held-out "
        "synthetic rows:"
    )
    return f"{words}\n\n{markdown(header, rows)}"


def other_rows() -> str:
    """E of the first word and of the whole code, on rows that training has seen and on others."""
    lines = [line for line in record.read("training") if line["parameters"]["what"] == "other_rows"]
    if not lines:
        return MISSING
    rows = []
    for (count,), line in sorted(latest(lines, "rows_per_word").items()):
        errors = (line["results"]["first_E"], *line["results"]["E"].values())
        for kind, name in KINDS.items():
            rows.append([str(count), name, *(thousands(error[kind]) for error in errors)])
    header = ["rows per word", "E of", "first word alone"]
    header += [f"whole code, others trained on {name}" for name in ("rows of the first", "other rows")]
    parameters = lines[-1]["parameters"]
    words = (
        f"Synthetic rows, `{parameters['first']},{parameters['words']}`, the other dictionaries trained on "
        f"{parameters['batch']:,} rows in {parameters['rounds']} rounds:"
    )
    return f"{words}\n\n{markdown(header, rows)}"


def few_rows(line: Line) -> str:
    """E of training rows and of others by the way of cooling."""
    results, parameters = line["results"], line["parameters"]
    ways = ("start", "joint", "mixed")
    rows = [
        [f"E of {name}", *(thousands(results[way][kind]) for way in ways)]
        for kind, name in {
            "trained": f"the {parameters['rows']:,} training rows",
            "held_out": f"{parameters['held_out']:,} held-out rows",
        }.items()
    ]
    after = f"after {parameters['rounds']} rounds"
    header = [_set(parameters), "at the start", f"{after} on the rows", f"{after} on mixtures"]
    return markdown(header, rows)


def _set(parameters: Line) -> str:
    return f"{parameters['prefix']}, {parameters['dimension']} dimensions, `{parameters['words']}`"


def mixtures(line: Line) -> str:
    """E of rows held out by the share of the second row, and by the number of axes."""
    results = line["results"]
    tables = []
    for name, found in {"weight of x'": results["shares"], "axes": results["axes"]}.items():
        values = [thousands(errors["held_out"]) for errors in found.values()]
        header = [f"{key} (ideal)" if key == str(results["ideal_axes"]) else key for key in found]
        tables.append(markdown([name, *header], [["E of held-out rows", *values]]))
    return "\n".join(tables)


def bound(line: Line) -> str:
    """The lower bound of E for a code of the given size, and the measured E."""
    prefix = line["parameters"]["prefix"]
    rows = [["lower bound: Gaussian source of this covariance", thousands(line["results"]["bound"])]]
    width = len(parse_words(line["parameters"]["words"]))
    errors = measured_errors(prefix, width)
    names = {"da": "Dictionary Annealing", "rq": "Faiss RQ", "lsq": "Faiss LSQ"}
    rows += [[name, thousands(errors[method])] for method, name in names.items() if method in errors]
    return markdown([f"{prefix}, trained on the learn file, {width} bytes", "E of the base file"], rows)


def more_rows() -> str:
    """E of the same rows by the number of rows trained on, ours and Faiss's."""
    line = newest("more_rows")
    if line is None:
        return MISSING
    ours, theirs = line["results"]["E"]["da"], line["results"]["E"]["rq"]
    rows = []
    for count, error in ours.items():
        rival = theirs[count]
        rows.append([f"{int(count):,}", thousands(error), thousands(rival), f"{error / rival:.3f}"])
    parameters = line["parameters"]
    words = f"E of {parameters['test']:,} held-out rows of the base file; {_set(parameters)}:"
    return f"{words}\n\n{markdown(['training rows', 'DA', 'Faiss RQ', 'DA / RQ'], rows)}"


def sieve() -> str:
    """Milliseconds per query without the sieve and with it, the newest line of each index and limits."""
    lines = {
        (line["parameters"]["rows"], *line["parameters"]["limits"]): line for line in record.read("sieve")
    }
    rows = []
    for (count, *limits), line in sorted(lines.items()):
        found = line["results"]
        times = [
            f"{found['plain'][kind]:.3f}, {found['sieved'][kind]:.3f} ({ratio:.2f})"
            for kind in ("batch_ms", "single_p50_ms")
            for ratio in [found["sieved"][kind] / found["plain"][kind]]
        ]
        rows.append([f"{count:,}", ", ".join(map(str, limits)), f"{found['leaves']:,.0f}", *times])
    times = [f"ms per query, {kind}: without, with (ratio)" for kind in ("batch", "single")]
    return markdown(["rows", "limits", "leaves per query", *times], rows)


def parts() -> dict[str, str]:
    """The generated parts of docs/explanation/algorithm.md."""
    first, few = newest("first_words"), newest("few_rows")
    return {
        "sieve": sieve(),
        "more-rows": more_rows(),
        "other-rows": other_rows(),
        "first-words": first_words(first) if first else MISSING,
        **{
            name: make(few) if few else MISSING
            for name, make in {"few-rows": few_rows, "mixtures": mixtures, "bound": bound}.items()
        },
    }
