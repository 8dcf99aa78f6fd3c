"""Check the free disk space before work starts."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from aggtree.jobs.planning.plan import Plan
from aggtree.jobs.running.memory import format_size
from aggtree.storage.atomic import explained
from aggtree.storage.errors import DiskError
from aggtree.storage.work.job_record import JobRecord


def check_room(job: JobRecord, plan: Plan) -> None:
    """DiskError if, by the plan's estimate, the job still has more to write than the disk can hold."""
    needed = plan.index_bytes + plan.work_bytes - (plan.code_bytes if job.codes else 0)
    missing = needed - written_bytes(job.build_directory) - written_bytes(job.work_directory)
    with explained(job.index):
        free = shutil.disk_usage(job.index).free
    if missing > free:
        raise DiskError(
            f"{job.index}: about {format_size(missing)} more are needed on this disk, {format_size(free)} "
            "are free; make room or choose another directory"
        )


def written_bytes(directory: Path) -> int:
    """Bytes of all files below a directory; 0 if it does not exist."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):  # removed by whoever writes there now
                total += (Path(parent) / name).lstat().st_size
    return total
