"""A column of lists in a parquet file, one vector per row. Needs pyarrow.

`file.parquet` is its only column of lists; `file.parquet::name` chooses one. A row group is the
smallest piece that can be decoded, and the last one is kept, so reading costs one row group of memory.
"""

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.byte_reader import check_local_file, reason
from aggtree.storage.errors import SourceError
from aggtree.storage.sources.formats.chunked_rows import ChunkedRows


class ParquetSource(ChunkedRows):
    """The vectors in one column of a parquet file."""

    def __init__(self, location: str, name: str) -> None:
        self._file = open_file(location)
        self._lock = threading.Lock()
        try:
            self._column = _choose_column(location, name, self._file.schema_arrow)
            self.spec = f"{location}::{self._column}"
            counts = [self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)]
            # Empty row groups are left out, so that every start belongs to a chunk with rows.
            self._groups = [number for number, count in enumerate(counts) if count]
            ends = np.cumsum([counts[number] for number in self._groups], dtype=np.int64)
            if not len(ends):
                raise SourceError(f"{location}: holds no rows: write it again")
            self._starts = np.concatenate(([0], ends[:-1])).astype(np.int64)
            self._cached: tuple[int, NDArray[Any]] = (-1, np.empty((0, 0)))
            self._dimension = 0
            first = self._group(0)
            self._dimension = first.shape[1]
            super().__init__(self.spec, (int(ends[-1]), self._dimension), first.dtype, int(ends[0]))
        except SourceError:
            self.close()
            raise
        except Exception as error:  # pyarrow raises many types for damaged files
            self.close()
            raise SourceError(
                f"{location}: cannot be read as parquet: {reason(error)}: copy it again"
            ) from error

    def _group(self, number: int) -> NDArray[Any]:
        """All vectors of a row group."""
        if self._cached[0] != number:
            table = self._file.read_row_group(self._groups[number], columns=[self._column], use_threads=False)
            self._cached = (number, self._vectors(table.column(0).combine_chunks(), number))
        return self._cached[1]

    def _vectors(self, lists: Any, number: int) -> NDArray[Any]:
        import pyarrow

        first_row = int(self._starts[number])
        if isinstance(lists, pyarrow.ChunkedArray):
            lists = pyarrow.concat_arrays(lists.chunks)
        if lists.null_count or lists.flatten().null_count:
            raise SourceError(
                f"{self.spec}: missing values in rows {first_row} to {first_row + len(lists)}: fill them"
            )
        lengths = np.asarray(lists.value_lengths())
        dimension = self._dimension or int(lengths[0])
        wrong = np.flatnonzero(lengths != dimension)
        if len(wrong):
            raise SourceError(
                f"{self.spec}: row {first_row + int(wrong[0])} has dimension {lengths[wrong[0]]}, "
                f"the rows before it have {dimension}: all must agree"
            )
        return np.asarray(lists.flatten()).reshape(len(lists), dimension)

    def _chunk_numbers(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._starts, rows, side="right").astype(np.int64) - 1

    def _chunk_edges(self, start: int, stop: int) -> list[int]:
        low, high = np.searchsorted(self._starts, [start + 1, stop]).tolist()
        return [start, *self._starts[low:high].tolist(), stop]

    def _decode(self, start: int, stop: int) -> NDArray[Any]:
        number = int(self._chunk_numbers(np.array([start]))[0])
        offset = int(self._starts[number])
        with self._lock:
            return self._group(number)[start - offset : stop - offset]

    def close(self) -> None:
        self._file.close()


def open_file(location: str) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise SourceError(
            f"{location}: parquet files need pyarrow: pip install 'aggtree[parquet]'"
        ) from error
    check_local_file(location, "parquet")
    try:
        return pyarrow.parquet.ParquetFile(location, memory_map=False)
    except Exception as error:  # pyarrow raises many types for damaged files
        raise SourceError(
            f"{location}: cannot be opened as parquet: {reason(error)}: copy it again"
        ) from error


def _choose_column(location: str, name: str, schema: Any) -> str:
    """The column called `name`, or the only one that holds lists of numbers."""
    from pyarrow import types

    def holds_vectors(kind: Any) -> bool:
        is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        return bool(is_list) and bool(types.is_integer(kind.value_type) or types.is_floating(kind.value_type))

    columns = [field.name for field in schema if holds_vectors(field.type)]
    if name and name in columns:
        return name
    if not name and len(columns) == 1:
        return str(columns[0])
    wanted = f"no column {name!r} of" if name else "no single column of"
    raise SourceError(f"{location}: {wanted} lists of numbers, choose with ::NAME among {columns}")


def open_vectors(location: str, name: str) -> ParquetSource:
    """Open a column as vectors."""
    return ParquetSource(location, name)
