"""What lies in the directory of an index: what is ours, and what of others must stay as it is."""

from collections.abc import Iterator
from pathlib import Path

from aggtree.storage.atomic import TEMPORARY, explained
from aggtree.storage.errors import AggtreeError, BuildMismatchError
from aggtree.storage.index.format import (
    BUILD_ID,
    BUILD_PREFIX,
    FORMAT,
    LIVE_PREFIX,
    LOCK,
    MANIFEST,
    REPORT,
    TUNING,
    WORK_PREFIX,
)
from aggtree.storage.sealed_json import read_sealed

SYSTEM_NAMES = ("lost+found",)
"""What a file system keeps in its own root; names that begin with a dot are left to the system too."""


def builds_in(index: Path) -> Iterator[Path]:
    """Directories of builds, committed or not."""
    return _with_id(index, BUILD_PREFIX)


def work_in(index: Path) -> Iterator[Path]:
    """Directories of unfinished jobs."""
    return _with_id(index, WORK_PREFIX)


def _with_id(index: Path, prefix: str) -> Iterator[Path]:
    """Directories named by the id of a build, in order. A user's own `build-output` is none of them."""
    for path in sorted(index.glob(f"{prefix}*")):
        if BUILD_ID.fullmatch(path.name.removeprefix(prefix)) and path.is_dir():
            yield path


def refuse_foreign(index: Path) -> None:
    """BuildMismatchError if a directory holds files but no index, finished or not.

    Other programs have manifests of this name too.
    """
    if not index.exists():
        return
    with explained(index):
        names = sorted(path.name for path in index.iterdir())
    if any(builds_in(index)) or any(work_in(index)) or _has_manifest(index):
        return
    foreign = [name for name in names if not _is_ours(name)]
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise BuildMismatchError(
            f"{index}: holds {foreign[0]}{more}, which belongs to no index; name a new or empty directory"
        )


def _has_manifest(index: Path) -> bool:
    """Whether the manifest that is there is one of ours."""
    try:
        return read_sealed(index / MANIFEST).get("format") == FORMAT
    except AggtreeError:
        return False


def _is_ours(name: str) -> bool:
    """Whether a killed process may have left it, or the system made it."""
    return (
        name in (LOCK, REPORT, TUNING, *SYSTEM_NAMES)
        or name.startswith((".", LIVE_PREFIX))
        or name.endswith(TEMPORARY)
    )
