"""The plan of a build, made before anything runs. Pure arithmetic.

The plan decides only what cannot change the result: the number of workers, threads or processes, how far
reading runs ahead, and the rows of a partition of the tree. For any input, either the projected memory of
every stage is within the allowed memory, or the plan is refused with the smallest memory that suffices.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal, get_args

from aggtree.jobs.planning import costs
from aggtree.jobs.planning.costs import Workload
from aggtree.jobs.running.memory import MIB, format_size
from aggtree.storage.errors import MemoryBudgetError

StageName = Literal["train", "encode", "sort", "build", "commit"]
STAGES: tuple[StageName, ...] = get_args(StageName)
"""The stages of every job that writes an index, in the order in which they run."""

Mode = Literal["process", "cluster", "scheduler"]

CLUSTER_ROWS = 3_000_000  # below this, threads of this process are done before a cluster pays
MIN_PARTITION_ROWS = 20_000
MAX_PARTITION_ROWS = 8_000_000
PARTITIONS_PER_WORKER = 4
RESERVE = 0.05  # of the budget stays free: allocators keep some of what was given back


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """One stage: the number of tasks and their rows, how many run at once, and their memory."""

    name: StageName
    tasks: int
    task_rows: int
    workers: int
    projected: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A build as it will run; memory in bytes for the whole process tree.

    index_bytes : disk size of the index, including code_bytes of codes. work_bytes : additional disk space
        during the build.
    """

    allowed: int
    mode: Mode
    workers: int
    ahead: int
    partition_rows: int
    stages: tuple[StagePlan, ...]
    index_bytes: int
    code_bytes: int
    work_bytes: int

    @property
    def projected(self) -> int:
        """The largest projection of a stage, or that of compiling the kernels."""
        return max(costs.COMPILE_BYTES, *(stage.projected for stage in self.stages))

    @property
    def worker_bytes(self) -> int:
        """Memory of one worker process at work; of this process if there are no others."""
        if self.mode == "process":
            return self.projected
        others = (stage.projected for stage in self.stages if stage.name in ("encode", "sort", "build"))
        return (max(others) - costs.DRIVER_BYTES - costs.CLUSTER_BYTES) // self.workers

    def stage(self, name: StageName) -> StagePlan:
        return next(stage for stage in self.stages if stage.name == name)


def make_plan(
    work: Workload, *, allowed: int, workers: int, travels: bool = True, scheduler_workers: int = 0
) -> Plan:
    """The plan with the most workers, at most `workers`, that fits; MemoryBudgetError if none does.

    workers : 0 runs everything in this process, one task at a time.
    travels : whether other processes can open the source.
    scheduler_workers : threads of an existing cluster's workers, which cannot be lowered; 0 for none.
    """
    if scheduler_workers:
        candidates: list[tuple[Mode, int]] = [("scheduler", scheduler_workers)]
    else:
        candidates = []
        if workers >= 2 and travels and work.rows >= CLUSTER_ROWS and work.shards > 1:
            candidates += [("cluster", count) for count in range(workers, 1, -1)]
        candidates += [("process", count) for count in range(max(1, workers), 0, -1)]
    for mode, count in candidates:
        for ahead in (1, 0):
            plan = _plan_for(work, mode, count, ahead=ahead, allowed=allowed)
            if plan is not None:
                return plan
    raise MemoryBudgetError(_refusal(work, allowed, candidates[-1]))


def _driver(work: Workload) -> int:
    """Memory of this process before it does any work."""
    return costs.DRIVER_BYTES + (costs.REMOTE_BYTES if work.remote else 0)


def _base(work: Workload, mode: Mode, workers: int) -> int:
    """Memory of all processes before they do any work."""
    if mode == "process":
        return _driver(work)
    worker = costs.STRANGER_BYTES if mode == "scheduler" else costs.WORKER_BYTES
    worker += costs.REMOTE_BYTES if work.remote else 0
    return _driver(work) + costs.CLUSTER_BYTES + workers * worker


def _plan_for(work: Workload, mode: Mode, workers: int, *, ahead: int, allowed: int) -> Plan | None:
    """The plan for exactly these workers, or None when it does not fit."""
    usable = int(allowed * (1 - RESERVE))
    base = _base(work, mode, workers)
    fixed = costs.tree_task_bytes(work)
    room = (usable - base) // workers - fixed
    partition_rows = min(room // costs.tree_row_bytes(work), MAX_PARTITION_ROWS)
    if partition_rows < min(MIN_PARTITION_ROWS, work.rows):
        return None
    even_rows = -(-work.rows // (PARTITIONS_PER_WORKER * workers))
    partition_rows = min(partition_rows, max(MIN_PARTITION_ROWS, even_rows), work.rows)
    # Training runs in this process before a cluster starts, with as many threads as fit.
    driver = _driver(work)
    threads = next(
        (t for t in range(workers, 0, -1) if driver + costs.train_bytes(work, t, ahead) <= usable), 0
    )
    if threads == 0:
        return None
    partitions = -(-work.rows // partition_rows)
    batches = -(-work.train_rows // work.batch_rows)
    encode, sort = costs.encode_task_bytes(work), costs.sort_task_bytes(work)
    tree = fixed + partition_rows * costs.tree_row_bytes(work)
    samples = partitions * costs.sample_bytes(work)
    stages = (
        _stage("train", batches, work.batch_rows, threads, driver + costs.train_bytes(work, threads, ahead)),
        _stage("encode", work.shards, work.shard, workers, base + workers * encode),
        _stage("sort", work.shards, work.shard, workers, base + workers * sort),
        _stage("build", partitions, partition_rows, workers, base + max(workers * tree, samples)),
        _stage("commit", partitions, partition_rows, 1, driver + costs.commit_bytes(work)),
    )
    if max(costs.COMPILE_BYTES, *(stage.projected for stage in stages)) > usable:
        return None
    return Plan(
        allowed=allowed,
        mode=mode,
        workers=workers,
        ahead=ahead,
        partition_rows=partition_rows,
        stages=stages,
        index_bytes=costs.index_bytes(work),
        code_bytes=costs.code_bytes(work),
        work_bytes=costs.work_bytes(work),
    )


def _stage(name: StageName, tasks: int, task_rows: int, workers: int, projected: int) -> StagePlan:
    return StagePlan(
        name=name, tasks=tasks, task_rows=task_rows, workers=min(workers, max(1, tasks)), projected=projected
    )


def smallest_budget(work: Workload, mode: Mode = "process", workers: int = 1) -> int:
    """The least memory with which this build can run: bytes, a multiple of 1 MiB."""
    candidates = range(1, 2**32)
    return (
        MIB
        * bisect_left(
            candidates,
            True,
            key=lambda mib: _plan_for(work, mode, workers, ahead=0, allowed=mib * MIB) is not None,
        )
        + MIB
    )


def _refusal(work: Workload, allowed: int, last: tuple[Mode, int]) -> str:
    needed = smallest_budget(work, *last) // MIB
    train = _driver(work) + costs.train_bytes(work, 1, 0)
    remedy = f"allow {needed}MiB"
    if train >= needed * MIB * (1 - RESERVE) - 2 * MIB and work.batch_rows > 10_000:
        remedy += f", or lower batch_rows below {work.batch_rows}"
    elif last[0] == "scheduler":
        remedy += f", or use fewer workers than {last[1]}"
    return f"{format_size(allowed)} of memory are not enough for this build: {remedy}"
