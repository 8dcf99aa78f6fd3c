"""Stage 3: sorted runs. One task sorts one shard of codes, with the row numbers, by (code, id)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.tree.code_order import sort_codes
from aggtree.jobs.running.tasks import Tick
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.row_bits import read_bits
from aggtree.storage.work.runs import write_run


@dataclass(frozen=True, kw_only=True)
class SortTask:
    """Shard `number` of the store at `codes`, rows start..stop, sorted into the file `run`.

    skip : rows without a valid code, ascending.
    kept : file with a bit for each row of the store to keep; None for all.
    wide_ids : ids of 8 bytes, for more than 2³² rows.
    """

    number: int
    start: int
    stop: int
    codes: str
    run: Path
    skip: tuple[int, ...] = ()
    kept: Path | None = None
    wide_ids: bool = False

    @property
    def rows(self) -> int:
        return self.stop - self.start


def sort_shard(task: SortTask, tick: Tick) -> dict[str, Any]:
    """Sort one shard and write its run; returns rows and checksum."""
    codes = CodeStore.open(task.codes).read(task.start, task.stop)
    ids: NDArray[np.unsignedinteger] = np.arange(task.start, task.stop, dtype=np.uint64)
    ids = ids if task.wide_ids else ids.astype(np.uint32)
    if task.skip or task.kept:
        keep = np.ones(task.rows, bool) if task.kept is None else read_bits(task.kept, task.start, task.stop)
        keep[np.asarray(task.skip, np.int64) - task.start] = False
        codes, ids = codes[keep], ids[keep]
    codes, ids = sort_codes(codes, ids)
    checksums = write_run(task.run, codes, ids)
    return {"rows": len(codes), "bytes": checksums.bytes, "crc": checksums.crc}
