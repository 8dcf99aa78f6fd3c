"""Builds of several sizes: wall time, rate, memory and disk of every stage against the number of rows.

    python -m bench scale --work DIR [--rows 100000,300000,1000000,3000000] [--memory 1GiB] [--keep] [OPTIONS]

The vectors are generated, so nothing but the index is on the disk. Each index is built by a process of its
own, with the options of `aggtree build` that follow (`--train-rows 400000`, `--words 2048,256x8`, ...), then
recorded as `record_build` does, and removed unless --keep. One after the other, smallest first; a size that
was built here with --keep is recorded without being built again.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from aggtree.jobs.running.cores import usable_cores
from bench.report import record_build


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench scale", description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rows", default="100000,300000,1000000,3000000")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--keep", action="store_true", help="leave the indexes in DIR")
    parser.add_argument("--note", help="what a reader should know, such as other work on the machine")
    options, build_options = parser.parse_known_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    for rows in sorted(int(text) for text in options.rows.split(",")):
        source, index = (
            f"synthetic:sift?rows={rows}&seed={options.seed}",
            options.work / f"scale_{rows}.index",
        )
        command = [sys.executable, "-m", "aggtree.jobs.cli.main", "build", source, str(index)]
        command += ["--memory", options.memory, "--workers", str(options.workers), *build_options]
        subprocess.run(command, check=True)
        more = {"memory": options.memory, "workers": options.workers, "series": "scale"}
        record_build.write_line(index, more=more | ({"note": options.note} if options.note else {}))
        if not options.keep:
            shutil.rmtree(index)
    return 0
