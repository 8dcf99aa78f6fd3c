"""The paper's measures of codes, in bits: capacity, and how well codes aggregate neighbourhoods.

Self-information H(I_m) should be large and mutual information I(I_i; I_j) of all codes small (capacity).
Among *local* codes, those of a vector's neighbours, conditional entropy L_m = H(I_m | I_1..I_{m-1}) should
fall fast: the first labels then locate a vector (local aggregation).

Estimates are plug-in: with fewer rows than label combinations entropy comes out too low and mutual
information too high by about (cells − 1) / (2 n ln 2) bits, which `correction` subtracts (Miller-Madow).
"""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.training.information_kernels import count_labels_together


def code_labels(codes: NDArray[np.uint8], layout: CodeLayout) -> NDArray[np.uint16]:
    """Labels (n, M) uint16 of codes (n, width)."""
    codes = np.asarray(codes)
    if codes.ndim != 2 or codes.shape[1] != layout.width or codes.dtype != np.uint8:
        raise ValueError(f"codes {codes.dtype}{codes.shape}: expected uint8 (n, {layout.width})")
    labels = codes[:, int(layout.wide) :].astype(np.uint16)
    if layout.wide:
        labels[:, 0] |= codes[:, 0].astype(np.uint16) << 8
    sizes = np.asarray(layout.words)
    if len(labels) and (labels.max(axis=0) >= sizes).any():
        raise ValueError(f"codes have labels beyond dictionaries of sizes {layout.words}")
    return labels


def entropy(counts: NDArray[np.int64], *, correction: bool = False) -> float:
    """H in bits of the distribution that `counts` (any shape) were drawn from; 0 for no counts."""
    seen = counts[counts > 0].astype(np.float64)
    if len(seen) == 0:
        return 0.0
    share = seen / seen.sum()
    bits = -float((share * np.log2(share)).sum())
    return bits + (len(seen) - 1) / (2 * float(seen.sum()) * np.log(2)) if correction else bits


def self_information(
    codes: NDArray[np.uint8], layout: CodeLayout, *, correction: bool = False
) -> NDArray[np.float64]:
    """H(I_m) of each dictionary's labels, (M,) in bits; log2 K_m is the most possible."""
    labels = code_labels(codes, layout)
    return np.array(
        [
            entropy(np.bincount(labels[:, m], minlength=size), correction=correction)
            for m, size in enumerate(layout.words)
        ]
    )


def mutual_information(
    codes: NDArray[np.uint8], layout: CodeLayout, *, correction: bool = False
) -> NDArray[np.float64]:
    """Matrix (M, M) of I(I_i; I_j) in bits, H(I_m) on the diagonal: the paper's figure of capacity."""
    labels = code_labels(codes, layout)
    single = self_information(codes, layout, correction=correction)
    matrix = np.diag(single)
    for i in range(layout.levels):
        for j in range(i):
            counts = np.zeros((layout.words[i], layout.words[j]), np.int64)
            count_labels_together(
                np.ascontiguousarray(labels[:, i]), np.ascontiguousarray(labels[:, j]), counts
            )
            joint = entropy(counts, correction=correction)
            matrix[i, j] = matrix[j, i] = max(0.0, single[i] + single[j] - joint)
    return matrix


def conditional_entropies(codes: NDArray[np.uint8], layout: CodeLayout) -> NDArray[np.float64]:
    """L_m = H(I_m | I_1..I_{m-1}) in bits, (M,); their sum is the entropy of whole codes."""
    code_labels(codes, layout)
    joint = [0.0]
    for level in range(1, layout.levels + 1):
        prefixes = np.ascontiguousarray(codes[:, : layout.prefix_bytes(level)])
        whole = prefixes.view(np.dtype((np.void, prefixes.shape[1]))).ravel()
        joint.append(entropy(np.unique(whole, return_counts=True)[1]))
    return np.diff(joint)


def capacity(codes: NDArray[np.uint8], layout: CodeLayout) -> float:
    """S = H(I_1, ..., I_M) in bits, at most log2 n of n codes."""
    return float(conditional_entropies(codes, layout).sum())


def local_mutual_information(
    codes: NDArray[np.uint8], neighbours: NDArray[np.int64], layout: CodeLayout
) -> NDArray[np.float64]:
    """Matrix (M, M): the mean over neighbourhoods of the mutual information of their codes.

    neighbours : (q, k) rows of `codes`, the k nearest vectors of each of q vectors.
    """
    if len(neighbours) == 0:
        raise ValueError("no neighbourhoods: expected (q, k) rows of codes")
    labels = code_labels(codes, layout)
    total = np.zeros((layout.levels, layout.levels))
    for rows in neighbours:
        total += _small_mutual_information(labels[rows])
    return total / len(neighbours)


def local_conditional_entropies(
    codes: NDArray[np.uint8], neighbours: NDArray[np.int64], layout: CodeLayout
) -> NDArray[np.float64]:
    """L_m among the codes of neighbours, (M,): the mean over neighbourhoods (q, k) of `codes`' rows."""
    if len(neighbours) == 0:
        raise ValueError("no neighbourhoods: expected (q, k) rows of codes")
    steps = np.array([conditional_entropies(codes[rows], layout) for rows in neighbours])
    means: NDArray[np.float64] = steps.mean(axis=0)
    return means


def _small_mutual_information(labels: NDArray[np.uint16]) -> NDArray[np.float64]:
    """Mutual information of a few labels (k, M), without tables of all label pairs."""
    levels = labels.shape[1]
    single = np.array([entropy(np.unique(labels[:, m], return_counts=True)[1]) for m in range(levels)])
    matrix = np.diag(single)
    for i in range(levels):
        for j in range(i):
            pairs = labels[:, i].astype(np.int64) << 16 | labels[:, j]
            joint = entropy(np.unique(pairs, return_counts=True)[1])
            matrix[i, j] = matrix[j, i] = max(0.0, single[i] + single[j] - joint)
    return matrix
