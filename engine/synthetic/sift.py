"""SIFT-like vectors computed from their row numbers, for data sets larger than the disk.

A row is a sum of offsets along a path of a tree that exists only as a hash function: the row's number picks
an anchor (a typical descriptor), a position between it and a neighbouring anchor, and one of four children
on each level; every node's offset is drawn from a counter-based generator keyed by its path. Offsets shrink
from level to level, so the more rows there are, the deeper the path that the nearest two share, and distances
to neighbours shrink slowly, as they do in real data. The sum lives in a latent space with the correlations
of real descriptors; a table for each component then gives it the marginal distribution of real descriptors,
and the row is scaled to norm 512 and rounded. docs/explanation/synthetic.md shows how close it comes.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.synthetic.sift_kernels import (
    BINS,
    CHILDREN,
    DIMENSION,
    NEIGHBOURS,
    STEP_BITS,
    Z_MAX,
    SiftModel,
    generate_rows,
    new_scratch,
)

MAX_ANCHORS = 65_536
MAX_LEVELS = 32
EXACT = 2**24  # integers up to here are exact in float32


def check_model(model: SiftModel) -> None:
    """Refuse a model that the kernel could not index, or whose sums would not be exact."""
    anchors, levels = len(model.anchors), len(model.weights)
    shapes: dict[str, tuple[int, ...]] = {
        "anchors": (anchors, DIMENSION),
        "neighbours": (anchors, NEIGHBOURS),
        "shares": (anchors,),
        "spreads": (anchors,),
        "basis": (DIMENSION, DIMENSION),
        "values": (DIMENSION, BINS),
        "weights": (levels,),
        "children": (CHILDREN,),
        "factors": (256,),
    }
    for name, shape in shapes.items():
        if getattr(model, name).shape != shape:
            raise ValueError(f"model array {name} has shape {getattr(model, name).shape}, expected {shape}")
    if not 1 <= anchors <= MAX_ANCHORS or not 1 <= levels <= MAX_LEVELS:
        raise ValueError(f"model of {anchors} anchors and {levels} levels")
    if model.neighbours.min() < 0 or model.neighbours.max() >= anchors:
        raise ValueError("model: a neighbour is no anchor")
    for name in ("shares", "children"):
        _check_shares(name, getattr(model, name))
    if not 0 <= model.max_step <= 1 << STEP_BITS:
        raise ValueError(f"model: max_step {model.max_step} is more than {1 << STEP_BITS}")
    _check_exact(model)


def _check_shares(name: str, shares: NDArray[np.uint64]) -> None:
    values = shares.astype(object)
    if values[-1] != 1 << 32 or any(high < low for low, high in pairwise(values)):
        raise ValueError(f"model: {name} must ascend to 2**32")


def _check_exact(model: SiftModel) -> None:
    """ValueError if sums of offsets or of latent values could exceed the exact range of float32."""
    for name in ("weights", "spreads", "factors"):
        if getattr(model, name).min() < 0 or getattr(model, name).max() >= 1 << 16:
            raise ValueError(f"model: {name} must be 0 to 65535")
    scale = int(model.spreads.max())
    offsets = 0
    for weight in model.weights.tolist():
        offsets += (weight * scale >> 10) * 255
        scale = scale * int(model.factors.max()) >> 10
    axes = np.abs(model.basis).sum(axis=0).max() * Z_MAX
    latent = axes + np.abs(model.anchors).max() * (1 << STEP_BITS)
    integers = all((array == np.rint(array)).all() for array in (model.basis, model.anchors))
    if offsets >= EXACT or not latent < EXACT or not integers:
        raise ValueError("model: its sums are not exact in float32")


class SyntheticSift:
    """The endless set number `seed` of SIFT-like rows; safe to use from several threads."""

    dimension = DIMENSION

    def __init__(self, model: SiftModel, seed: int) -> None:
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed {seed}: expected 0 to 2**63 - 1")
        check_model(model)
        self._model = model._replace(max_step=int(model.max_step))
        self._seed = np.uint64(seed)

    def take(self, numbers: NDArray[Any]) -> NDArray[np.uint8]:
        """The rows with these numbers, (n, 128) uint8."""
        out = np.empty((len(numbers), DIMENSION), np.uint8)
        rows = np.ascontiguousarray(numbers, np.uint64)
        generate_rows(self._model, self._seed, rows, new_scratch(), out)
        return out

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Rows start..stop, (stop - start, 128) uint8."""
        return self.take(np.arange(start, stop, dtype=np.uint64))
