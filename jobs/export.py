"""Export codes, ids and dictionaries of an index to other formats.

    codes.npy       codes (n, width) uint8 in the order of the rows; ids (n,) int64 in codes.ids.npy
    codes.parquet   columns `id` int64 and `code`, a list of `width` bytes
    codes.faiss     a Faiss index: the dictionaries as an additive quantizer, the codes, and the ids

Deleted and skipped rows are omitted. Rows are streamed, except for Faiss, which needs the index in memory to
write it.
"""

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import Dictionaries
from aggtree.jobs.running.progress import Progress, ProgressChoice, make_progress
from aggtree.storage.atomic import replace_file
from aggtree.storage.errors import SourceError
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.index.live_rows import kept_bits
from aggtree.storage.index.reader import Index, open_index
from aggtree.storage.keywords import explain_keywords
from aggtree.storage.row_bits import unpacked

BLOCK_ROWS = 100_000
SUFFIXES = (".npy", ".parquet", ".faiss", ".index")

Block = tuple[NDArray[np.int64], NDArray[np.uint8]]
"""Ids (r,) and codes (r, width)."""


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """The files written, and the shape of the codes."""

    files: tuple[Path, ...]
    rows: int
    width: int


@explain_keywords
def export(
    index: str | os.PathLike[str], to: str | os.PathLike[str], *, progress: ProgressChoice = None
) -> ExportResult:
    """Write ids and codes of all vectors of an index to `to`, by its suffix: .npy, .parquet, or .faiss.

    progress : as of `build`.
    """
    target = Path(to)
    if target.suffix not in SUFFIXES:
        raise SourceError(f"{target}: expected a name that ends in {', '.join(SUFFIXES)}")
    if not target.absolute().parent.is_dir():
        raise SourceError(f"{target}: no directory {target.parent}: make it first")
    write = {".npy": _to_numpy, ".parquet": _to_parquet}.get(target.suffix, _to_faiss)
    with open_index(index) as opened, make_progress(progress) as listener:
        listener.begin("export", opened.rows)
        files = write(target, opened, _blocks(opened, listener))
        listener.end()
        return ExportResult(files=files, rows=opened.rows, width=opened.layout.width)


def _blocks(index: Index, progress: Progress) -> Iterator[Block]:
    """Ids and codes of all existing rows, in order."""
    manifest = index.manifest
    whole = manifest.live_rows == manifest.all_source_rows
    bits = None if whole else kept_bits(index.path, manifest)
    for segment in manifest.segments:
        place = segment.codes_at(index.path)
        store = CodeStore.open(place)
        for start in range(0, segment.source_rows, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, segment.source_rows)
            rows = segment.first_row + np.arange(start, stop)
            codes = store.read(start, stop)
            if bits is not None:
                kept = unpacked(bits, segment.first_row + start, segment.first_row + stop)
                rows, codes = rows[kept], codes[kept]
            progress.advance(len(rows))
            yield (rows if index.own_ids is None else index.own_ids.of_rows(rows)), codes


def _to_numpy(target: Path, index: Index, blocks: Iterator[Block]) -> tuple[Path, ...]:
    """Write codes and ids as two .npy files."""
    ids_target = target.with_suffix(".ids.npy")
    rows, width = index.rows, index.layout.width
    headers = [_npy_header((rows, width), "|u1"), _npy_header((rows,), "<i8")]
    size = rows * width, 8 * rows
    with (
        replace_file(target, len(headers[0]) + size[0]) as codes_file,
        replace_file(ids_target, len(headers[1]) + size[1]) as ids_file,
    ):
        codes_file.write(headers[0])
        ids_file.write(headers[1])
        for ids, codes in blocks:
            codes_file.write(np.ascontiguousarray(codes))
            ids_file.write(ids.astype("<i8", copy=False))
    return target, ids_target


def _npy_header(shape: tuple[int, ...], dtype: str) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def _to_parquet(target: Path, index: Index, blocks: Iterator[Block]) -> tuple[Path, ...]:
    """Write a parquet file with one row group per block."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise SourceError(f"{target}: needs pyarrow: pip install 'aggtree[parquet]'") from None

    width = index.layout.width
    schema = pa.schema([("id", pa.int64()), ("code", pa.list_(pa.uint8(), width))])
    with replace_file(target) as file, pq.ParquetWriter(_Sink(file), schema) as writer:
        for ids, codes in blocks:
            flat = pa.array(np.ascontiguousarray(codes).reshape(-1))
            lists = pa.FixedSizeListArray.from_arrays(flat, width)
            writer.write_table(pa.table([pa.array(ids), lists], schema=schema))
    return (target,)


class _Sink:
    """A write-once file with the interface that pyarrow expects."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file, self._size = file, 0

    def write(self, data: Any) -> int:
        content = bytes(data)
        self._file.write(content)
        self._size += len(content)
        return len(content)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """The caller closes the file."""


def _to_faiss(target: Path, index: Index, blocks: Iterator[Block]) -> tuple[Path, ...]:
    """An IndexIDMap2 of an IndexResidualQuantizer that compares with decoded vectors."""
    try:
        faiss: Any = import_module("faiss")
    except ImportError:
        raise SourceError(f"{target}: needs Faiss: pip install 'aggtree[faiss]'") from None

    metric = faiss.METRIC_L2 if index.manifest.metric == "l2" else faiss.METRIC_INNER_PRODUCT
    bits = code_bits(index.dictionaries)
    sizes = faiss.UInt64Vector()
    for count in bits:
        sizes.push_back(count)
    search_type = faiss.AdditiveQuantizer.ST_decompress
    made = faiss.IndexResidualQuantizer(index.dimension, sizes, metric, search_type)
    faiss.copy_array_to_vector(padded_words(index.dictionaries, bits).reshape(-1), made.rq.codebooks)
    made.rq.is_trained = made.is_trained = True
    whole = faiss.IndexIDMap2(made)
    for ids, codes in blocks:
        if len(ids):
            whole.add_sa_codes(packed_codes(index.dictionaries.layout.labels(codes), bits), ids)
    with replace_file(target) as file:
        writer = faiss.VectorIOWriter()
        faiss.write_index(whole, writer)
        file.write(faiss.vector_to_array(writer.data))
    return (target,)


def code_bits(dictionaries: Dictionaries) -> tuple[int, ...]:
    """Bits of each label, as Faiss counts words: a power of two for each dictionary."""
    return tuple(max(1, (size - 1).bit_length()) for size in dictionaries.layout.words)


def padded_words(dictionaries: Dictionaries, bits: tuple[int, ...]) -> NDArray[np.float32]:
    """The words of all dictionaries, each filled up by zeros to its power of two."""
    parts = []
    for number, count in enumerate(bits):
        words = np.zeros((2**count, dictionaries.dimension), np.float32)
        part = dictionaries.part(number)
        words[: len(part)] = part / dictionaries.transform.unit
        if number == 0 and dictionaries.transform.mean is not None:
            words[: len(part)] += dictionaries.transform.mean
        parts.append(words)
    return np.concatenate(parts)


def packed_codes(labels: NDArray[Any], bits: tuple[int, ...]) -> NDArray[np.uint8]:
    """Labels (n, M) packed as in Faiss: one after the other, lowest bit first, padded to a whole byte."""
    columns = [
        (labels[:, number, None].astype(np.int64) >> np.arange(count)) & 1
        for number, count in enumerate(bits)
    ]
    return np.packbits(np.concatenate(columns, axis=1).astype(np.uint8), axis=1, bitorder="little")
