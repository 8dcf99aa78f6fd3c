"""An index in memory, made by the engine alone as a build makes it, and the recall of its answers."""

from dataclasses import dataclass

import naive
import numpy as np

from aggtree.engine.coding.encoding import Encoder
from aggtree.engine.exact.unit_kernels import scale_to_unit
from aggtree.engine.params import AnnealingParams, Metric, SearchParams, TreeParams
from aggtree.engine.quality import Quality
from aggtree.engine.sampled_search import measure_quality
from aggtree.engine.search.metrics import make_searcher
from aggtree.engine.search.searcher import Searcher
from aggtree.engine.training.staged import make_trainer
from aggtree.engine.transform import find_transform
from aggtree.engine.tree.layout import build_tree

WORDS = {False: (64,) * 3, True: (300, *(16,) * 6)}
"""Sizes of the dictionaries of leaves in records, which the sieve reads, and of leaves in planes."""
NEIGHBOURS = 10


@dataclass(frozen=True, kw_only=True)
class MemoryIndex:
    """far : numbers of the rows that are far from all others."""

    searcher: Searcher
    quality: Quality
    far: np.ndarray


def index_in_memory(rows: np.ndarray, metric: Metric = "l2", *, planes: bool = False) -> MemoryIndex:
    """Train, encode and build a tree, with few rounds."""
    taken = rows.astype(np.float32)
    if metric == "cosine":
        scale_to_unit(rows, taken)
    norms = metric == "l2" or not planes
    tree_params = TreeParams(planes=planes, norm_bytes=int(norms))
    params = AnnealingParams(words=WORDS[planes], beam=4, rounds=3)
    transform = find_transform(taken, centred=not (planes and metric == "cosine"), products=metric == "ip")
    trainer = make_trainer(params).fit(transform.apply_to_near(taken.copy()))
    ranges = trainer.norm_ranges
    dictionaries = type(trainer.dictionaries)(
        trainer.dictionaries.words, trainer.dictionaries.layout, transform
    )
    stored = ranges if norms and metric != "ip" else None
    codes, far = Encoder(dictionaries, params.beam, norm_ranges=stored).encode_and_find_far(taken)
    tree = build_tree(codes, np.arange(len(rows), dtype=np.uint32), dictionaries, tree_params, ranges)
    return MemoryIndex(
        searcher=make_searcher(metric, tree, dictionaries, planes=planes),
        quality=measure_quality(taken, codes, dictionaries, tree_params, ranges, metric),
        far=far,
    )


def recall(index: MemoryIndex, rows: np.ndarray, queries: np.ndarray, metric: Metric = "l2") -> float:
    """Share of the answers that are no farther than the tenth nearest row, by brute force."""
    exact = np.array([exact_distances(query, rows, metric) for query in queries.astype(np.float64)])
    ids = index.searcher.search(queries, NEIGHBOURS, SearchParams.unlimited()).ids
    limit = np.sort(exact, axis=1)[:, NEIGHBOURS - 1 : NEIGHBOURS]
    return float((np.take_along_axis(exact, ids, axis=1) <= limit).mean())


def exact_distances(query: np.ndarray, rows: np.ndarray, metric: Metric) -> np.ndarray:
    """Of one query to all rows, in float64."""
    if metric == "l2":
        return ((rows.astype(np.float64) - query) ** 2).sum(axis=1)
    return naive.metric_distance(query, rows, metric)
