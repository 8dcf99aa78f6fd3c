"""One JSON line per measurement: where, with which versions and parameters, and the raw result."""

import json
import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from aggtree.engine.simd.instructions.sieve import CAN_SIEVE

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("aggtree", "numpy", "numba", "dask", "zarr", "faiss-cpu", "hnswlib", "usearch")


def processor() -> str:
    """The processor's name as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "unknown")


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def commit() -> str:
    """The commit measured, with a mark if the tree had changes other than results and generated text."""
    name = _git("describe", "--always")
    made = [f":(exclude,top){path}" for path in ("bench/results", "docs", "README.md")]
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", *made)
    return f"{name}-dirty" if changes else name or "unknown"


def _git(*arguments: str) -> str:
    """Output of a git command in this tree; empty where there is no repository."""
    answer = subprocess.run(
        ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return answer.stdout.strip()


def machine() -> dict[str, Any]:
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "byte_permutations": CAN_SIEVE,  # processors of one name may have them or not
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in PACKAGES},
    }


def _without_folders(value: Any) -> Any:
    """The same with every absolute path cut to its last name: places of files do not matter."""
    if isinstance(value, dict):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(item) for item in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def write(benchmark: str, parameters: dict[str, Any], results: dict[str, Any]) -> None:
    """Append one measurement to `bench/results/<benchmark>.jsonl`."""
    RESULTS.mkdir(exist_ok=True)
    line = {
        "benchmark": benchmark,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "machine": machine(),
        "parameters": _without_folders(parameters),
        "results": _without_folders(results),
    }
    with (RESULTS / f"{benchmark}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read(benchmark: str) -> list[dict[str, Any]]:
    """Every recorded measurement of a benchmark, oldest first."""
    path = RESULTS / f"{benchmark}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
