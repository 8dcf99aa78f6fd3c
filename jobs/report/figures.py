"""The figures that `aggtree report` shows.

Counts and bytes are exact, from the manifest. Figures about nodes, codes or vectors come from a sample of
fixed size, spread over the index, so a billion rows take seconds and little memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.search.segments import SegmentedSearcher
from aggtree.engine.search.tuned import TunedPoint
from aggtree.engine.training.information import entropy
from aggtree.engine.tree.layout import Tree
from aggtree.storage.errors import AggtreeError, SourceError
from aggtree.storage.index.build_report import BuildReport, read_report
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.index.format import TreeCounts
from aggtree.storage.index.reader import Index
from aggtree.storage.sources.unit_rows import metric_source

T = TypeVar("T")

PLACES = 64
CODES_PER_PLACE = 8_000
VECTORS_PER_PLACE = 32
NODES_PER_PLACE = 4_096


@dataclass(frozen=True, kw_only=True)
class LevelFigures:
    """One level of the tree.

    children, leaf_counts : how many of the sampled nodes have 0, 1, 2..3, 4..7, ... children and leaves.
    """

    level: int
    nodes: int
    leaves: int
    node_bytes: int
    leaf_bytes: int
    sampled: int
    children: tuple[int, ...]
    leaf_counts: tuple[int, ...]

    def plus(self, other: "LevelFigures") -> "LevelFigures":
        """The same level of two trees of one index."""
        return LevelFigures(
            level=self.level,
            nodes=self.nodes + other.nodes,
            leaves=self.leaves + other.leaves,
            node_bytes=self.node_bytes + other.node_bytes,
            leaf_bytes=self.leaf_bytes + other.leaf_bytes,
            sampled=self.sampled + other.sampled,
            children=_added(self.children, other.children),
            leaf_counts=_added(self.leaf_counts, other.leaf_counts),
        )


def _added(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """Histograms over the same bins, of which one may have fewer."""
    return tuple(one + other for one, other in zip_longest(first, second, fillvalue=0))


@dataclass(frozen=True, kw_only=True)
class DictionaryFigures:
    """How the codes of the sample use one dictionary.

    bits : self-information H(I_m); log2 of `words` is the most possible.
    used, most_used : words that occur, and the share of the one that occurs most.
    """

    words: int
    bits: float
    used: int
    most_used: float


@dataclass(frozen=True, kw_only=True)
class CodeFigures:
    """Statistics of a sample of codes.

    mutual : (M, M) mutual information of two dictionaries in bits, H(I_m) on the diagonal.
    errors : mean squared error of the vectors of `vectors` rows after 0, 1, ..., M words; empty without them.
    """

    rows: int
    dictionaries: tuple[DictionaryFigures, ...]
    mutual: NDArray[np.float64]
    vectors: int = 0
    errors: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class IndexFigures:
    """All figures: the levels that have nodes, and `missing`, the reason why a section is absent."""

    levels: tuple[LevelFigures, ...]
    codes: CodeFigures | None
    report: BuildReport | None
    tuned: dict[int, tuple[TunedPoint, ...]]
    missing: dict[str, str]


def collect(index: Index, seed: int = 0) -> IndexFigures:
    """Collect the figures of an open index."""
    missing: dict[str, str] = {}
    build = index.manifest.first_segment.build
    return IndexFigures(
        levels=_available(missing, "tree", lambda: level_figures(index, seed)) or (),
        codes=_available(missing, "codes", lambda: code_figures(index, seed, missing)),
        report=_available(missing, "report", lambda: read_report(index.path, build)),
        tuned=_available(missing, "tuning", lambda: index.tuning.points) or {},
        missing=missing,
    )


def _available(missing: dict[str, str], name: str, read: Callable[[], T]) -> T | None:
    """The result of `read`; None if it fails, with the reason in `missing`."""
    try:
        return read()
    except (AggtreeError, ValueError, OSError) as error:
        missing[name] = str(error)
        return None


def level_figures(index: Index, seed: int) -> tuple[LevelFigures, ...]:
    """Each level below the root that has nodes; of an index of several segments, of all trees."""
    searcher = index.searcher
    trees = searcher.trees if isinstance(searcher, SegmentedSearcher) else (searcher.tree,)
    levels: dict[int, LevelFigures] = {}
    for segment, tree in zip(index.manifest.segments, trees, strict=True):
        for found in _tree_levels(segment.counts, tree, seed):
            known = levels.get(found.level)
            levels[found.level] = found if known is None else known.plus(found)
    return tuple(levels[level] for level in sorted(levels))


def _tree_levels(counts: TreeCounts, tree: Tree, seed: int) -> Iterator[LevelFigures]:
    """The levels of one tree, with the fan-out of some of their nodes."""
    offset = np.dtype(counts.offset_dtype).itemsize
    node_bytes = tree.labels.itemsize + tree.norms.itemsize + 2 * offset
    for level in range(1, counts.layout.levels + 1):
        nodes, leaves = counts.level_nodes[level], counts.level_leaves[level]
        if nodes == 0:
            return
        first = tree.first_labels.nbytes if level == 1 else 0
        start, stop = counts.level_start[level : level + 2]
        places = list(spread_places(start, stop, NODES_PER_PLACE, seed + level))
        children, below = (
            _doubling_bins([_lengths(starts[low : high + 1]) for low, high in places])
            for starts in (tree.child_start, tree.leaf_start)
        )
        yield LevelFigures(
            level=level,
            nodes=nodes,
            leaves=leaves,
            node_bytes=nodes * node_bytes + first,
            leaf_bytes=leaves * (counts.record_bytes(level) + tree.ids.itemsize),
            sampled=sum(high - low for low, high in places),
            children=children,
            leaf_counts=below,
        )


def spread_places(start: int, stop: int, size: int, seed: int) -> Iterator[tuple[int, int]]:
    """Ranges of `size` in start..stop, one in each of PLACES equal parts; all of it if it is short."""
    if stop - start <= PLACES * size:
        if stop > start:
            yield start, stop
        return
    edges = np.linspace(start, stop, PLACES + 1).astype(np.int64)
    rng = np.random.default_rng(seed)
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        begin = int(rng.integers(low, high - size + 1))
        yield begin, begin + size


def _lengths(starts: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
    """Lengths of the ranges that begin at `starts` and end where the next begins."""
    places = starts.astype(np.int64)
    return places[1:] - places[:-1]


def _doubling_bins(counts: list[NDArray[np.int64]]) -> tuple[int, ...]:
    """How many counts are 0, 1, 2..3, 4..7, and so on."""
    if not counts:
        return ()
    bins = np.frexp(np.concatenate(counts).clip(0).astype(np.float64))[1]
    return tuple(np.bincount(bins).tolist())


def code_figures(index: Index, seed: int, missing: dict[str, str]) -> CodeFigures:
    """Usage of the dictionaries by codes of the first segment, and their errors if the vectors are there."""
    first, layout = index.manifest.first_segment, index.layout
    store = CodeStore.open(first.codes_at(index.path))
    places = list(spread_places(0, first.source_rows, CODES_PER_PLACE, seed))
    blocks = [store.read(low, high) for low, high in places]
    codes = np.concatenate(blocks)
    if first.rows < first.source_rows:
        codes = codes[codes.any(axis=1)]  # rows that were left out have codes of zeros
    labels = layout.labels(codes)
    errors = _available(missing, "vectors", lambda: errors_by_level(index, places, blocks)) or (0, ())
    return CodeFigures(
        rows=len(labels),
        dictionaries=tuple(_usage(labels[:, m], size) for m, size in enumerate(layout.words)),
        mutual=shared_bits(labels, layout, seed),
        vectors=errors[0],
        errors=errors[1],
    )


def _usage(labels: NDArray[np.uint16], words: int) -> DictionaryFigures:
    counts = np.bincount(labels, minlength=words)
    return DictionaryFigures(
        words=words,
        bits=min(entropy(counts, correction=True), float(np.log2(words))),
        used=int((counts > 0).sum()),
        most_used=float(counts.max() / max(1, counts.sum())),
    )


def shared_bits(labels: NDArray[np.uint16], layout: CodeLayout, seed: int) -> NDArray[np.float64]:
    """Mutual information of all pairs of dictionaries, H(I_m) on the diagonal, (M, M) in bits.

    A sample makes independent labels look dependent. This bias is measured with the same labels shuffled,
    which are independent, and subtracted.
    """
    levels = layout.levels
    matrix = np.diag([entropy(np.bincount(labels[:, m]), correction=True) for m in range(levels)])
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    for i in range(levels):
        for j in range(i):
            apart = _joint_bits(labels[shuffled, i], labels[:, j], layout.words[j])
            together = _joint_bits(labels[:, i], labels[:, j], layout.words[j])
            matrix[i, j] = matrix[j, i] = max(0.0, apart - together)
    return matrix


def _joint_bits(first: NDArray[np.uint16], second: NDArray[np.uint16], words: int) -> float:
    """H of pairs of labels; where tables of all pairs would be large, of those that occur."""
    pairs = first.astype(np.int64) * words + second
    dense = len(pairs) and pairs.max() <= 4 * len(pairs)
    return entropy(np.bincount(pairs) if dense else np.unique(pairs, return_counts=True)[1])


def errors_by_level(
    index: Index, places: list[tuple[int, int]], blocks: list[NDArray[np.uint8]]
) -> tuple[int, tuple[float, ...]]:
    """Rows compared, and the mean squared error of reconstructions from the first 0, 1, ..., M words."""
    dictionaries, levels = index.dictionaries, index.layout.levels
    source = metric_source(index.raw_vectors.source, index.manifest.metric)
    total, rows = np.zeros(levels + 1), 0
    for low, few in _short_blocks(places, blocks):
        vectors = source.read(low, low + len(few)).astype(np.float32)
        usable = np.array(np.isfinite(vectors).all(axis=1))
        vectors, far = dictionaries.transform.apply(vectors)
        usable[far] = False
        residue, labels = vectors[usable], dictionaries.check_codes(few[usable])
        total[0] += (residue.astype(np.float64) ** 2).sum()
        for level in range(levels):
            residue -= dictionaries.part(level)[labels[:, level]]
            total[level + 1] += (residue.astype(np.float64) ** 2).sum()
        rows += len(residue)
    if rows == 0:
        raise SourceError(f"{source.spec}: no usable rows in the sample")
    return rows, tuple((total / rows / dictionaries.transform.unit**2).tolist())


def _short_blocks(
    places: list[tuple[int, int]], blocks: list[NDArray[np.uint8]]
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """About PLACES short pieces of blocks of codes, each with its first row."""
    each = max(1, PLACES // max(1, len(places)))
    for (low, _), codes in zip(places, blocks, strict=True):
        for start in np.unique(np.linspace(0, len(codes), each, endpoint=False).astype(np.int64)).tolist():
            yield low + start, codes[start : start + VECTORS_PER_PLACE]
