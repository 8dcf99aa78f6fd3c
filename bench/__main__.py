"""Run one benchmark by name: `python -m bench NAME [options]`."""

import importlib
import sys
from pathlib import Path

NOT_BENCHMARKS = {
    *("__init__", "__main__", "data_sets", "grown_codes_kernels", "record"),
    *(
        "generated",
        "graphs",
        "paper_figures",
        "paper_report",
        "prediction",
        "quantizer_report",
        "scale_report",
        "algorithm_report",
    ),
}


def names() -> list[str]:
    """Every module of this folder that is a benchmark."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in NOT_BENCHMARKS)


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in names():
        sys.stderr.write(f"usage: python -m bench NAME [options]; names: {', '.join(names())}\n")
        return 2
    benchmark = importlib.import_module(f"bench.{arguments[0]}")
    return int(benchmark.main(arguments[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
