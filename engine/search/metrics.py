"""Search by inner product and by cosine, with the kernels of squared distances.

Inner product. A query may have any length: it is scaled to 1. Without norms, and with a constant B in their
place, a search ranks by 1 + B - 2 q·x̂, which is never negative for B >= 2 max ‖x̂‖, and falls as q·x̂ rises.
The distance returned is -q·x.

A mean that was subtracted from the vectors adds q·mean to each product.

Cosine. Vectors were scaled to length 1 when they were encoded, and queries are: the squared distance of two
such vectors is twice 1 - cos. The distance returned is 1 - cos.
"""

from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import Dictionaries
from aggtree.engine.params import Metric, SearchParams
from aggtree.engine.scan.first_level import FirstGroups
from aggtree.engine.search.searcher import Answer, Searcher
from aggtree.engine.tree.layout import Tree


class InnerProductSearcher(Searcher):
    """Answers queries by their inner product with the reconstructions."""

    _bounded: ClassVar[bool] = False

    def __init__(self, tree: Tree, dictionaries: Dictionaries, **grouping: Any) -> None:
        super().__init__(tree, dictionaries, **grouping)
        if self.norm_bytes == 4:
            raise ValueError("norms of 4 bytes: a tree for inner products has norms of 1 or 2")
        # Pages of zeros that are only read are all the same page.
        zeros = np.zeros(len(tree.norms), np.float32)
        zeros.flags.writeable = False
        levels = np.zeros_like(tree.norm_low)
        levels.flags.writeable = False
        self._scored = self.tree._replace(norms=zeros, norm_low=levels, norm_step=levels)
        self._base = np.float32(2 * longest_sum(dictionaries))
        first_columns = self._first.groups or self._first.nodes
        start = self._words.start.copy()
        start[:first_columns] = self._base
        self._words = self._words._replace(start=start)
        norms, offsets = np.full_like(self._first.norms, self._base), np.zeros_like(self._first.offsets)
        norms.flags.writeable = offsets.flags.writeable = False
        self._first = self._first._replace(norms=norms, offsets=offsets)

    @cached_property
    def default_params(self) -> SearchParams:
        """No pruning: a constant is added to products, so their ratios are meaningless."""
        first, *below = super().default_params.limits
        return SearchParams(limits=(max(1, first // 2), *below))

    def _scale(self, queries: NDArray[np.float32]) -> NDArray[np.float64] | None:
        return scale_to_length_1(queries)

    def _finish(
        self, answer: Answer, queries: NDArray[np.float32], lengths: NDArray[np.float64] | None
    ) -> Answer:
        ids, distances = answer
        if lengths is None:
            return answer
        # As the kernel adds them: the squared length of a scaled query is 1 but for rounding, 0 for zeros.
        squares = np.einsum("ij,ij->i", queries, queries, dtype=np.float64).astype(np.float32)
        found = ids >= 0
        products = (squares + self._base)[:, None] - np.where(found, distances, 0).astype(np.float64)
        transform = self.dictionaries.transform
        products /= 2 * transform.unit
        if transform.mean is not None:
            products += (queries @ transform.mean)[:, None]
        with np.errstate(over="ignore"):  # a product that float32 cannot hold is as near as can be
            return Answer(ids, np.where(found, -lengths[:, None] * products, np.inf).astype(np.float32))


class CosineSearcher(Searcher):
    """Answers queries by their angle with reconstructions of vectors of length 1."""

    _bounded: ClassVar[bool] = False

    def _scale(self, queries: NDArray[np.float32]) -> NDArray[np.float64] | None:
        lengths = scale_to_length_1(queries)
        if not lengths.all():
            raise ValueError(
                f"query {int(np.flatnonzero(lengths == 0)[0])} is all zeros: it has no direction"
            )
        self.dictionaries.transform.apply_to_queries(queries)
        return lengths

    def _finish(
        self, answer: Answer, queries: NDArray[np.float32], lengths: NDArray[np.float64] | None
    ) -> Answer:
        return Answer(answer.ids, answer.distances / np.float32(2))


class PlaneCosineSearcher(CosineSearcher):
    """The same for leaves in planes, which have no norms: reconstructions are compared by inner product.

    That estimates the cosine without the bias of reconstructions that are shorter than 1. Nodes are ranked by
    the angle to their word alone, whatever its length.
    """

    def __init__(self, tree: Tree, dictionaries: Dictionaries, **grouping: Any) -> None:
        if dictionaries.transform.mean is not None:
            raise ValueError("a mean was subtracted from vectors that are compared by their angle to words")
        words = unit_words(dictionaries)
        ones = np.ones(len(tree.norms), np.float32)
        super().__init__(tree._replace(norms=ones), words, planes=True, **grouping)
        self.dictionaries = dictionaries
        self.tree = self.tree._replace(norms=tree.norms)
        nodes = self._first.nodes
        with np.errstate(invalid="ignore"):  # a damaged file may hold anything
            self._lengths = np.sqrt(np.asarray(tree.norms[1 : 1 + nodes], np.float32))
        self._lengths.flags.writeable = False
        # Two unit vectors at a right angle are 2 apart; with this base no leaf is below zero.
        self._node_centre, self._leaf_base = np.float32(2), np.float32(2 * longest_sum(dictionaries))

    def _finish(
        self, answer: Answer, queries: NDArray[np.float32], lengths: NDArray[np.float64] | None
    ) -> Answer:
        half, one = np.float32(0.5), np.float32(1)
        return Answer(answer.ids, (answer.distances - self._leaf_base) * half + one)


def longest_sum(dictionaries: Dictionaries) -> float:
    """No reconstruction is longer: the sum of the lengths of each dictionary's longest word."""
    words = (dictionaries.part(number) for number in range(dictionaries.layout.levels))
    return sum(float(np.sqrt(np.vecdot(part, part).max(initial=0))) for part in words)


def unit_words(dictionaries: Dictionaries) -> Dictionaries:
    """The dictionaries with words of the first one scaled to length 1; zeros stay."""
    words = dictionaries.words.copy()
    first = words[: dictionaries.layout.words[0]]
    lengths = np.sqrt(np.vecdot(first, first))
    first /= np.where(lengths > 0, lengths, 1)[:, None]
    return Dictionaries(words, dictionaries.layout, dictionaries.transform)


def scale_to_length_1(queries: NDArray[np.float32]) -> NDArray[np.float64]:
    """Scale queries (q, d) in place to length 1, or leave zeros; returns their lengths (q,) float64."""
    floats = queries.astype(np.float64)
    lengths: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", floats, floats))
    queries[:] = floats / np.where(lengths > 0, lengths, 1)[:, None]
    return lengths


def make_searcher(
    metric: Metric,
    tree: Tree,
    dictionaries: Dictionaries,
    *,
    groups: FirstGroups | None = None,
    planes: bool = False,
) -> Searcher:
    """The searcher of a tree by its metric."""
    if metric == "ip":
        return InnerProductSearcher(tree, dictionaries, groups=groups, planes=planes)
    if metric == "cosine" and planes:
        return PlaneCosineSearcher(tree, dictionaries, groups=groups)
    kind = Searcher if metric == "l2" else CosineSearcher
    return kind(tree, dictionaries, groups=groups, planes=planes)
