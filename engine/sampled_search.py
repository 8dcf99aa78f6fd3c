"""Search a sample of the rows of an index, to measure the quality of its codes.

A tree of a sample is searched without limits. Its answers may miss true neighbours for two reasons: codes
describe rows with an error, or norms and sums of the search are too coarse for these rows. Ranking by the
exact distance to each reconstruction shows what the codes alone allow.
"""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import Dictionaries
from aggtree.engine.params import Metric, SearchParams, TreeParams
from aggtree.engine.quality import Quality
from aggtree.engine.search.metrics import make_searcher
from aggtree.engine.simd.primitive import JIT
from aggtree.engine.tree.layout import build_tree

QUERIES = 64 if JIT else 4
NEIGHBOURS = 10


def measure_quality(
    rows: NDArray[np.float32],
    codes: NDArray[np.uint8],
    dictionaries: Dictionaries,
    params: TreeParams,
    norm_ranges: NDArray[np.float32],
    metric: Metric,
) -> Quality:
    """Measure on rows (n, d), of length 1 for cosine, and their codes (n, width); at least two rows.

    Rows far from all others are no queries, and no part of the error.
    """
    near = np.ones(len(rows), np.bool_)
    near[dictionaries.transform.apply(rows.copy())[1]] = False
    near |= not near.any()
    chosen = np.flatnonzero(near)
    chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, min(QUERIES, len(chosen))).astype(np.int64))]
    found = dictionaries.decode(codes)
    apart = rows[near].astype(np.float64) - found[near]
    # From a row among them, so that squares lose nothing to an offset.
    middle = rows[chosen[0]].astype(np.float64) if metric != "ip" else np.zeros(rows.shape[1])
    queries = rows[chosen] - middle
    products = metric == "ip" or (metric == "cosine" and params.planes)
    distances = _distances(queries, rows - middle, products=metric == "ip")
    guesses = _distances(queries + middle * products, found - middle * (not products), products=products)
    own = np.arange(len(chosen)), chosen
    distances[own] = guesses[own] = np.inf
    k = min(NEIGHBOURS, len(rows) - 1)
    tree = build_tree(codes, np.arange(len(rows), dtype=np.uint32), dictionaries, params, norm_ranges)
    searcher = make_searcher(metric, tree, dictionaries, planes=params.planes)
    ids = searcher.search(rows[chosen], k + 1, SearchParams.unlimited()).ids
    # The row itself is no answer; where it is not among them the last one is left out.
    others = np.argsort(ids == chosen[:, None], axis=1, kind="stable")[:, :k]
    return Quality(
        rows=len(rows),
        distortion=float(np.vecdot(apart, apart).mean()),
        recall=_share_near(distances, np.take_along_axis(ids, others, axis=1)),
        possible=_share_near(distances, np.argsort(guesses, axis=1, kind="stable")[:, :k]),
    )


def _distances(
    queries: NDArray[np.float64], rows: NDArray[np.floating], *, products: bool
) -> NDArray[np.float64]:
    """Squared distances less the square of the query, or negative inner products, (q, n) float64."""
    rows = rows.astype(np.float64)
    negative: NDArray[np.float64] = -(queries @ rows.T)
    return negative if products else 2 * negative + np.vecdot(rows, rows)


def _share_near(distances: NDArray[np.float64], ids: NDArray[np.int64]) -> float:
    """Share of answers (q, k) no farther than the k-th nearest row: equal distances are equally right."""
    k = ids.shape[1]
    limit = np.partition(distances, k - 1, axis=1)[:, k - 1 : k]
    return float((np.take_along_axis(distances, ids, axis=1) <= limit).mean())
