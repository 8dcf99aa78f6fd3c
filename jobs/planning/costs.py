"""Memory and disk each stage needs: formulas with measured constants, no decisions.

The constants of a process are its memory after importing its libraries and loading every kernel from the
kernel cache, with each page counted once over the process tree (`jobs/running/memory.py`). Arrays are counted
where they are allocated. docs/explanation/memory.md compares projected with measured memory.
"""

import math
from dataclasses import dataclass

from aggtree.engine.clustering.kmeans import COVARIANCE_BLOCK
from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.params import AnnealingParams, Cooling, TreeParams
from aggtree.engine.training.cooling import START_ROWS_PER_WORD
from aggtree.engine.tree.code_order import sort_bytes
from aggtree.engine.tree.planes import plane_count
from aggtree.jobs.planning.training_rows import sample_rows
from aggtree.jobs.running.memory import MIB

DRIVER_BYTES = 256 * MIB  # this process: libraries and kernels, and 41 MiB that stages leave behind
CLUSTER_BYTES = 14 * MIB  # a scheduler inside this process, and its helper process
WORKER_BYTES = 108 * MIB  # one spawned worker, without the pages of libraries it shares
STRANGER_BYTES = 226 * MIB  # a worker of an existing cluster, wherever it is
COMPILE_BYTES = 420 * MIB  # this process and the one that compiles the kernels, before anything else runs
REMOTE_BYTES = 48 * MIB  # libraries of an object store, in each process
BLOCK_BYTES = 8 * MIB  # rows that encoding reads at once, in their own dtype
SAMPLES_PER_PARTITION = 256  # rows looked at to cut a partition of nearly the wanted size
ENCODER_ROWS = 8192  # rows the encoder converts at a time
HEATED: dict[Cooling, int] = {"joint": 0, "kmeans": 5}  # arrays of floats as large as a batch while annealing
START_BYTES = 16 * MIB  # buffers of linear algebra, and what k-means leaves behind
PASSES_BYTES = 64 * MIB  # blocks of the first dictionary's passes that the allocator keeps
SCRATCH_BYTES = 6 * MIB  # small arrays of a task, and what its allocator keeps
MARK_BYTES = 3  # per row, what building notes of it
NODE_BYTES = 14  # label, norm and two starts of a node of a partition
NODE_FILE_BYTES = 13  # of a node in the tree's files
USUAL_NODES_PER_ROW = 0.3  # most nodes seen per row, in a tree with bucket 1
COMMIT_BYTES = 24 * MIB  # buffers of joining the parts and of checksums


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The size of a build: everything its memory depends on.

    item_bytes : bytes of one component of a vector in the source.
    train_rows : rows to train on; 0 if the dictionaries exist.
    source_rows : rows the source holds in memory to read one range (a Dask array's chunk), or 0.
    remote : whether vectors or codes are in an object store.
    """

    rows: int
    dimension: int
    item_bytes: int
    annealing: AnnealingParams
    tree: TreeParams
    batch_rows: int
    shard_rows: int
    train_rows: int
    source_rows: int = 0
    remote: bool = False

    @property
    def words(self) -> tuple[int, ...]:
        """Sizes of the dictionaries."""
        return self.annealing.words

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


def train_bytes(work: Workload, threads: int, ahead: int) -> int:
    """One batch in memory, `ahead` more being read, and the state of training.

    A wide first dictionary is learned before all others: its words, their sums, their layout for products and
    the next words; its words and residues stay in memory. The first batch of the others needs most: they
    start from k-means on a sample, which is held as drawn, rotated, and cut to some dimensions, or as drawn
    and centred while its principal axes are computed. Then all words are solved for at once, or the whole
    batch is copied as heated rows.
    """
    if work.train_rows == 0:
        return 0
    batch = (1 + ahead) * work.batch_rows * work.row_bytes + work.source_rows * work.row_bytes
    # The trainer keeps a copy: bytes as they are, all other numbers as floats.
    batch += work.batch_rows * work.dimension * (1 if work.item_bytes == 1 else 4)
    residue = 4 * work.batch_rows * work.dimension
    widest = max(work.words[work.layout.wide :], default=0)
    sample = min(work.batch_rows, START_ROWS_PER_WORD * widest) * work.dimension
    starting = residue + max(4 * 4 * sample, 2 * 4 * sample + axes_bytes(work.dimension)) + START_BYTES
    heated = HEATED[work.annealing.cooling] * residue
    equations = 12 * work.narrow_words**2 + 24 * work.narrow_words * work.dimension
    annealing = heated + equations + encoder_bytes(work, 0) + threads * encode_block_bytes(work)
    if not work.layout.wide:
        return batch + max(starting, annealing)
    left_over = residue + PASSES_BYTES + max(chooser_bytes(work) + starting, annealing)
    return batch + max(24 * work.words[0] * work.dimension, left_over)


def axes_bytes(dimension: int) -> int:
    """Principal axes of a sample: blocks of its columns and their products, or eigenvectors and scratch."""
    return max(12 * dimension**2 + 4 * 4 * COVARIANCE_BLOCK * dimension, 32 * dimension**2)


def encode_block_bytes(work: Workload) -> int:
    """Memory of the encoder for one block of rows: three arrays of floats, and scratch."""
    return 3 * 4 * ENCODER_ROWS * work.dimension + 8 * MIB


def chooser_bytes(work: Workload) -> int:
    """The words of a wide first dictionary, and again in the order in which they are compared."""
    return 13 * work.words[0] * work.dimension if work.layout.wide else 0


def encoder_bytes(work: Workload, block: int) -> int:
    """An encoder at work on blocks of `block` bytes, or while it computes its tables, whichever is more.

    Kept are the pairs of words in float32 and int16 and the words in float64 and float32.
    """
    pairs, words = work.narrow_words**2, work.narrow_words * work.dimension
    floats = (2 if work.layout.wide else 1) * 4 * ENCODER_ROWS * work.dimension
    making, working = 8 * pairs + 16 * words, 5 * pairs + 12 * words + block + floats + SCRATCH_BYTES
    return chooser_bytes(work) + 4 * words + max(making, working)


def encode_task_bytes(work: Workload) -> int:
    """One task: a block of rows, the codes of a shard, and the shard as zarr writes it, twice."""
    block = max(BLOCK_BYTES, work.row_bytes) * (2 if work.remote else 1) + work.source_rows * work.row_bytes
    copies = 4 if work.remote else 3
    return encoder_bytes(work, block) + copies * work.shard * work.layout.width


def sort_task_bytes(work: Workload) -> int:
    """One task: the codes and ids of a shard, and what sorting allocates."""
    return work.shard * (work.run_row_bytes + sort_bytes(work.layout.width, work.id_bytes))


def sample_bytes(work: Workload) -> int:
    """Per partition, for the samples that cut it: gathered, joined and sorted, after one refinement."""
    return 4 * SAMPLES_PER_PARTITION * (2 * work.run_row_bytes + sort_bytes(work.layout.width, work.id_bytes))


def nodes_per_row(work: Workload) -> float:
    """Most nodes a tree can have per row.

    A node that is not split has more than `direct_leaves` rows, and no row is in two of them. A split
    node has more than `bucket` rows, and a row is in at most one at each level.
    """
    levels, tree = work.layout.levels, work.tree
    if tree.planes:
        return min(1.0, work.words[0] / work.rows)
    return min(levels / (tree.direct_leaves + 1), 1 / (tree.direct_leaves + 1) + levels / (tree.bucket + 1))


def tree_row_bytes(work: Workload) -> int:
    """Per row of a partition: its rows as read and sorted, or sorted and built, whichever is more."""
    sorting = work.run_row_bytes + sort_bytes(work.layout.width, work.id_bytes)
    leaf = work.layout.width + work.tree.norm_bytes + work.id_bytes
    building = work.run_row_bytes + MARK_BYTES + NODE_BYTES * nodes_per_row(work) + leaf
    return math.ceil(max(sorting, building))


def tree_task_bytes(work: Workload) -> int:
    """Memory of a task of the build stage, apart from its partition."""
    return 4 * sum(work.words) * work.dimension + SCRATCH_BYTES


def commit_bytes(work: Workload) -> int:
    """Buffers, and the words of a wide first dictionary three times while they are grouped for queries.

    Then the sample that is measured instead: its vectors and reconstructions, in float64 too, and all words.
    """
    grouping = COMMIT_BYTES + (3 * 4 * work.words[0] * work.dimension if work.layout.wide else 0)
    sample = min(work.rows, sample_rows(work.dimension)) * work.dimension
    return max(grouping, SCRATCH_BYTES + 5 * 8 * sample + 2 * 4 * sum(work.words) * work.dimension)


def tree_disk_bytes(work: Workload) -> int:
    """Approximate disk size of the tree: a leaf stores its code without the label of level 1."""
    if work.tree.planes:
        leaf = plane_count(work.layout, work.tree.norm_bytes) + work.id_bytes
        return work.rows * leaf + NODE_FILE_BYTES * work.words[0]
    suffix = work.layout.width - work.layout.prefix_bytes(1)
    nodes = NODE_FILE_BYTES * min(nodes_per_row(work), USUAL_NODES_PER_ROW)
    return int(work.rows * (suffix + work.tree.norm_bytes + work.id_bytes + nodes))


def code_bytes(work: Workload) -> int:
    """Disk size of the codes."""
    return work.rows * work.layout.width


def index_bytes(work: Workload) -> int:
    """Disk size of the finished index: codes, tree, dictionaries."""
    return code_bytes(work) + tree_disk_bytes(work) + 4 * sum(work.words) * work.dimension


def work_bytes(work: Workload) -> int:
    """Additional disk space while the job runs.

    Runs are removed when all partitions are built, partitions when the tree is committed. The maximum is
    reached at the end of the build stage (runs and partitions) or before the commit (partitions and tree).
    """
    return max(work.rows * work.run_row_bytes, tree_disk_bytes(work))
