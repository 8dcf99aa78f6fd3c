"""An object store that answers 500, 503 or nothing, breaks off, or no longer accepts credentials.

Vectors and codes are in it while an index is built, verified and searched with re-ranking. A passing fault
changes no byte; a lasting one is one line of our own, and the same command continues when it is over.
"""

import io
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from helpers.places import program
from helpers.services.faulty_proxy import KINDS, PASSING, FaultyProxy
from helpers.small_builds import contents, vectors

from aggtree.jobs.build import build
from aggtree.storage.errors import AggtreeError
from aggtree.storage.index.reader import open_index
from aggtree.storage.verify.index import verify_index
from reliability.builds import TINY, quick_builds

BUCKET = "vectors"
SOURCE = f"s3://{BUCKET}/base.npy"
CODES = f"s3://{BUCKET}/codes.zarr"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
STEP = 5
"""Every fifth request fails in each way."""
LASTING = 3
"""Places from which on all requests fail."""
BAD = ("differences", "passing faults that stopped a job", "other errors", "errors of several lines")


@contextmanager
def store() -> Iterator[FaultyProxy]:
    """An S3 server behind a proxy, and this process with its environment."""
    command = program("helpers.services.s3_server")
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    if process.stdin is None or process.stdout is None:
        raise SystemExit("the server did not start")
    proxy = FaultyProxy(int(process.stdout.readline()))
    try:
        with mock.patch.dict(os.environ, ENVIRONMENT | {"AWS_ENDPOINT_URL": proxy.url}):
            yield proxy
    finally:
        proxy.close()
        process.stdin.close()
        process.stdout.close()
        process.wait()


def s3() -> Any:
    import s3fs

    return s3fs.S3FileSystem()


class Trial:
    """A job of all stages, and of what follows a build, whose requests fail."""

    def __init__(self, place: Path, proxy: FaultyProxy) -> None:
        self.index, self.proxy = place / "index", proxy
        self.counts: Counter[str] = Counter()
        s3().mkdir(BUCKET)
        data = io.BytesIO()
        np.save(data, vectors(300, 4))
        s3().pipe_file(f"{BUCKET}/base.npy", data.getvalue())
        self.job()
        self.reference = contents(self.index)
        self.clear()
        proxy.begin()
        self.job()
        self.requests = list(proxy.requests)
        self.clear()

    def job(self) -> None:
        """Build, verify and search; ValueError when the answers or the codes are others."""
        build(SOURCE, self.index, codes=CODES, workers=0, **TINY)
        damages = verify_index(self.index, deep=True)
        if any(damage.block < 0 and damage.file.startswith(CODES) for damage in damages):
            raise AggtreeError(damages[0].what)
        if damages:
            raise ValueError(damages)
        with open_index(self.index) as opened:
            found = opened.search(vectors(300, 4)[:3], 1, rerank=300).distances
        if found.any():
            raise ValueError("the nearest of a row is not the row itself")

    def clear(self) -> None:
        self.proxy.begin()
        shutil.rmtree(self.index, ignore_errors=True)
        self.forget()
        if s3().exists(f"{BUCKET}/codes.zarr"):
            s3().rm(f"{BUCKET}/codes.zarr", recursive=True)
        self.forget()

    @staticmethod
    def forget() -> None:
        """Let the next call begin with new connections."""
        s3().clear_instance_cache()

    def fail(self, kind: str, fails: Callable[[int], bool], *, lasting: bool) -> None:
        """Let requests fail, then let the same job come to its end."""
        self.proxy.begin(kind, fails)
        stopped = False
        try:
            self.job()
        except AggtreeError as error:
            stopped = True
            self.counts["errors of several lines"] += "\n" in str(error)
        except Exception as error:
            print(f"{kind}: {type(error).__name__}: {error}", flush=True)
            self.counts["other errors"] += 1
        self.counts["faults"] += self.proxy.injected
        self.counts[f"trials of {kind}"] += 1
        self.counts["jobs stopped by one line"] += stopped
        self.counts["passing faults that stopped a job"] += stopped and not lasting and kind in PASSING
        self.proxy.begin()
        self.forget()
        self.job()
        self.counts["differences"] += contents(self.index) != self.reference
        self.clear()


@quick_builds()
def run(
    place: Path, seed: int, step: int = STEP, lasting: int = LASTING, kinds: Sequence[str] = KINDS
) -> dict[str, int]:
    """Let every `step`-th request fail once in each way, and all from `lasting` places on."""
    with store() as proxy:
        trial = Trial(place, proxy)
        count = len(trial.requests)
        for number, kind in enumerate(kinds):
            for at in range((seed + number) % step, count, step):
                trial.fail(kind, lambda now, at=at: now == at, lasting=False)  # type: ignore[misc]
            for at in range(number, count, -(-count // lasting)) if lasting else ():
                trial.fail(kind, lambda now, at=at: now >= at, lasting=True)  # type: ignore[misc]
    total = {"requests of a job": count} | {name: trial.counts[name] for name in sorted(trial.counts)}
    return total | {name: trial.counts[name] for name in BAD}


def met(counts: dict[str, int]) -> bool:
    return counts["faults"] >= 100 and not any(counts[name] for name in BAD)
