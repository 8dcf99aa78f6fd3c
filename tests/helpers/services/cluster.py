"""A Dask cluster on this machine, started by its own commands."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 600


class Cluster:
    """Processes of a Dask cluster on this machine."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.processes: list[subprocess.Popen[bytes]] = []
        file = place / "scheduler.json"
        self._start("scheduler", "--port", "0", "--scheduler-file", str(file), "--no-dashboard")
        self.address = self._address(file)

    @staticmethod
    def _address(file: Path) -> str:
        """What the scheduler writes when it is there; it may be seen before it is whole."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return str(json.loads(file.read_text())["address"])
            except (FileNotFoundError, ValueError):
                assert time.monotonic() < deadline, "the scheduler did not start"
                time.sleep(0.05)

    def start_worker(self, **environment: str) -> subprocess.Popen[bytes]:
        options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "0")
        directory = ("--local-directory", str(self.place))
        return self._start("worker", self.address, *options, *directory, **environment)

    def _start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        # From another directory: nothing may depend on where a worker was started.
        command = [sys.executable, "-m", "dask", *arguments]
        process = subprocess.Popen(
            command,
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": ""} | environment,
        )
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def wait_for_workers(cluster: Cluster, count: int) -> None:
    from distributed import Client

    with Client(cluster.address, set_as_default=False) as client:
        client.wait_for_workers(count, timeout=PATIENCE)
