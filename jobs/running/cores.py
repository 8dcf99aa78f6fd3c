"""The number of cores that a process may use."""

import os


def usable_cores() -> int:
    """Cores this process may run on; all of the machine where the system has no affinity, as macOS."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
