"""Processes that open and search an index again and again while it is rebuilt and committed by real builds.

Each answer must be the one of the old index or of the new one, known beforehand; a map once open keeps
its answers after its files were removed.
"""

import json
import subprocess
import time
from pathlib import Path

from helpers.places import TESTS, program

from aggtree.storage.index.reader import open_index
from reliability.builds import Place, quick_builds
from reliability.programs.one_reader import answer

READERS, SECONDS, COMMITS = 8, 60, 20


@quick_builds()
def run(
    place: Path, seed: int, readers: int = READERS, seconds: float = SECONDS, commits: int = COMMITS
) -> dict[str, int]:
    """Let readers read for so many seconds or longer, until there were enough commits."""
    prepared, index, stop = Place(place), place / "index", place / "stop"
    expected = {}
    for kind in (1, 0):
        prepared.build("small", index, seed=seed + kind, replace=True)
        with open_index(index) as opened:
            expected[opened.manifest.first_segment.build] = answer(opened)
    (place / "expected.json").write_text(json.dumps(expected))
    command = program("reliability.programs.one_reader", index, place / "expected.json", stop)
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=TESTS) for _ in range(readers)
    ]
    try:
        for process in processes:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise SystemExit("a reader did not start")
        done, began = 0, time.monotonic()
        while time.monotonic() < began + seconds or done < commits:
            prepared.build("small", index, seed=seed + 1 - done % 2, replace=True)
            done += 1
    finally:
        stop.touch()
    total = {"readers": readers, "seconds each": int(time.monotonic() - began), "commits": done}
    for process in processes:
        out, _ = process.communicate()
        counts = json.loads(out) if process.returncode == 0 else {"crashes": 1}
        for what, count in counts.items():
            total[what] = total.get(what, 0) + count
    total["builds seen by each"] = total.pop("builds", 0) // readers
    return total | {"crashes": total.get("crashes", 0)}


def met(counts: dict[str, int]) -> bool:
    quiet = not (counts["wrong answers"] or counts["errors"] or counts["crashes"])
    return quiet and counts["commits"] >= COMMITS and counts["readers"] >= READERS
