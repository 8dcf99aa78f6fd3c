"""Multi-path (beam) encoding of vectors with learned dictionaries."""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.clustering.distances import as_rows, check_rows, panel_layout, products
from aggtree.engine.clustering.distances_kernels import Rows
from aggtree.engine.coding.decoding_kernels import decode_rows, norm_growth
from aggtree.engine.coding.encoding_kernels import NO_SCORE, encode_rows
from aggtree.engine.coding.records import Tables, make_scratch, make_short_scratch
from aggtree.engine.coding.short_encoding_kernels import encode_short_rows
from aggtree.engine.coding.stages import stages
from aggtree.engine.coding.wide_dictionary import word_chooser
from aggtree.engine.dictionaries import SHORT_WORDS, CodeLayout, Dictionaries
from aggtree.engine.params import MAX_BEAM
from aggtree.engine.simd.instructions.vectors import CHUNK
from aggtree.engine.simd.vector_code import LANES

CHUNK_ROWS = 8192
"""Rows converted and checked at a time: the only copy of the data that is ever made."""

LARGEST_SUM = 2**15 - 1
SCORE_LIMIT = NO_SCORE // 4
PADDING = 3 * SCORE_LIMIT
"""What a word that pads a dictionary adds to a score: behind any path it stays above NO_SCORE / 2, which is
never chosen, and within 32 bits."""

SMALLEST_UNIT = 1e-30
NORM_SLACK = 1.0
"""How far beyond the range of stored norms a leaf of level 1 may be, in parts of the range."""
SHORTER, TIMES = 0.8, 16
"""How much shorter a vector is made until its norm is within the range, and how often at most."""

COARSER = 256.0
"""Tables for far outliers count in units this many times larger, or that many times again."""


def cross_products(words: NDArray[np.float32], layout: CodeLayout) -> tuple[NDArray[np.float32], float]:
    """2 c·c' of all pairs of words (S, S), and the largest |Σ_{j<m} 2 c_j·c_m| any code can have."""
    pairs = 2 * products(words, words)
    starts = np.concatenate(([0], np.cumsum(layout.words)))[:-1]
    largest = np.maximum.reduceat(np.maximum.reduceat(np.abs(pairs), starts, axis=0), starts, axis=1)
    sums = np.tril(largest, -1).sum(axis=1, dtype=np.float64)
    return pairs, float(sums.max())


class BeamTables:
    """The integer tables of one set of (narrow) dictionaries, in finer and coarser units.

    The unit is as small as the 16-bit tables allow. A vector so long that its scores would leave
    32 bits in that unit is encoded in a unit COARSER^e times larger: beside its x·c terms the
    rounding is as small as before.
    """

    def __init__(self, words: NDArray[np.float32], layout: CodeLayout) -> None:
        self._words = words.astype(np.float64)
        self._decoded_words = np.ascontiguousarray(words)
        self.layout = layout
        self._pairs, largest_sum = cross_products(words, layout)
        self._norms = np.einsum("kd,kd->k", words, words, dtype=np.float64)
        starts = np.concatenate(([0], np.cumsum(layout.words)))[:-1]
        largest_norms = np.maximum.reduceat(self._norms, starts)
        # Rounding adds at most half a unit per term: leave that much room below 2^15.
        finest = largest_sum / (LARGEST_SUM - layout.levels)
        self._squares = float(largest_norms.sum())
        self._lengths = float(np.sqrt(largest_norms).sum())
        self._unit = max(finest, 64 * self._squares / SCORE_LIMIT, SMALLEST_UNIT)
        self._tables: dict[int, Tables] = {}

    @property
    def is_short(self) -> bool:
        """Whether the labels of a path fit 16 bytes, and the scores behind it a vector."""
        return self.layout.levels <= LANES and max(self.layout.words) <= SHORT_WORDS

    def exponents(self, squared_lengths: NDArray[np.float64]) -> NDArray[np.int64]:
        """The unit COARSER^e each row needs so that |score| stays below SCORE_LIMIT, (n,) int64."""
        scores = (3 * self._squares + 2 * np.sqrt(squared_lengths) * self._lengths) / self._unit
        exponents: NDArray[np.float64] = np.ceil(
            np.log(np.maximum(scores / SCORE_LIMIT, 1)) / np.log(COARSER)
        )
        return exponents.astype(np.int64)

    def tables(self, exponent: int) -> Tables:
        """The tables in units of COARSER^exponent; kept after the first call."""
        if exponent not in self._tables:
            self._tables[exponent] = self._build(self._unit * COARSER**exponent)
        return self._tables[exponent]

    def encode(self, rows: Rows, beam: int, codes: NDArray[np.uint8]) -> None:
        """Write the codes (n, M) of rows (n, d)."""
        exponents = self.exponents(self._squared_lengths(rows))
        for exponent in np.unique(exponents):
            tables = self.tables(int(exponent))
            chosen = np.flatnonzero(exponents == exponent)
            part = rows if len(chosen) == len(rows) else rows[chosen]
            found = np.empty((len(chosen), codes.shape[1]), np.uint8)
            if self.is_short:
                sizes = np.asarray(self.layout.words, np.int64)
                encode_short_rows(part, tables, sizes, make_short_scratch(tables, beam), found)
            else:
                encode_rows(part, tables, make_scratch(tables, beam), found)
            codes[chosen] = found

    def decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Sums of the words of codes (n, M), (n, d) float32."""
        decoded = np.zeros((len(codes), self._words.shape[1]), np.float32)
        starts = (np.cumsum(self.layout.words) - self.layout.words).astype(np.int64)
        decode_rows(np.ascontiguousarray(codes), starts, self._decoded_words, decoded)
        return decoded

    def _squared_lengths(self, rows: Rows) -> NDArray[np.float64]:
        """‖x‖² of each row, or one bound for all bytes when it needs no coarser unit."""
        bound = np.full(1, 255.0**2 * rows.shape[1])
        if rows.dtype == np.uint8 and not self.exponents(bound)[0]:
            return np.broadcast_to(bound, len(rows))
        return check_rows(rows, rows.shape[1])

    def _build(self, unit: float) -> Tables:
        sizes = np.asarray(self.layout.words)
        chunk = LANES if self.is_short else CHUNK
        padded = (-(-sizes // chunk) * chunk).astype(np.int64)
        starts = np.concatenate(([0], np.cumsum(sizes)))
        columns = np.concatenate(([0], np.cumsum(padded))).astype(np.int64)
        total = int(columns[-1])
        panels = np.zeros((total, self._words.shape[1]), np.float32)
        start = np.full(total, PADDING, np.float32)
        cross_start = np.zeros((len(sizes), len(sizes)), np.int64)
        cross: list[NDArray[np.int16]] = []
        length = 0
        for m, size in enumerate(sizes):
            own = slice(starts[m], starts[m + 1])
            panels[columns[m] : columns[m] + size] = self._words[own] * (-2 / unit)
            start[columns[m] : columns[m] + size] = self._norms[own] / unit
            for j in range(m):
                rows = np.zeros((padded[j] if self.is_short else sizes[j], padded[m]), np.int16)
                rows[: sizes[j], :size] = np.rint(self._pairs[starts[j] : starts[j + 1], own] / unit)
                cross_start[m, j] = length
                length += rows.size
                cross.append(rows.ravel())
        return Tables(
            panels=panel_layout(panels, total),
            start=start,
            cross=np.concatenate(cross) if cross else np.zeros(CHUNK, np.int16),
            cross_start=cross_start,
            first=columns[:-1].copy(),
            padded=padded,
        )


class Encoder:
    """Encodes vectors with given dictionaries; a vector's code never depends on its neighbours.

    stage : dictionaries of a stage, see `AnnealingParams`.
    norm_ranges : (M + 1, 2) float32, of the norms that the leaves of a tree store. A vector whose norm would
        be cut to its range, and seem nearer to all queries than it is, is encoded as a shorter one.
    Serial, and the kernels release the GIL: call it from as many threads as there are cores.
    """

    def __init__(
        self,
        dictionaries: Dictionaries,
        beam: int,
        stage: int = 0,
        norm_ranges: NDArray[np.float32] | None = None,
    ) -> None:
        if not 1 <= beam <= MAX_BEAM:
            raise ValueError(f"beam {beam}: expected 1 to {MAX_BEAM}")
        if not np.isfinite(dictionaries.words).all():
            raise ValueError("dictionaries have NaN or infinite words")
        self.dictionaries = dictionaries
        self.beam = beam
        layout = dictionaries.layout
        self._largest_growth = None
        if norm_ranges is not None and layout.levels > 1:
            low, high = norm_ranges[1]
            self._largest_growth = high + NORM_SLACK * (high - low)
        self._first = word_chooser(dictionaries.part(0)) if layout.wide else None
        self._stages = [
            BeamTables(
                dictionaries.words[dictionaries.starts[start] : dictionaries.starts[stop]],
                CodeLayout(layout.words[start:stop]),
            )
            for start, stop in stages(layout, stage)
        ]

    def encode(self, x: NDArray[np.generic], out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """Codes (n, width) uint8 of vectors x (n, d) of any real number type, into `out` if given."""
        return self.encode_and_find_far(x, out)[0]

    def encode_and_find_far(
        self, x: NDArray[np.generic], out: NDArray[np.uint8] | None = None
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The same, and the numbers of vectors far from all others, whose codes are those of nearer ones."""
        x = np.asanyarray(x)
        if x.ndim != 2 or x.shape[1] != self.dictionaries.dimension:
            raise ValueError(f"vectors of shape {x.shape}: expected (n, {self.dictionaries.dimension})")
        shape = (len(x), self.dictionaries.layout.width)
        codes = np.empty(shape, np.uint8) if out is None else out
        if codes.shape != shape or codes.dtype != np.uint8:
            raise ValueError(f"out {codes.dtype}{codes.shape}: expected uint8 {shape}")
        numbers = [np.empty(0, np.int64)]
        for first in range(0, len(x), CHUNK_ROWS):
            chunk, far = self.dictionaries.transform.apply(as_rows(x[first : first + CHUNK_ROWS]))
            if chunk.dtype != np.uint8:
                check_rows(chunk, self.dictionaries.dimension, first)
            shortened = self._encode_chunk(chunk, codes[first : first + len(chunk)])
            numbers.append(first + np.union1d(far, shortened))
        return codes, np.concatenate(numbers)

    def _encode_chunk(self, rows: Rows, codes: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Write the codes of rows; returns the numbers of those that had to be shortened."""
        self._encode_rows(rows, codes)
        shortened = over = self._beyond_norms(codes)
        for times in range(1, TIMES + 1):
            if len(over) == 0:
                break
            shorter, found = rows[over] * np.float32(SHORTER**times), codes[over]
            self._encode_rows(shorter, found)
            codes[over] = found
            over = over[self._beyond_norms(found)]
        return shortened

    def _beyond_norms(self, codes: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Numbers of the codes whose norms a leaf of level 1 cannot store."""
        if self._largest_growth is None:
            return np.empty(0, np.int64)
        dictionaries = self.dictionaries
        starts, layout = dictionaries.starts, dictionaries.layout
        vectors = dictionaries.part(0)[layout.first_labels(codes)]
        behind = np.ascontiguousarray(codes[:, layout.prefix_bytes(1) :])
        growth = np.empty(len(codes), np.float32)
        norm_growth(vectors, behind, starts[1:-1] - starts[1], dictionaries.words[starts[1] :], growth)
        return np.flatnonzero(growth > self._largest_growth)

    def _encode_rows(self, rows: Rows, codes: NDArray[np.uint8]) -> None:
        if self._first is not None:
            labels, _ = self._first.assign(rows)
            codes[:, 0], codes[:, 1] = labels >> 8, labels & 0xFF
            codes = codes[:, 2:]
            rows = rows - self.dictionaries.part(0)[labels]
        for number, tables in enumerate(self._stages):
            levels = tables.layout.levels
            tables.encode(rows, self.beam, codes[:, :levels])
            if number + 1 < len(self._stages):
                rows = rows - tables.decode(codes[:, :levels])
                codes = codes[:, levels:]
