"""Read and check every byte of an index, with a progress display."""

import os
from pathlib import Path

from aggtree.jobs.running.cores import usable_cores
from aggtree.jobs.running.progress import ProgressChoice, make_progress
from aggtree.storage.keywords import explain_keywords
from aggtree.storage.verify.index import Damage, verify_index


@explain_keywords
def verify(
    index: str | os.PathLike[str],
    *,
    workers: int | None = None,
    deep: bool = False,
    progress: ProgressChoice = None,
) -> list[Damage]:
    """Read and check every byte of an index; returns the damage found, an empty list for an intact index.

    workers : number of threads; None for one per core.
    deep : also compare the tree with the codes it was built from.
    progress : as in `build`.
    """
    reported, threads = 0, workers or usable_cores()

    def advance(done: int, total: int) -> None:
        nonlocal reported
        if reported == 0:
            listener.begin("verify", total, unit="bytes")
        listener.advance(done - reported)
        reported = done

    with make_progress(progress) as listener:
        damages = verify_index(Path(index), advance, threads, deep=deep)
        if reported:
            listener.end(damages=len(damages))
    return damages
