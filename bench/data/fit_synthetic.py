"""Learn the model of the generated source from the embedded descriptors.

    python -m bench fit_synthetic      # writes aggtree/data/sift_model.bin

Each component is turned into normal scores, so that correlations can be described by a Gaussian and marginal
distributions by tables. k-means finds the anchors; what is left around them gives the principal axes. The
constants below were chosen to bring the table of `python -m bench calibrate_synthetic` into agreement.
"""

import argparse
from itertools import accumulate
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.synthetic.sift import check_model
from aggtree.engine.synthetic.sift_kernels import BINS, NEIGHBOURS, SiftModel
from aggtree.storage.sources.base import open_source
from aggtree.storage.sources.sift_model import ANCHORS, LEVELS, model_path, pack_model

SEED = 0
BRANCHING = 4
INTRINSIC_DIMENSION = 20.0  # rows within distance s of a row grow as s**20
CHILD_SHARES = (0.4, 0.3, 0.2, 0.1)
SCALE_SPREAD = 0.11  # of the logarithm of a child's scale relative to its parent's; few are much denser
MAX_STEP = 0.65  # how far towards the neighbouring anchor a row may lie
SPECTRUM_POWER = 1.15  # steepens the spectrum, which rounding and the tables flatten

Floats = NDArray[np.float64]


def mirrored(vectors: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Descriptors of the mirrored photographs: rows of cells upside down, orientations negated."""
    cells = np.arange(128).reshape(4, 4, 8)[::-1]
    return vectors[:, cells[:, :, -np.arange(8) % 8].reshape(-1)]


def normal_scores(vectors: NDArray[np.uint8]) -> tuple[Floats, NDArray[np.uint8]]:
    """Latent values (n, 128) with unit variance, and for each component the value of each latent bin."""
    rows = len(vectors)
    normal = NormalDist()
    scores = np.array([normal.inv_cdf((i + 0.5) / rows) for i in range(rows)])
    centres = (np.arange(BINS) + 0.5 - BINS // 2) / 64
    quantiles = np.array([normal.cdf(centre) for centre in centres])
    latent = np.empty(vectors.shape)
    values = np.empty((vectors.shape[1], BINS), np.uint8)
    for j, column in enumerate(vectors.T):
        # Equal values share their mean score: breaking ties at random would add noise to every axis.
        counts = np.bincount(column, minlength=256)
        means = np.bincount(np.sort(column), scores, minlength=256) / np.maximum(counts, 1)
        latent[:, j] = means[column] / means[column].std()
        values[j] = np.rint(np.quantile(column, quantiles))
    return latent, values


def assign(points: Floats, centres: Floats) -> NDArray[np.intp]:
    """Nearest centre of each point."""
    return np.argmin((centres**2).sum(axis=1) - 2 * points @ centres.T, axis=1)


def kmeans(points: Floats, count: int, rounds: int = 15) -> NDArray[np.intp]:
    """Labels of a plain k-means; an empty cluster takes a random point."""
    generator = np.random.default_rng(SEED)
    centres = points[generator.permutation(len(points))[:count]]
    for _ in range(rounds):
        labels = assign(points, centres)
        centres = cluster_means(points, labels, count)
        empty = np.bincount(labels, minlength=count) == 0
        centres[empty] = points[generator.integers(0, len(points), int(empty.sum()))]
    return assign(points, centres)


def cluster_means(points: Floats, labels: NDArray[np.intp], count: int) -> Floats:
    sums = np.stack([np.bincount(labels, column, minlength=count) for column in points.T], axis=1)
    return sums / np.maximum(np.bincount(labels, minlength=count), 1)[:, None]


def axes_and_spreads(residue: Floats, labels: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Principal axes (rows, scaled) of the residue, and each cluster's scale relative to all."""
    counts = np.bincount(labels, minlength=ANCHORS)
    within = residue.T @ residue / (len(residue) - ANCHORS)
    variances, vectors = np.linalg.eigh(within)
    steeper = variances**SPECTRUM_POWER
    steeper *= variances.sum() / steeper.sum()
    # Small clusters are drawn towards the mean as if they had five more rows of average spread.
    sums = np.bincount(labels, (residue**2).sum(axis=1), minlength=ANCHORS)
    spreads = np.sqrt((sums / np.trace(within) + 5) / (counts + 4))
    return (vectors * np.sqrt(steeper)).T[::-1], spreads


def level_weights() -> Floats:
    """Standard deviation that each level adds: what is left after l levels shrinks as 4**(-2l/D)."""
    left = np.append(BRANCHING ** (-2 * np.arange(LEVELS) / INTRINSIC_DIMENSION), 0.0)
    return np.sqrt(left[:-1] - left[1:])


def fit(vectors: NDArray[np.uint8]) -> SiftModel:
    """The model of the descriptors (n, 128)."""
    vectors = np.concatenate([vectors, mirrored(vectors)])
    latent, values = normal_scores(vectors)
    labels = kmeans(vectors.astype(np.float64), ANCHORS)
    anchors = cluster_means(latent, labels, ANCHORS)
    axes, spreads = axes_and_spreads(latent - anchors[labels], labels)
    distances = (anchors**2).sum(axis=1) - 2 * anchors @ anchors.T
    np.fill_diagonal(distances, np.inf)
    shares = np.cumsum(np.bincount(labels, minlength=ANCHORS)) / len(labels)
    exponential = -np.log((np.arange(256) + 0.5) / 256)
    factors = np.exp(SCALE_SPREAD * (1 - exponential))
    # Weights: z has 2**8 per standard deviation and offsets 2**10 more; an odd number uniform in -255..255
    # has variance (4**8 - 1) / 3.
    weights = level_weights() * 2**18 / np.sqrt((4**8 - 1) / 3)
    return SiftModel(
        anchors=np.rint(anchors * 2**10).astype(np.float32),
        neighbours=np.argsort(distances, axis=1)[:, :NEIGHBOURS].astype(np.int64),
        shares=np.rint(shares * 2**32).astype(np.uint64),
        spreads=np.rint(spreads * 2**10).astype(np.int64),
        basis=np.rint(axes * 2**10).astype(np.float32),
        values=values,
        weights=np.rint(weights).astype(np.int64),
        children=np.rint(np.array(list(accumulate(CHILD_SHARES))) * 2**32).astype(np.uint64),
        factors=np.rint(factors * 2**10).astype(np.int64),
        max_step=round(MAX_STEP * 2**8),
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", default="demo:base", help="vectors of dimension 128, uint8")
    parser.add_argument("--out", type=Path, default=model_path())
    options = parser.parse_args(arguments)
    with open_source(options.source) as source:
        model = fit(source.read(0, source.rows))
    check_model(model)
    options.out.write_bytes(pack_model(model))
    return 0
