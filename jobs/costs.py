"""Memory and disk each stage needs: formulas with measured constants, no decisions.

A process's constants are what it takes after importing its libraries and running every kernel once, by PSS;
`bench` measures projected against peak. Arrays are counted where they are allocated.
"""

import math
from dataclasses import dataclass

from aggtree.engine.code_order import sort_bytes
from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.params import TreeParams
from aggtree.jobs.memory import MIB

DRIVER_BYTES = 220 * MIB  # this process with all libraries; 85 MiB of it only while kernels are compiled
CLUSTER_BYTES = 30 * MIB  # a scheduler inside this process, and its helper process
WORKER_BYTES = 145 * MIB  # one spawned worker, kernels loaded from their cache
BLOCK_BYTES = 8 * MIB  # rows that encoding reads at once, in their own dtype
SAMPLES_PER_PART = 256  # rows looked at to cut a partition of nearly the wanted size
ENCODER_ROWS = 8192  # rows the encoder converts at a time
MARK_BYTES = 3  # per row, what building notes of it
NODE_BYTES = 14  # label, norm and two starts of a node of a part
NODE_FILE_BYTES = 13  # of a node in the tree's files
USUAL_NODES_PER_ROW = 0.3  # most nodes seen per row, in a tree with bucket 1
STITCH_BYTES = 48 * MIB  # buffers of stitching and checksums


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The size of a build: everything its memory depends on.

    item_bytes : bytes of one component of a vector in the source.
    source_rows : rows the source holds in memory to read one range (a Dask array's chunk), or 0.
    """

    rows: int
    dimension: int
    item_bytes: int
    words: tuple[int, ...]
    beam: int
    batch_rows: int
    shard_rows: int
    train_rows: int
    tree: TreeParams
    source_rows: int = 0

    @property
    def layout(self) -> CodeLayout:
        return CodeLayout(self.words)

    @property
    def row_bytes(self) -> int:
        return self.dimension * self.item_bytes

    @property
    def id_bytes(self) -> int:
        return 4 if self.rows <= 2**32 else 8

    @property
    def run_row_bytes(self) -> int:
        """Bytes of one row of a sorted run: code and id."""
        return self.layout.width + self.id_bytes

    @property
    def shards(self) -> int:
        return -(-self.rows // self.shard_rows)

    @property
    def shard(self) -> int:
        """Rows of the largest shard."""
        return min(self.rows, self.shard_rows)

    @property
    def narrow_words(self) -> int:
        """Words of all dictionaries that meet in cross tables: all but a wide first one."""
        return sum(self.words[self.layout.wide :])


def dictionary_bytes(work: Workload) -> int:
    """Dictionaries with the cross tables 2·c'ᵀc of beam encoding."""
    return 4 * sum(work.words) * work.dimension + 4 * work.narrow_words**2


def train_bytes(work: Workload, threads: int, ahead: int) -> int:
    """One batch in memory and `ahead` more being read, its residue, and the normal equations.

    The first batch needs most: its residue is rotated into a second array while dictionaries start.
    """
    batch = (1 + ahead) * work.batch_rows * work.row_bytes + work.source_rows * work.row_bytes
    residues = 2 * 4 * work.batch_rows * work.dimension
    normal = 12 * work.narrow_words**2
    right = 3 * 8 * sum(work.words) * work.dimension
    return batch + residues + normal + right + dictionary_bytes(work) + threads * encode_block_bytes(work)


def encode_block_bytes(work: Workload) -> int:
    """What the encoder allocates for the rows it works on: three arrays of floats, and scratch."""
    return 3 * 4 * ENCODER_ROWS * work.dimension + 8 * MIB


def encode_bytes(work: Workload) -> int:
    """One task: a block of rows, the codes of a shard, and the shard as zarr writes it."""
    rows = max(1, BLOCK_BYTES // work.row_bytes)
    block = rows * work.row_bytes * 2 + work.source_rows * work.row_bytes
    return block + 4 * work.shard * work.layout.width + dictionary_bytes(work) + encode_block_bytes(work)


def sort_task_bytes(work: Workload) -> int:
    """One task: the codes and ids of a shard, and what sorting allocates."""
    return work.shard * (2 * work.run_row_bytes + sort_bytes(work.layout.width, work.id_bytes))


def sample_bytes(work: Workload) -> int:
    """Per partition, for the samples that cut it: gathered, joined and sorted, after one refinement."""
    return 4 * SAMPLES_PER_PART * (2 * work.run_row_bytes + sort_bytes(work.layout.width, work.id_bytes))


def nodes_per_row(work: Workload) -> float:
    """Most nodes a tree can have per row.

    A node that is not split has more than `stray` rows, and no row is in two of them. A split node has more
    than `bucket` rows, and a row is in at most one at each level.
    """
    levels, tree = work.layout.levels, work.tree
    return min(levels / (tree.stray + 1), 1 / (tree.stray + 1) + levels / (tree.bucket + 1))


def tree_row_bytes(work: Workload) -> int:
    """Per row of a partition: its rows as read and sorted, or sorted and built, whichever is more."""
    sorting = work.run_row_bytes + sort_bytes(work.layout.width, work.id_bytes)
    leaf = work.layout.width + work.tree.norm_bytes + work.id_bytes
    building = work.run_row_bytes + MARK_BYTES + NODE_BYTES * nodes_per_row(work) + leaf
    return math.ceil(max(sorting, building))


def tree_task_bytes(work: Workload) -> int:
    """What a task of the tree stage needs whatever the size of its partition."""
    return 4 * sum(work.words) * work.dimension + 16 * MIB


def tree_disk_bytes(work: Workload) -> int:
    """Disk of the tree, about: a leaf keeps what level 1 does not tell of its code."""
    suffix = work.layout.width - work.layout.prefix_bytes(1)
    nodes = NODE_FILE_BYTES * min(nodes_per_row(work), USUAL_NODES_PER_ROW)
    return int(work.rows * (suffix + work.tree.norm_bytes + work.id_bytes + nodes))


def code_bytes(work: Workload) -> int:
    """Disk of the codes."""
    return work.rows * work.layout.width


def index_bytes(work: Workload) -> int:
    """Disk of the finished index: codes, tree, dictionaries."""
    return code_bytes(work) + tree_disk_bytes(work) + 4 * sum(work.words) * work.dimension


def work_bytes(work: Workload) -> int:
    """Disk used on top of that while the job runs.

    Runs are removed when all parts are built, parts when the tree is committed: the most is there at the
    end of building, runs and parts, or of stitching, parts and tree.
    """
    return max(work.rows * work.run_row_bytes, tree_disk_bytes(work))
