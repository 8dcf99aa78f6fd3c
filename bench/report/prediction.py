"""Predicts builds that were not run from measured rates: seconds, bytes moved, tasks, memory per worker.

The work of every stage but training is proportional to the rows, and workers share it without communication,
so seconds are rows divided by rate and cores. Training reads a fixed number of rows in one process. The
commit copies bytes in one process. The cost of a cluster's network and disks is unknown: the bytes that pass
through them are stated instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aggtree.jobs.planning.plan import Plan, make_plan
from aggtree.jobs.planning.recipe import Choices, choose_recipe
from aggtree.jobs.running.memory import GIB
from aggtree.storage.index.build_report import stage_name

PARALLEL = ("encode", "sort", "build")


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Measured by one build: rows per second and core of the parallel stages, and of the others.

    train_seconds : of the whole training, on the machine it was measured on.
    commit_bytes : tree bytes per second.
    tree_bytes : bytes per vector that queries need.
    """

    encode: float
    sort: float
    build: float
    train_seconds: float
    commit_bytes: float
    tree_bytes: float

    @classmethod
    def of_line(cls, line: Mapping[str, Any]) -> "Rates":
        """From a line of `build` results."""
        results, cores = line["results"], line["parameters"].get("workers") or line["machine"]["cores"]
        stages = {stage_name(stage["name"]): stage for stage in results["stages"]}
        rows = line["parameters"]["rows"]
        rate = {name: stages[name]["done"] / max(stages[name]["seconds"], 1e-9) / cores for name in PARALLEL}
        tree = results["bytes_per_vector"]
        return cls(
            **rate,
            train_seconds=stages["train"]["seconds"],
            commit_bytes=rows * tree / max(stages["commit"]["seconds"], 1e-9),
            tree_bytes=tree,
        )


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A build that was not run.

    seconds : by stage.
    read, written : bytes that go from and to storage, by stage.
    tasks : by stage. worker_bytes : memory of the busiest stage for one worker.
    """

    rows: int
    workers: int
    seconds: dict[str, float]
    read: dict[str, int]
    written: dict[str, int]
    tasks: dict[str, int]
    worker_bytes: int
    index_bytes: int

    @property
    def hours(self) -> float:
        return sum(self.seconds.values()) / 3600


def predict(
    rows: int,
    workers: int,
    rates: Rates,
    *,
    dimension: int = 128,
    words: str | None = None,
    cluster: bool = False,
) -> Prediction:
    """A build of uint8 vectors on so many workers; of another cluster when `cluster`, with 2 GiB a worker."""
    recipe = choose_recipe(rows, Choices(words=words))
    work = recipe.workload(rows, dimension, "uint8")
    plan = make_plan(
        work, allowed=(4 + 2 * workers) * GIB, workers=workers, scheduler_workers=workers if cluster else 0
    )
    codes, runs = rows * work.layout.width, rows * work.run_row_bytes
    # Rates are of builds whose ids take 4 bytes.
    tree = int(rows * (rates.tree_bytes + work.id_bytes - 4))
    seconds = {name: rows / (getattr(rates, name) * workers) for name in PARALLEL}
    return Prediction(
        rows=rows,
        workers=workers,
        seconds={"train": rates.train_seconds, **seconds, "commit": tree / rates.commit_bytes},
        read={
            "train": recipe.train_rows * work.row_bytes,
            "encode": rows * work.row_bytes,
            "sort": codes,
            "build": runs,
            "commit": tree,
        },
        written={"train": 0, "encode": codes, "sort": runs, "build": tree, "commit": tree},
        tasks={stage.name: stage.tasks for stage in plan.stages},
        worker_bytes=_worker_bytes(plan),
        index_bytes=codes + tree,
    )


def _worker_bytes(plan: Plan) -> int:
    """Memory of one worker in the parallel stage that needs most."""
    return max(plan.stage(name).projected for name in PARALLEL) // plan.workers
