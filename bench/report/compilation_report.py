"""What compilation takes, as tables of the newest run of `python -m bench compilation`."""

from typing import Any

from bench import record
from bench.report.generated import MISSING, markdown

MOST_KERNELS = 12
STEPS = {
    "training_starts": "a first build of 10,000 rows, until training starts",
    "search": "the first search of an index, import and opening included",
    "filter": "then, in a new process: the first with a filter",
    "rerank": "the first with re-ranking",
    "segments": "the first after rows were appended and deleted",
}


def part() -> str:
    """Both tables, and where they were measured."""
    lines = record.read("compilation")
    if not lines:
        return MISSING
    line = lines[-1]
    found, machine = line["results"], line["machine"]
    where = f"{machine['processor']}, {machine['cores']} cores, numba {machine['packages']['numba']}"
    later = found["open_and_search"]
    steps = [[text, f"{found['seconds'][step]:.1f}"] for step, text in STEPS.items()]
    table = markdown(["from an empty cache", "CPU seconds"], steps)
    kernels = markdown(["kernel", "CPU seconds"], _kernels(found["kernels"].get("search", {})))
    return f"""\
{where}, commit {line["commit"]}. CPU seconds include imports and child processes.

{table}
A later process imports aggtree, opens the index and searches in {later["wall"]:.2f} s, with
{later["cpu"]:.2f} CPU seconds on all cores. `import aggtree` takes {1000 * found["import"]["wall"]:.0f} ms.
All kernels of searches take {found["cache_bytes"] / 1e6:.1f} MB on disk.

The kernels of a first search, without those they call. Python calls `search_tree`: its time includes that
of LLVM, which optimizes it with all others at once.

{kernels}
Command: `python -m bench compilation`.
"""


def _kernels(seconds: dict[str, Any]) -> list[list[str]]:
    """The kernels that take longest, and the sum of the others."""
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    rows = [[f"`{name}`", f"{value:.2f}"] for name, value in ordered[:MOST_KERNELS]]
    rest = ordered[MOST_KERNELS:]
    if rest:
        rows.append([f"{len(rest)} others", f"{sum(value for _, value in rest):.2f}"])
    return rows
