"""Kernel that computes SIFT-like rows from their numbers.

Every sum is a sum of integers below 2**24, held in float32 where that is faster: it is exact, so the bytes
of a row do not depend on the order of additions, on fused multiply-adds or on the machine.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.simd.compiled import kernel

DIMENSION = 128
WORDS = DIMENSION // 8  # 64-bit draws that give one byte for each component
GROUP = 8  # rows computed together, so that the basis is read once for all
CHILDREN = 4
NEIGHBOURS = 32
BINS = 512
Z_BITS = 8  # a component z has standard deviation 2**8 ...
Z_MAX = 1279  # ... and is cut at five of them
OFFSET_SHIFT = 2.0**-10  # offsets are summed in finer units than z
LATENT_SHIFT = 2.0**-12  # latent values have 2**18 per standard deviation, bins 64
SCALE_BITS = 10  # scales are fixed-point numbers, 1.0 is 2**10
STEP_BITS = 8  # positions between two anchors are multiples of 2**-8
NORM = 512.0

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# What a draw is for: numbers of streams that small counters never reach.
_ANCHOR, _CHILD, _STEP = np.uint64(1 << 32), np.uint64(2 << 32), np.uint64(3 << 32)
_OWN, _FACTOR = np.uint64(4 << 32), np.uint64(5 << 32)


class SiftModel(NamedTuple):
    """The generator's model of real descriptors; A anchors, L levels.

    anchors : (A, 128) float32, latent centres, integers with 2**10 per standard deviation.
    neighbours : (A, 32) int64, the nearest anchors of each anchor.
    shares : (A,) uint64, cumulative share of the rows of anchors 0..a, of 2**32.
    spreads : (A,) int64, scale of the rows around the anchor.
    basis : (128, 128) float32, principal axes (rows) of the spread, integers with 2**10 per unit.
    values : (128, 512) uint8, component value of each latent bin: the marginal distributions.
    weights : (L,) int64, standard deviation each level adds to z; the last level is the row's own.
    children : (4,) uint64, cumulative share of a node's children, of 2**32.
    factors : (256,) int64, scales of a child relative to its parent.
    max_step : () int64, positions towards a neighbouring anchor, of 2**8.
    """

    anchors: NDArray[np.float32]
    neighbours: NDArray[np.int64]
    shares: NDArray[np.uint64]
    spreads: NDArray[np.int64]
    basis: NDArray[np.float32]
    values: NDArray[np.uint8]
    weights: NDArray[np.int64]
    children: NDArray[np.uint64]
    factors: NDArray[np.int64]
    max_step: int


class Scratch(NamedTuple):
    """Scratch for a group of rows being computed."""

    words: NDArray[np.uint64]  # (16,)
    offset: NDArray[np.float32]  # (128,)
    z: NDArray[np.float32]  # (8, 128)
    latent: NDArray[np.float32]  # (8, 128)


def new_scratch() -> Scratch:
    """Scratch for one call of `generate_rows` at a time."""
    return Scratch(
        words=np.zeros(WORDS, np.uint64),
        offset=np.zeros(DIMENSION, np.float32),
        z=np.zeros((GROUP, DIMENSION), np.float32),
        latent=np.zeros((GROUP, DIMENSION), np.float32),
    )


@kernel
def _mix(value: np.uint64) -> np.uint64:
    """The finalizer of splitmix64: a bijection whose every output bit depends on every input bit."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@kernel
def _draw(key: np.uint64, number: np.uint64) -> np.uint64:
    """Draw `number` of the stream `key`."""
    return _mix(key + (number + np.uint64(1)) * _GOLDEN)


@kernel
def _pick(shares: NDArray[np.uint64], draw: np.uint64) -> np.integer[Any]:
    """The first entry whose cumulative share exceeds the upper half of a draw."""
    return np.searchsorted(shares, draw >> np.uint64(32), side="right")


@kernel
def _add_offset(z: NDArray[np.float32], node: np.uint64, weight: int, words: NDArray[np.uint64]) -> None:
    """Add to z the offset of a node: `weight` times 128 odd numbers, uniform in -255..255."""
    for j in range(WORDS):
        words[j] = _draw(node, np.uint64(j))
    octets = words.view(np.uint8)
    factor = np.float32(weight)
    for i in range(DIMENSION):
        z[i] += factor * (np.float32(2.0) * np.float32(octets[i]) - np.float32(255.0))


@kernel
def _descend(model: SiftModel, node: np.uint64, key: np.uint64, spread: int, scratch: Scratch) -> None:
    """Sum the offsets of the nodes on a row's way down from an anchor's node, and the row's own."""
    scratch.offset[:] = 0.0
    scale = spread
    levels = len(model.weights)
    for level in range(levels - 1):
        child = _pick(model.children, _draw(key, np.uint64(level)))
        node = _draw(node, _CHILD + np.uint64(child))
        _add_offset(scratch.offset, node, (model.weights[level] * scale) >> SCALE_BITS, scratch.words)
        scale = (scale * model.factors[_draw(node, _FACTOR) >> np.uint64(56)]) >> SCALE_BITS
    weight = (model.weights[levels - 1] * scale) >> SCALE_BITS
    _add_offset(scratch.offset, _draw(key, _OWN), weight, scratch.words)


@kernel
def _start_row(model: SiftModel, seed: np.uint64, row: np.uint64, scratch: Scratch, slot: int) -> None:
    """z and the place between two anchors of one row, into a slot of the group."""
    key = _draw(seed, row)
    anchor = _pick(model.shares, _draw(key, _ANCHOR))
    draw = _draw(key, _STEP)
    other = model.neighbours[anchor, draw >> np.uint64(59)]
    step = (np.int64((draw >> np.uint64(16)) & np.uint64(0xFFFF)) * model.max_step) >> 16
    near, far = np.float32((1 << STEP_BITS) - step), np.float32(step)
    for j in range(DIMENSION):
        scratch.latent[slot, j] = near * model.anchors[anchor, j] + far * model.anchors[other, j]
    node = _draw(_mix(seed), np.uint64(anchor))
    _descend(model, node, key, model.spreads[anchor], scratch)
    for i in range(DIMENSION):
        rounded = np.rint(scratch.offset[i] * np.float32(OFFSET_SHIFT))
        scratch.z[slot, i] = min(max(rounded, np.float32(-Z_MAX)), np.float32(Z_MAX))


@kernel
def _add_axes(basis: NDArray[np.float32], scratch: Scratch) -> None:
    """latent += z basis for all rows of a group: four axes stay in cache while every row uses them."""
    for i in range(0, DIMENSION, 4):
        for slot in range(GROUP):
            a, b, c, d = (
                scratch.z[slot, i],
                scratch.z[slot, i + 1],
                scratch.z[slot, i + 2],
                scratch.z[slot, i + 3],
            )
            latent = scratch.latent[slot]
            for j in range(DIMENSION):
                latent[j] += a * basis[i, j] + b * basis[i + 1, j] + c * basis[i + 2, j] + d * basis[i + 3, j]


@kernel
def _finish_row(values: NDArray[np.uint8], latent: NDArray[np.float32], row: NDArray[np.uint8]) -> None:
    """Give each latent value its component's value, and the row the norm of a descriptor."""
    squares = 0
    for j in range(DIMENSION):
        place = int(np.floor(latent[j] * np.float32(LATENT_SHIFT))) + BINS // 2
        value = values[j, min(max(place, 0), BINS - 1)]
        row[j] = value
        squares += int(value) * int(value)
    factor = NORM / np.sqrt(np.float64(max(squares, 1)))
    for j in range(DIMENSION):
        row[j] = np.uint8(min(np.rint(np.float64(row[j]) * factor), 255.0))


@kernel
def generate_rows(
    model: SiftModel, seed: np.uint64, rows: NDArray[np.uint64], scratch: Scratch, out: NDArray[np.uint8]
) -> None:
    """Rows with the numbers `rows` (n,) of the set `seed` into out (n, 128)."""
    for first in range(0, len(rows), GROUP):
        count = min(GROUP, len(rows) - first)
        for slot in range(count):
            _start_row(model, seed, rows[first + slot], scratch, slot)
        _add_axes(model.basis, scratch)
        for slot in range(count):
            _finish_row(model.values, scratch.latent[slot], out[first + slot])
