"""What a search is given besides the tree: what all queries of a call share, and the memory of a thread."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.scan.first_level_kernels import FirstLevel, FirstScratch
from aggtree.engine.scan.leaf_kernels import LeafParts
from aggtree.engine.scan.sieve_kernels import SIEVE_PIECE, Sieve
from aggtree.engine.scan.top_k_kernels import Best

LABELS = 256
# Children or leaves scored before any is compared with a bound; leaves of several nodes if these are small.
CHUNK = 256
# Most leaves that are scored together.
SCORED = CHUNK + SIEVE_PIECE


class SearchPlan(NamedTuple):
    """What all queries of a call share.

    limits : (M,) int64, nodes kept at level 1..M; reach : how far those of level 1 may be, see `cut_beyond`
    room : (M,) int64, nodes a list may hold before it is cut to the limit
    record_sizes : (M + 1,) int64, bytes of a leaf record of each level
    norm_bytes : bytes of a leaf's norm, k : answers wanted
    first_columns : columns of a table before those of dictionary 2
    first : the first level, probes : groups of it looked into, group_reach : how far they may be
    sieved : whether leaves are sieved, sieve_index : (M + 1, 64) uint8, how `sieve_64` reads those of a level
    """

    limits: NDArray[np.int64]
    reach: np.float32
    room: NDArray[np.int64]
    record_sizes: NDArray[np.int64]
    norm_bytes: int
    first_columns: int
    k: int
    first: FirstLevel
    probes: int
    group_reach: np.float32
    sieved: bool
    sieve_index: NDArray[np.uint8]


class Scratch(NamedTuple):
    """Memory of one thread, sized by the limits and k, not by the tree.

    tables : (b, columns) float32, squares : (b,) float32, look-up tables of a block of queries
    first : what the first level needs
    nodes, children, answers : the best so far, and `spare` to sort them
    bins : (c,) int32, to sort them
    ranges : (c, 4) int64, leaves and children of the nodes
    values : (SCORED,) float32, distances of children or leaves; places : (SCORED,) int64, of the near ones
    parts : up to SCORED nodes, pieces of them, or single leaves, whose leaves are among the values
    sieve : tables that tell which leaves of a node are not worth to be scored
    """

    tables: NDArray[np.float32]
    squares: NDArray[np.float32]
    first: FirstScratch
    nodes: Best
    children: Best
    answers: Best
    spare: Best
    bins: NDArray[np.int32]
    ranges: NDArray[np.int64]
    values: NDArray[np.float32]
    places: NDArray[np.int64]
    parts: LeafParts
    sieve: Sieve
