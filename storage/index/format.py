"""The index directory as code; docs/reference/format.md describes it in words.

    sift.index/
      manifest.json          the committed build: what it is, and every file with size and checksums
      build-<id>/            never changed after its commit
        dictionaries         words, norm ranges, transform (array file)
        first_level          groups of a very wide first level (array file); optional
        codes.zarr/          zarr v3 array (rows, width) uint8, sharded
        tree/<array>         raw little-endian arrays, no header; dtype and length are in the manifest
        own_ids              the user's id of each row, int64, if there are any
      live-<crc>             a bit for each row that was not deleted, if any was
      report.json            what the build took; optional, beside the index
      tuning.json            what was measured by searching; optional, beside the index
      work-<id>/             state of a build that is not finished
      lock                   names the process that builds

The tree's nodes are in breadth-first order, level after level, leaves in the order of their nodes, so
the position of every level follows from the counts per level: `TreeCounts` derives all lengths.
"""

import re
from dataclasses import dataclass
from itertools import accumulate

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.tree.planes import plane_bytes

FORMAT = "aggtree index"
FORMAT_VERSION = 1
EXTENDED_VERSION = 2
"""Of an index with own ids or another metric than l2, which a reader of version 1 would not understand."""
GROWN_VERSION = 3
"""Of an index of several segments or sources, or with deleted rows."""
PLANES_VERSION = 4
"""Of an index whose leaves are stored in planes, with segments or without."""
TRANSFORMED_VERSION = 5
"""Of an index whose vectors were moved or scaled before they were quantized."""
VERSIONS = (FORMAT_VERSION, EXTENDED_VERSION, GROWN_VERSION, PLANES_VERSION, TRANSFORMED_VERSION)

MANIFEST = "manifest.json"
LOCK = "lock"
DICTIONARIES = "dictionaries"
FIRST_GROUPS = "first_level"
CODES = "codes.zarr"
TREE = "tree"
OWN_IDS = "own_ids"
REPORT = "report.json"
TUNING = "tuning.json"
LIVE_PREFIX = "live-"
BUILD_PREFIX = "build-"
WORK_PREFIX = "work-"
BUILD_ID = re.compile(r"[0-9a-f]{12}")

MAX_COUNT = 2**48
"""Nodes, leaves and rows stay below, so that no product of counts and bytes overflows 64 bits."""


@dataclass(frozen=True)
class ArraySpec:
    """One file of `tree/`: its name, the dtypes it may have, and what an element is."""

    name: str
    dtypes: tuple[str, ...]
    meaning: str


ARRAYS = (
    ArraySpec("first_labels", ("<u2",), "label of each node of level 1"),
    ArraySpec("labels", ("|u1",), "low byte of the label of each node's last dictionary; 0 for the root"),
    ArraySpec("norms", ("<f4",), "squared norm of the reconstruction of each node's prefix"),
    ArraySpec("child_start", ("<u4", "<u8"), "first child of each node; the end of the last one's"),
    ArraySpec("leaf_start", ("<u4", "<u8"), "first leaf of each node; the end of the last one's"),
    ArraySpec("records", ("|u1",), "norm and suffix of each leaf; or blocks of planes, then 32 zeros"),
    ArraySpec("ids", ("<u4", "<u8"), "row number of each leaf"),
)


def build_name(build: str) -> str:
    """Name of the directory of a committed build."""
    return BUILD_PREFIX + build


def work_name(build: str) -> str:
    """Name of the directory of a build that is not finished."""
    return WORK_PREFIX + build


@dataclass(frozen=True, kw_only=True)
class TreeCounts:
    """How many nodes and leaves each level has, and the lengths and dtypes that follow.

    level_nodes, level_leaves : M + 1 counts, of level 0 (the root) to level M.
    planes : whether leaves are stored in planes, which are all in level 1.
    """

    layout: CodeLayout
    norm_bytes: int
    planes: bool = False
    level_nodes: tuple[int, ...]
    level_leaves: tuple[int, ...]

    @property
    def nodes(self) -> int:
        return sum(self.level_nodes)

    @property
    def leaves(self) -> int:
        return sum(self.level_leaves)

    @property
    def level_start(self) -> tuple[int, ...]:
        """First node of level 0..M, then the number of nodes."""
        return tuple(accumulate(self.level_nodes, initial=0))

    @property
    def level_leaf(self) -> tuple[int, ...]:
        """First leaf of level 0..M, then the number of leaves."""
        return tuple(accumulate(self.level_leaves, initial=0))

    @property
    def record_start(self) -> tuple[int, ...]:
        """First byte of the records of level 0..M, then their number of bytes."""
        if self.planes:
            end = plane_bytes(self.leaves, self.layout, self.norm_bytes)
            return (0, 0, *(end for _ in self.level_leaves[1:]))
        sizes = (count * self.record_bytes(level) for level, count in enumerate(self.level_leaves))
        return tuple(accumulate(sizes, initial=0))

    def record_bytes(self, level: int) -> int:
        """Bytes of a leaf of `level`: the norm, and the labels the path does not give.

        For leaves in planes, their size when unpacked: a byte for each label.
        """
        return self.norm_bytes + self.layout.width - self.layout.prefix_bytes(level)

    @property
    def offset_dtype(self) -> str:
        """Data type of child_start and leaf_start."""
        return "<u4" if self.nodes < 2**32 and self.leaves < 2**32 else "<u8"

    def lengths(self) -> dict[str, int]:
        """Number of elements of each array."""
        nodes = self.nodes
        return {
            "first_labels": self.level_nodes[1],
            "labels": nodes,
            "norms": nodes,
            "child_start": nodes + 1,
            "leaf_start": nodes + 1,
            "records": self.record_start[-1],
            "ids": self.leaves,
        }
