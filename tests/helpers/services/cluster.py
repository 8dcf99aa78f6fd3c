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
        self.scheduler = self._start_scheduler("0")
        self.address = self._address(self._file)

    @property
    def _file(self) -> Path:
        return self.place / "scheduler.json"

    def _start_scheduler(self, port: str) -> subprocess.Popen[bytes]:
        self._file.unlink(missing_ok=True)
        options = ("--port", port, "--scheduler-file", str(self._file), "--no-dashboard")
        return self._start("scheduler", *options)

    def restart_scheduler(self) -> None:
        """Kill the scheduler, and start another one at its address."""
        self.scheduler.kill()
        self.scheduler.wait()
        self.scheduler = self._start_scheduler(self.address.rpartition(":")[2])
        self._address(self._file)

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

    def start_worker(self, memory: str = "0", **environment: str) -> subprocess.Popen[bytes]:
        options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", memory)
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
