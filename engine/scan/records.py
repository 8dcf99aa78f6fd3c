"""Records passed to the kernels of a search; `scratch` allocates those that are written to."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LABELS = 256
"""Columns of a distance table for each dictionary but the first, used or not."""
CHUNK = 256
"""Children or leaves scored before any is compared with a bound; if nodes are small, leaves of several."""
SIEVE_PIECE = 512
"""Most leaves sieved before those that passed are listed."""
SCORED = CHUNK + SIEVE_PIECE
"""Most leaves that are scored together."""


class Best(NamedTuple):
    """A list of the best so far, in no order.

    ranks : (c,) int32
    numbers : (c,) uint64, of nodes or leaves
    """

    ranks: NDArray[np.int32]
    numbers: NDArray[np.uint64]


class RowBits(NamedTuple):
    """Which rows of a tree may be answers: bit `first + i` stands for the tree's row i.

    bits : (b,) uint8, read-only, bit n % 8 of byte n // 8; rows beyond them are not allowed
    first : where the tree's rows begin among those of the whole index
    everything : whether all rows may be answers, and the bits are not looked at
    """

    bits: NDArray[np.uint8]
    first: np.uint64
    everything: bool


class TableWords(NamedTuple):
    """Words as columns, twice: by dimension for one query, in panels for many.

    rows : (d, columns) float32, panels : (columns / LANES, d, LANES) float32, d a multiple of 8
    start : (columns,) float32, added to each column
    """

    rows: NDArray[np.float32]
    panels: NDArray[np.float32]
    start: NDArray[np.float32]


class ByteWords(NamedTuple):
    """Words as columns of bytes, for a tree whose leaves are in planes: a quarter of the memory to read.

    quads : (columns / PANEL, d / QUAD, PANEL, QUAD) uint8, each word in units of its own, zero as ZERO
    units : (columns,) float32; start : (columns,) float32, added to each column
    """

    quads: NDArray[np.uint8]
    units: NDArray[np.float32]
    start: NDArray[np.float32]


class FirstLevel(NamedTuple):
    """Level-1 nodes by group; without groups, only their number counts.

    nodes : number of level-1 nodes, groups : number of groups, 0 for none
    group_start : (groups + 1,) int64, first column of each group, multiples of LANES
    members : (groups,) int64, nodes of each group, in its first columns
    steps : (groups,) float32; quads : (columns * d,) uint8, for each group an array (d / QUAD, columns of the
        group, QUAD) of words less the centre: a word is centre + step * (byte - ZERO), rounded
    offsets : (columns,) float32, (‖x̂‖² of the node - ‖centre‖²) / (-2 step)
    numbers : (columns,) int64, of the nodes; what columns of no node hold is not read
    words : (K, d) float32, of the first dictionary; labels : (nodes,) uint16, the word of each node
    norms : (nodes,) float32
    """

    nodes: int
    groups: int
    group_start: NDArray[np.int64]
    members: NDArray[np.int64]
    steps: NDArray[np.float32]
    quads: NDArray[np.uint8]
    offsets: NDArray[np.float32]
    numbers: NDArray[np.int64]
    words: NDArray[np.float32]
    labels: NDArray[np.uint16]
    norms: NDArray[np.float32]


class FirstScratch(NamedTuple):
    """Memory of one thread for the first level of t queries, which look into p groups each.

    ranks : (t, c + w) int32, of the nodes scored, c of them at most, a multiple of LANES, and w columns in
        the widest group; places, columns : (c,) int64, of the nearest; minima : (LEAST,) int32, scratch
    queries : (t, d) int8, units : (t,) float32, sums : (t,) int32, see `query_bytes`
    groups : the nearest groups; chosen : (t, p) int64, their numbers, ascending, counts : (t,) int64, how
        many; starts : (t, p + 1) int64, how many nodes were scored before each
    near : (t, n) uint64, the nearest nodes of each query, n at most, near_counts : (t,) int64, how many
    pair_queries, pair_places : (t * p,) int64, pairs of a query and a place in `chosen`, by group
    ends : (groups + 1,) int64, scratch
    no_names : (0,) uint64, see `cut_best`
    """

    ranks: NDArray[np.int32]
    places: NDArray[np.int64]
    columns: NDArray[np.int64]
    minima: NDArray[np.int32]
    queries: NDArray[np.int8]
    units: NDArray[np.float32]
    sums: NDArray[np.int32]
    groups: Best
    chosen: NDArray[np.int64]
    counts: NDArray[np.int64]
    starts: NDArray[np.int64]
    near: NDArray[np.uint64]
    near_counts: NDArray[np.int64]
    pair_queries: NDArray[np.int64]
    pair_places: NDArray[np.int64]
    ends: NDArray[np.int64]
    no_names: NDArray[np.uint64]


class LeafParts(NamedTuple):
    """Leaves of several nodes that are scored together, those of part p as places[p] .. places[p + 1].

    places : (p + 1,) int64; leaves : (p,) int64, the first leaf of each part, records : (p,) int64, where in
        the records it begins; bases : (p,) float32, what its distances share
    """

    places: NDArray[np.int64]
    leaves: NDArray[np.int64]
    records: NDArray[np.int64]
    bases: NDArray[np.float32]


class NodeRanges(NamedTuple):
    """Where the leaves and children of the kept nodes lie in the tree, (c,) int64 each."""

    first_leaf: NDArray[np.int64]
    leaf_stop: NDArray[np.int64]
    first_child: NDArray[np.int64]
    child_stop: NDArray[np.int64]


class Sieve(NamedTuple):
    """Byte tables of one level; memory of one thread.

    tables : (p, 256) uint8, p a multiple of PLANES, a table for each byte of a record, zeros beyond
    lows : (p,) float32, l_j of each label
    Of the tables as they were last made, (1,) float32 each:
        lowest : Σ l_j; largest : Σ of the largest |t_j|, inf where it is not known
        scale : s, 0 where there are no tables
    nearest : (1,) float32, the least base of a node so far
    minima : (LANES,) float32, scratch; masks : (SIEVE_PIECE / SIEVED,) uint64, a bit for each leaf
    """

    tables: NDArray[np.uint8]
    lows: NDArray[np.float32]
    lowest: NDArray[np.float32]
    largest: NDArray[np.float32]
    scale: NDArray[np.float32]
    nearest: NDArray[np.float32]
    minima: NDArray[np.float32]
    masks: NDArray[np.uint64]


class PlaneTables(NamedTuple):
    """What leaves in planes need: integer tables of one query, in memory of one thread, and what nodes give.

    lengths : (nodes of level 1,) float32, base and centre: what the leaves of a node share of their distances
        is base + (distance of their node - centre) * length of the node
    tables : (2, planes + 3, TABLE_BYTES) uint8, see `scan_block`
    lows : (M - 1,) float32, the least entry of each short dictionary's distance table
    sums : (BLOCK_LEAVES,) uint16, of the block scanned last
    query : (d,) int8, in bytes
    """

    lengths: NDArray[np.float32]
    base: np.float32
    centre: np.float32
    tables: NDArray[np.uint8]
    lows: NDArray[np.float32]
    sums: NDArray[np.uint16]
    query: NDArray[np.int8]


class SearchPlan(NamedTuple):
    """What all queries of a call share.

    limits : (M,) int64, nodes kept at level 1..M; pruning_ratio : of level 1, see `cut_beyond`
    room : (M,) int64, nodes a list may hold before it is cut to the limit
    record_sizes : (M + 1,) int64, bytes of a leaf record of each level
    norm_bytes : bytes of a leaf's norm, k : answers wanted
    first_columns : columns of a table before those of dictionary 2
    first : the first level, probes : groups of it looked into, group_pruning_ratio : see `cut_beyond`
    sieved : whether leaves are sieved, sieve_index : (M + 1, 64) uint8, how `sieve_64` reads those of a level
    """

    limits: NDArray[np.int64]
    pruning_ratio: np.float32
    room: NDArray[np.int64]
    record_sizes: NDArray[np.int64]
    norm_bytes: int
    first_columns: int
    k: int
    first: FirstLevel
    probes: int
    group_pruning_ratio: np.float32
    sieved: bool
    sieve_index: NDArray[np.uint8]


class Scratch(NamedTuple):
    """Memory of one thread, sized by the limits and k, not by the tree.

    tables : (b, columns) float32, squares : (b,) float32, distance tables of a block of queries
    first : what the first level needs
    nodes, children, answers : the best so far, and `spare` to sort them
    bins : (c,) int32, to sort them
    ranges : leaves and children of the nodes
    values : (SCORED,) float32, distances of children or leaves; places : (SCORED,) int64, of the near ones
    parts : up to SCORED nodes, pieces of them, or single leaves, whose leaves are among the values
    sieve : tables that find leaves of a node that need not be scored
    """

    tables: NDArray[np.float32]
    squares: NDArray[np.float32]
    first: FirstScratch
    nodes: Best
    children: Best
    answers: Best
    spare: Best
    bins: NDArray[np.int32]
    ranges: NodeRanges
    values: NDArray[np.float32]
    places: NDArray[np.int64]
    parts: LeafParts
    sieve: Sieve
