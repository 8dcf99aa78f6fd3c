"""Tables and curves of docs/explanation/scale.md and memory.md, from `bench/results` alone."""

from collections.abc import Sequence
from typing import Any

from aggtree.jobs.report.charts import LineChart, Series
from aggtree.jobs.running.memory import format_size
from aggtree.jobs.running.progress import format_time
from aggtree.storage.index.build_report import stage_name
from bench import record
from bench.report.generated import MISSING, Output, markdown
from bench.report.prediction import PARALLEL, Prediction, Rates, predict

Line = dict[str, Any]
STAGES = ("train", *PARALLEL, "commit")
SHOWN = ("batch_ms", "single_p50_ms")
TIMES = ("ms per query, batch", "ms per query, single")


def builds() -> dict[int, Line]:
    """The newest recorded build of each number of rows, smallest first."""
    found = {line["parameters"]["rows"]: line for line in record.read("build")}
    return dict(sorted(found.items()))


def finished() -> dict[int, Line]:
    """Those that are complete: every stage, and the sizes of what came out."""
    return {
        rows: line
        for rows, line in builds().items()
        if "bytes_per_vector" in line["results"] and {*STAGES} <= {*_stages(line)}
    }


def _stages(line: Line) -> dict[str, Line]:
    return _by_name(line["results"]["stages"])


def _by_name(stages: Sequence[Line]) -> dict[str, Line]:
    return {stage_name(stage["name"]): stage for stage in stages}


def parts(output: Output) -> dict[str, str]:
    """The generated parts of docs/explanation/scale.md."""
    return {
        "builds": build_table(),
        "curves": curves(output),
        "billion": billion_table(),
        "growth": growth_table(),
        "peers": peer_table(),
        "readers": reader_tables(),
        "predictions": prediction_tables(),
    }


def build_table() -> str:
    rows = []
    for count, line in builds().items():
        stages = _stages(line)
        seconds = sum(stage["seconds"] for stage in stages.values())
        row = [f"{count:,}", _words(line["parameters"]["words"]), format_time(seconds)]
        row += [_stage_text(stages.get(name)) for name in STAGES]
        peak = max(stage["peak"] for stage in stages.values())
        disk = max((stage.get("disk", 0) for stage in stages.values()), default=0)
        size = line["results"].get("bytes_per_vector")
        row += [
            format_size(peak),
            format_size(disk) if disk else "-",
            f"{size:.2f}" if size else "unfinished",
        ]
        rows.append([*row, str(line["parameters"].get("note", ""))])
    header = ["rows", "words", "total", *STAGES, "peak memory", "peak disk", "bytes per vector", "remark"]
    return markdown(header, rows)


def _words(sizes: Sequence[int]) -> str:
    wide, same = sizes[:1] if sizes[0] > sizes[-1] else [], sizes[-1]
    return " + ".join([*map(str, wide), f"{len(sizes) - len(wide)} x {same}"])


def memory_table() -> str:
    """Projected and measured MiB by stage: builds whose reports have both, and trees of many codes."""
    reports = [line for line in builds().values() if line["parameters"]["figures"] == "report"]
    columns = {f"{line['parameters']['rows']:,} rows": _stages(line) for line in reports}
    for line in record.read("billion"):
        results = line["results"]
        name = f"tree of {line['parameters']['rows']:,} codes, {_words(results['words'])}"
        columns[name] = _by_name(results["tree"]["stages"])
    rows = [
        [stage, *(_both(stages.get(stage)) for stages in columns.values())]
        for stage in STAGES
        if any(stage in stages for stages in columns.values())
    ]
    return markdown(["stage", *columns], rows)


def _both(stage: Line | None) -> str:
    """Projected / measured."""
    return f"{stage['projected'] / 2**20:.0f} / {stage['peak'] / 2**20:.0f}" if stage else ""


def _stage_text(stage: Line | None) -> str:
    if stage is None:
        return "-"
    rate = stage["done"] / max(stage["seconds"], 1e-9)
    rate_text = f" ({rate / 1000:,.0f}k/s)" if stage["unit"] == "rows" else ""
    return f"{format_time(stage['seconds'])}{rate_text}"


def curves(output: Output) -> str:
    """Seconds by stage, memory and bytes against the number of rows."""
    found = finished()
    if len(found) < 2:
        return MISSING
    seconds = [
        Series(name=name, points=[(float(n), _stages(line)[name]["seconds"]) for n, line in found.items()])
        for name in STAGES
    ]
    memory = [
        (float(n), max(stage["peak"] for stage in _stages(line).values()) / 2**20)
        for n, line in found.items()
    ]
    size = [(float(n), line["results"]["bytes_per_vector"]) for n, line in found.items()]
    charts = {
        "time": LineChart(
            title="Seconds of each stage against rows",
            x="rows",
            y="seconds",
            series=seconds,
            x_logarithmic=True,
            y_logarithmic=True,
            keys=True,
        ),
        "memory": LineChart(
            title="Measured peak memory against rows",
            x="rows",
            y="MiB",
            series=[Series(name="peak", points=memory)],
            x_logarithmic=True,
            from_zero=True,
        ),
        "size": LineChart(
            title="Bytes per vector that queries need against rows",
            x="rows",
            y="bytes per vector",
            series=[Series(name="size", points=size)],
            x_logarithmic=True,
            from_zero=True,
        ),
    }
    return "\n".join(
        f"![{chart.title}]({output.image(f'scale_{name}', chart.svg())})" for name, chart in charts.items()
    )


def growth_table() -> str:
    """Times of a query at equal recall in indexes of several sizes, the newest run of each recall."""
    newest = {line["parameters"]["target"]: line for line in record.read("growth")}
    rows = []
    for target, line in sorted(newest.items()):
        for name, point in line["results"]["indexes"].items():
            row = [f"{target:g}", f"{int(name):,}", f"{point['recall'][-1]:.3f}"]
            ratio = f"{point['reach']:.2f}" if point.get("reach") else "-"
            row += [", ".join(map(str, point["limits"])), ratio, f"{point['leaves']:,.0f}"]
            row += [f"{point[kind]:.3f} ({point['growth'][kind]:.1f} x)" for kind in SHOWN]
            rows.append([*row, line["commit"]])
    header = [
        "target R@100",
        "rows",
        "R@100",
        "limits",
        "pruning ratio",
        "leaves per query",
        *TIMES,
        "commit",
    ]
    return markdown(header, rows)


def peer_table() -> str:
    """Times of a query beside Faiss at equal recall, from the newest run."""
    lines, rows = record.read("ten_million"), []
    for target, systems in lines[-1]["results"]["points"].items() if lines else ():
        for name, point in systems.items():
            row = [target, name, *(f"{value:.3f}" for value in point["recall"]), str(point["effort"])]
            ratios = (point[kind] / systems["aggtree"][kind] for kind in SHOWN)
            row += [f"{point[kind]:.3f} ({ratio:.2f})" for kind, ratio in zip(SHOWN, ratios, strict=True)]
            rows.append([*row, f"{lines[-1]['results'][name]['bytes_per_vector']:.1f}"])
    header = ["target R@100", "index", "R@1", "R@10", "R@100", "probes", *TIMES, "bytes per vector"]
    table = markdown(header, rows)
    if not lines:
        return table
    parameters = lines[-1]["parameters"]
    words = f"{parameters['rows']:,} synthetic rows, {parameters['queries']:,} queries, one thread, commit"
    return f"{words} {lines[-1]['commit']}; in brackets: relative to aggtree.\n\n{table}"


def billion_table() -> str:
    """Trees of very many codes, as `bench billion` recorded them last."""
    rows, newest = [], {}
    for line in record.read("billion"):
        newest[line["parameters"]["rows"], tuple(line["results"]["words"])] = line
    for line in newest.values():
        results = line["results"]
        tree = results["tree"]
        opening = results.get("opening", {})
        row = [f"{line['parameters']['rows']:,}", _words(results["words"])]
        row += [format_time(tree["seconds"]), format_size(tree["peak"])]
        row.append(f"{results['bytes_per_vector']:.2f}")
        row.append(f"{opening['open_seconds']:.2f} s" if opening else "-")
        row += [f"{opening[kind]['p50_ms']:.2f}" if opening else "-" for kind in ("cold", "warm")]
        rows.append([*row, line["commit"]])
    header = [
        "codes",
        "words",
        "sort, build, commit",
        "peak memory",
        "bytes per vector",
        "time to open",
        "median ms per query, cold cache",
        "median ms per query, warm cache",
        "commit",
    ]
    return markdown(header, rows)


def reader_tables() -> str:
    """Throughput and memory of many query processes on one index."""
    lines = record.read("readers")
    if not lines:
        return f"{MISSING}\n"
    line = lines[-1]
    results = line["results"]
    rows = []
    for count, point in results["processes"].items():
        memory = (format_size(sum(point[kind]) / len(point[kind])) for kind in ("anonymous", "proportional"))
        times = (f"{point[name]:.3f}" for name in ("p50_ms", "p99_ms"))
        rows.append([count, f"{point['queries_per_second']:,.0f}", *times, *memory])
    header = [
        "processes",
        "queries/s",
        "p50 ms",
        "p99 ms",
        "private memory per process",
        "proportional memory per process",
    ]
    cold, warm = results["cold"], results["warm"]
    return (
        f"{results['rows']:,} rows, {format_size(results['mapped_bytes'])} mapped, "
        f"{line['machine']['cores']} cores, k = {line['parameters']['k']}, single queries:\n\n"
        f"{markdown(header, rows)}\n"
        f"Cold cache: p50 {cold['p50_ms']:.3f} ms, p99 {cold['p99_ms']:.3f} ms "
        f"({format_size(cold['read_bytes'])} read by {results['queries']:,} queries); warm: p50 "
        f"{warm['p50_ms']:.3f} ms, p99 {warm['p99_ms']:.3f} ms.\n"
    )


def prediction_tables() -> str:
    """SIFT1B on 2 and 64 cores and ten billion rows on a cluster, from the largest finished build."""
    found = finished()
    if not found:
        return f"{MISSING}\n"
    line = found[max(found)]
    rates = Rates.of_line(line)
    billion, many = 10**9, 10**10
    predictions = {
        "SIFT1B, 2 cores": predict(billion, 2, rates),
        "SIFT1B, 64 cores": predict(billion, 64, rates),
        "10 billion, 256 workers of a Dask cluster": predict(many, 256, rates, cluster=True),
    }
    words = (
        f"From the rates of the build of {max(found):,} rows at commit {line['commit']}. Per core: "
        + ", ".join(f"{name} {getattr(rates, name):,.0f} rows/s" for name in PARALLEL)
        + f"; training {format_time(rates.train_seconds)}; commit {format_size(rates.commit_bytes)}/s."
        + (f" That build: {line['parameters']['note']}." if line["parameters"].get("note") else "")
        + "\n\n"
    )
    header = ["build", *STAGES, "total"]
    rows = [
        [name, *(format_time(made.seconds[stage]) for stage in STAGES), format_time(3600 * made.hours)]
        for name, made in predictions.items()
    ]
    return f"{words}{markdown(header, rows)}\n{_moved(predictions)}"


def _moved(predictions: dict[str, Prediction]) -> str:
    header = ["build", "bytes read", "bytes written", "tasks", "memory per worker", "index size"]
    rows = []
    for name, made in predictions.items():
        read, written = sum(made.read.values()), sum(made.written.values())
        tasks = sum(made.tasks[stage] for stage in PARALLEL)
        row = [name, format_size(read), format_size(written), f"{tasks:,}", format_size(made.worker_bytes)]
        rows.append([*row, format_size(made.index_bytes)])
    return markdown(header, rows)
