"""Verification of an index with a progress display."""

from pathlib import Path

from aggtree.jobs.running.progress import Progress
from aggtree.storage.verify.index import Damage, verify_index


def verify_with_progress(
    index: Path, workers: int, progress: Progress, *, deep: bool = False
) -> list[Damage]:
    """Read and check every byte of an index; returns the damage found. deep : see verify_index."""
    told = 0

    def advance(done: int, total: int) -> None:
        nonlocal told
        if told == 0:
            progress.begin("verify", total, unit="bytes")
        progress.advance(done - told)
        told = done

    damages = verify_index(index, advance, workers, deep=deep)
    if told:
        progress.end(damages=len(damages))
    return damages
