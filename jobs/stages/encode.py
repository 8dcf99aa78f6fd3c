"""Stage 2: codes. One task encodes the rows of one zarr shard and writes it whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.coding.encoding import Encoder
from aggtree.engine.params import AnnealingParams
from aggtree.jobs.planning.costs import BLOCK_BYTES
from aggtree.jobs.running.streams import invalid_rows
from aggtree.jobs.running.tasks import Tick
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.index.dictionary_file import load_dictionaries
from aggtree.storage.sources.base import VectorSource, open_source


@dataclass(frozen=True, kw_only=True)
class EncodeTask:
    """Rows start..stop, which are shard `number` of the store at `codes`.

    source : its spec, or the source itself when it never leaves this process.
    skip_invalid : rows with NaN or infinite values get a code of zeros and are named in the record;
        otherwise the first one is an error.
    stored_norms : whether leaves store norms in a range, which queries are compared by.
    sample : so many rows of the shard are decoded again, to measure how well the dictionaries fit them.
    """

    number: int
    start: int
    stop: int
    source: str | VectorSource
    codes: str
    dictionaries: Path
    annealing: AnnealingParams
    skip_invalid: bool = False
    stored_norms: bool = False
    sample: int = 0

    @property
    def rows(self) -> int:
        return self.stop - self.start


@contextmanager
def opened(source: str | VectorSource) -> Iterator[VectorSource]:
    """The source of a task: opened and closed here, or passed open."""
    if isinstance(source, VectorSource):
        yield source
    else:
        with open_source(source) as opened_here:
            yield opened_here


def encode_shard(task: EncodeTask, tick: Tick) -> dict[str, Any]:
    """Encode and write one shard; returns its record, with the skipped rows and the number of far ones."""
    dictionaries, norm_ranges = load_dictionaries(task.dictionaries)
    store = CodeStore.open(task.codes)
    ranges = norm_ranges if task.stored_norms else None
    encoder = Encoder(dictionaries, task.annealing.beam, task.annealing.stage, ranges)
    codes = np.zeros((task.rows, store.width), np.uint8)
    invalid: list[int] = []
    errors: list[float] = []
    far_rows = 0
    # The same rows however the shard is read.
    chosen = np.unique(np.linspace(task.start, task.stop - 1, task.sample).astype(np.int64))
    with opened(task.source) as source:
        block_rows = max(1, BLOCK_BYTES // (source.dimension * source.dtype.itemsize))
        for start in range(task.start, task.stop, block_rows):
            stop = min(start + block_rows, task.stop)
            rows = source.read(start, stop)
            wrong = invalid_rows(source.spec, rows, start, allowed=task.skip_invalid)
            rows[wrong] = 0
            out = codes[start - task.start : stop - task.start]
            _, far = encoder.encode_and_find_far(rows, out)
            far_rows += len(np.setdiff1d(far, wrong))
            out[wrong] = 0
            invalid.extend((start + wrong).tolist())
            # The error of a row far from all others would stand for many that are not.
            looked_at = np.setdiff1d(chosen[(chosen >= start) & (chosen < stop)] - start, [*wrong, *far])
            errors.extend(_squared_errors(rows[looked_at], dictionaries.decode(out[looked_at])))
            del rows  # before the next block is read
            tick(stop - start)
    record = store.write_shard(task.number, codes).to_json()
    return (
        record | {"invalid": invalid, "far": far_rows} | ({"error": float(np.mean(errors))} if errors else {})
    )


def _squared_errors(rows: NDArray[Any], found: NDArray[np.float32]) -> list[float]:
    """Squared distance of each row and its reconstruction."""
    apart = rows.astype(np.float64) - found
    squares: list[float] = np.einsum("ij,ij->i", apart, apart).tolist()
    return squares
