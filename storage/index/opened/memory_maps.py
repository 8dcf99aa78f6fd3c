"""Files mapped read-only, and how their pages are read into memory."""

import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.atomic import explained
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.file_record import FileRecord

POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux 5.14, which Python's mmap does not name."""


def map_array(path: Path, record: FileRecord, maps: list[mmap.mmap]) -> NDArray[Any]:
    """A raw array of an index, mapped read-only; its pages are added to `maps`."""
    if record.bytes == 0:
        return np.empty(0, record.dtype)
    place = path / record.path
    with explained(place):
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_size != record.bytes:
            raise IndexFormatError(f"{place}: changed while it was opened")
        with explained(place):
            pages = mmap.mmap(descriptor, record.bytes, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    maps.append(pages)
    return np.frombuffer(pages, record.dtype, record.length)


def physical_memory() -> int:
    """Bytes of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def limit_read_ahead(maps: Sequence[mmap.mmap]) -> bool:
    """Turn read-ahead off for maps that together exceed half of the memory; returns whether it did.

    Read-ahead warms a file that fits into memory within a few queries. For a larger file it would fetch a
    hundred times what a query needs, and evict what others need.
    """
    if sum(len(pages) for pages in maps) <= physical_memory() // 2:
        return False
    for pages in maps:
        with suppress(OSError):
            pages.madvise(mmap.MADV_RANDOM)
    return True


def warm(maps: Sequence[mmap.mmap], progress: Callable[[int, int], None] | None = None) -> None:
    """Read all pages into memory; `progress` is called with the bytes done and all bytes."""
    total, done = sum(len(pages) for pages in maps), 0
    for pages in maps:
        if total < physical_memory():
            # What is read now comes in huge pages where the file system has them, for all processes.
            with suppress(OSError, AttributeError):
                pages.madvise(mmap.MADV_HUGEPAGE)
        _populate(pages)
        done += len(pages)
        if progress:
            progress(done, total)


def _populate(pages: mmap.mmap) -> None:
    """Read all pages of a map into memory and map them."""
    try:
        pages.madvise(POPULATE_READ)
    except OSError:
        # An older kernel: prefetch the pages, then touch each.
        with suppress(OSError):
            pages.madvise(mmap.MADV_WILLNEED)
        np.bitwise_or.reduce(np.frombuffer(pages, np.uint8)[:: mmap.PAGESIZE])
