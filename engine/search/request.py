"""A search request: its parameters, its queries, and the default parameters."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.dictionaries import MAX_WORDS
from aggtree.engine.params import SearchParams
from aggtree.engine.scan.first_level import padded
from aggtree.engine.scan.table_kernels import DIMENSION_STEP, FEW
from aggtree.engine.search.filters import Filter
from aggtree.engine.simd.instructions.products import TILE_ROWS

# Bytes of integers whose squares add up in float32, whatever the dimension.
SMALL_INTEGER = 2
# A query of at most this squared length has no squared distance that overflows float32: distances are sums of
# terms that add up to five times as much at most, while no vector is longer than the query.
LARGEST_SQUARE = np.float32(2.0**125)
# Pruning ratio of level 1 behind a wide first dictionary.
PRUNING_RATIO = 1.27
PLANE_PRUNING_RATIO = 1.3
# What `rerank="auto"` re-ranks beyond k, per √k, with codes of this many bits per dimension or more; with
# fewer bits it is more, up to a multiple.
SPARE_CANDIDATES = 30
ENOUGH_BITS = 1.2
MOST_SCARCE = 2.5
# How many times as many nodes are visited where candidates are re-ranked: codes then limit the recall less.
RERANK_EFFORT = 2

Rerank = int | Literal["auto"]


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """The arguments of one search besides its queries.

    k : answers per query; ignored by range search, which returns all.
    params : how much of the tree to visit; without limits, the default of the searcher.
    threads : threads that share the queries of a call.
    rerank : candidates, at least k, that are re-ranked by exact distance; 0 for none, "auto" for as many as
        `default_candidates` if the vectors can be read in place; without params more nodes are then visited.
    within : rows that answers may come from; None for all.
    radius : answers whose squared distance exceeds radius² are dropped; None for no bound.
    recall, time_ms : instead of params and rerank, the required recall or the allowed milliseconds per query,
        as measured by tuning; see `Tuning.apply`.
    """

    k: int = 100
    params: SearchParams | None = None
    threads: int = 1
    rerank: Rerank = "auto"
    within: Filter | None = None
    radius: float | None = None
    recall: float | None = None
    time_ms: float | None = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k {self.k}: expected 1 or more")
        if self.threads < 1:
            raise ValueError(f"threads {self.threads}: expected 1 or more")
        if isinstance(self.rerank, str):
            if self.rerank != "auto":
                raise ValueError(f"rerank {self.rerank!r}: expected 'auto', or a number of candidates")
        elif self.rerank and self.rerank < self.k:
            raise ValueError(f"rerank {self.rerank}: expected k ({self.k}) or more, or 0 for none")
        # Written so that NaN is refused too.
        if self.radius is not None and not self.radius >= 0:
            raise ValueError(f"radius {self.radius}: expected 0 or more")
        if self.tuned:
            limits = self.params is not None and self.params.limits
            candidates = self.rerank not in ("auto", 0)
            if (self.recall is not None and self.time_ms is not None) or candidates or limits:
                raise ValueError("recall, time_ms, or params and rerank: expected one of the three")

    @property
    def tuned(self) -> bool:
        """Whether limits and candidates are to be chosen from the tuned points."""
        return self.recall is not None or self.time_ms is not None


def chosen_params(params: SearchParams | None, default: SearchParams) -> SearchParams:
    """The parameters of a call: its own, or the default ones if it names no limits."""
    return params if params is not None and params.limits else default


def default_candidates(k: int, bits: float) -> int:
    """Candidates that are re-ranked for k answers, with codes of so many bits per dimension.

    Of the true ten that a search visits, .97 to .99 are among 105 candidates with one bit or more per
    dimension (sentence and word embeddings, SIFT with 16 bytes), and .98 among 240 with half a bit (SIFT with
    8 bytes, GIST with 32).
    """
    scarcity = min(MOST_SCARCE, max(1.0, ENOUGH_BITS / max(bits, 1e-9)))
    return k + math.ceil(SPARE_CANDIDATES * math.sqrt(k) * scarcity)


def default_search(first_words: int) -> SearchParams:
    """Parameters for a tree behind a first dictionary of so many words.

    They follow the words and not the leaves: with more leaves below the same words the nearest neighbour is
    nearer, and found in no more of them. R@100 on half a million real SIFT vectors behind 1024 words is .978
    with 64 nodes of level 1, of which pruning leaves 25; on a hundred million generated ones behind
    65,536 words, .906 with 100, of which it leaves 49, and at most .95. Without pruning that takes 37 and 75.
    Widths in between are interpolated. Behind a narrow first dictionary the second level does the work.
    """
    if first_words <= MAX_WORDS:
        return SearchParams(limits=(32, 512))
    first, below = round(64 * (first_words / 1024) ** (1 / 9)), 1024 if first_words < 32_768 else 512
    return SearchParams(limits=(max(48, first), below), pruning_ratio=PRUNING_RATIO)


def default_plane_search(first_words: int) -> SearchParams:
    """Parameters for leaves in planes behind a first dictionary of so many words.

    Leaves in planes are scanned so fast that visiting more nodes pays off: what is not in them, re-ranking
    cannot recover. They hold .97 to .98 of the ten nearest word and sentence embeddings.
    """
    return SearchParams(
        limits=(max(64, round(384 * (first_words / 1024) ** (1 / 3))),), pruning_ratio=PLANE_PRUNING_RATIO
    )


def check_queries(
    queries: ArrayLike, dimension: int, *, bounded: bool = True
) -> tuple[NDArray[np.float32], int]:
    """Queries as float32, padded to whole tiles, and their number; ValueError for invalid ones.

    bounded : refuse queries so long that squared distances would overflow float32
    """
    block = np.asarray(queries)
    if block.dtype.kind not in "uif":
        raise ValueError(f"queries of type {block.dtype}: expected integers or floats")
    if block.ndim == 1:
        block = block[None, :]
    if block.ndim != 2 or block.shape[1] != dimension:
        raise ValueError(f"queries of shape {np.shape(queries)}: expected ({dimension},) or (q, {dimension})")
    count = len(block)
    if count == 0:
        raise ValueError("no queries: expected at least one row")
    rows = count if count <= FEW else padded(count, TILE_ROWS)
    floats = np.zeros((rows, padded(dimension, DIMENSION_STEP)), np.float32)
    if block.dtype.kind in "ui" and block.dtype.itemsize <= SMALL_INTEGER:
        floats[:count, :dimension] = block
        return floats, count
    if block.dtype.itemsize > floats.itemsize:
        with np.errstate(over="ignore"):
            floats[:count, :dimension] = block
    else:
        floats[:count, :dimension] = block
    # One product for all queries: NaN, infinity or a large number in any of them fails the comparison. vdot,
    # unlike dot, gives infinity without a warning.
    if not np.vdot(floats, floats) <= LARGEST_SQUARE:
        _refuse_unusual(floats, bounded=bounded)
    return floats, count


def _refuse_unusual(queries: NDArray[np.float32], *, bounded: bool) -> None:
    """ValueError for the first query (d,) that is not finite or, if `bounded`, too long."""
    wrong = ~np.isfinite(queries).all(axis=1)
    if wrong.any():
        raise ValueError(f"query {wrong.argmax()} holds NaN, infinity or a number too large for float32")
    wide = queries.astype(np.float64)
    long = np.vecdot(wide, wide) > LARGEST_SQUARE
    if bounded and long.any():
        raise ValueError(
            f"query {long.argmax()} is too long: its squared distances overflow float32, "
            "scale vectors and queries down"
        )
