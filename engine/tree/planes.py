"""Leaves stored in planes: codes of short dictionaries, two labels to a byte, 32 leaves side by side.

    records   | block 0: P planes of 32 bytes | block 1 | ... | last block | SPARE_BYTES zeros |
    plane     norm of each leaf (if there is one) | labels 2, 3 | labels 4, 5 | ...

Block b holds leaves 32 b .. 32 b + 31, whatever nodes they hang from; leaves behind the last are zeros. The
shuffles that scan a block are described in `simd.instructions.planes`.
"""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import SHORT_WORDS, CodeLayout
from aggtree.engine.simd.instructions.planes import BLOCK_LEAVES, SPARE_BYTES


def allows_planes(layout: CodeLayout) -> bool:
    """Whether all dictionaries behind the first are short."""
    return layout.levels > 1 and max(layout.words[1:]) <= SHORT_WORDS


def plane_count(layout: CodeLayout, norm_bytes: int) -> int:
    """Planes of a block, which are the bytes of a leaf."""
    return norm_bytes + layout.levels // 2


def plane_bytes(leaves: int, layout: CodeLayout, norm_bytes: int) -> int:
    """Bytes of the records of the given number of leaves."""
    blocks = -(-leaves // BLOCK_LEAVES)
    return blocks * BLOCK_LEAVES * plane_count(layout, norm_bytes) + SPARE_BYTES


def pack_planes(rows: NDArray[np.uint8], norm_bytes: int) -> NDArray[np.uint8]:
    """Blocks, one after the other, of rows (n, norm_bytes + labels): a norm, then a byte for each label."""
    labels = rows[:, norm_bytes:]
    planes = norm_bytes + -(-labels.shape[1] // 2)
    blocks = -(-len(rows) // BLOCK_LEAVES)
    packed = np.zeros((blocks * BLOCK_LEAVES, planes), np.uint8)
    packed[: len(rows), :norm_bytes] = rows[:, :norm_bytes]
    packed[: len(rows), norm_bytes:] = labels[:, 0::2]
    packed[: len(rows), norm_bytes : norm_bytes + labels.shape[1] // 2] |= labels[:, 1::2] << 4
    return packed.reshape(blocks, BLOCK_LEAVES, planes).transpose(0, 2, 1).ravel()


def unpack_leaves(
    records: NDArray[np.uint8], leaves: NDArray[np.int64], layout: CodeLayout, norm_bytes: int
) -> NDArray[np.uint8]:
    """Rows (n, norm_bytes + labels) of leaves (n,), as `pack_planes` takes them."""
    planes = plane_count(layout, norm_bytes)
    first = leaves // BLOCK_LEAVES * (BLOCK_LEAVES * planes) + leaves % BLOCK_LEAVES
    stored = records[first[:, None] + BLOCK_LEAVES * np.arange(planes)]
    rows = np.empty((len(leaves), norm_bytes + layout.levels - 1), np.uint8)
    rows[:, :norm_bytes] = stored[:, :norm_bytes]
    labels, pairs = rows[:, norm_bytes:], stored[:, norm_bytes:]
    labels[:, 0::2] = pairs & 15
    labels[:, 1::2] = pairs[:, : labels.shape[1] // 2] >> 4
    return rows
