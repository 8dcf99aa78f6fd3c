"""Runs the command `aggtree` in a process of its own, with worker processes however small the job is.

    python own_cluster.py STAGE SIGNAL ARGUMENTS...

When the first partition of STAGE is recorded the process sends itself SIGNAL: a moment in the middle of the
work, whatever the speed of the machine. STAGE `-` lets it come to its end.
"""

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from aggtree.jobs.cli.main import main
from aggtree.jobs.planning import plan
from aggtree.storage.work.job_record import JobRecord


def stop_at(wanted: str, number: int) -> None:
    """Let the first record of a stage be followed by a signal to this process."""
    plain = JobRecord.record_done

    def record_done(job: JobRecord, stage: str, partition: int, record: Mapping[str, Any]) -> None:
        plain(job, stage, partition, record)
        if stage == wanted:
            os.kill(os.getpid(), number)

    JobRecord.record_done = record_done  # type: ignore[method-assign]


if __name__ == "__main__":
    plan.CLUSTER_ROWS = 1
    # A shell's background jobs ignore the interrupt, and would hand that down to here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stop_at(sys.argv[1], int(sys.argv[2]))
    main(sys.argv[3:])
