"""Every parameter of the engine, in frozen records that validate themselves.

A record is validated on creation, so code that uses it need not validate again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from aggtree.engine.dictionaries import MAX_WIDE_WORDS, MAX_WORDS

MAX_DICTIONARIES = 257
MAX_BEAM = 64

Cooling = Literal["joint", "kmeans"]
Metric = Literal["l2", "ip", "cosine"]
METRICS: tuple[Metric, ...] = ("l2", "ip", "cosine")


def parse_words(text: str) -> tuple[int, ...]:
    """Read sizes of dictionaries as the command line writes them: `256x8` or `4096,256x8`."""
    sizes: list[int] = []
    for part in text.split(","):
        count, repeated, times = part.strip().partition("x")
        if not count.isdecimal() or (repeated and not times.isdecimal()):
            raise ValueError(f"words {text!r}: expected sizes such as 256x8 or 4096,256x8, got {part!r}")
        sizes.extend([int(count)] * (int(times) if repeated else 1))
    return tuple(sizes)


def dictionary_sizes(dictionaries: int | None, words: int | Sequence[int]) -> tuple[int, ...]:
    """Combine a number of dictionaries and their sizes into one tuple of sizes.

    With an integer `words` every dictionary has that many; a sequence names each size, and
    `dictionaries` may then be left out.
    """
    if isinstance(words, int):
        return (words,) * (8 if dictionaries is None else dictionaries)
    sizes = tuple(int(size) for size in words)
    if dictionaries is not None and dictionaries != len(sizes):
        raise ValueError(f"dictionaries={dictionaries} but words names {len(sizes)} sizes: leave one out")
    return sizes


@dataclass(frozen=True, kw_only=True)
class AnnealingParams:
    """How dictionaries are learned.

    words : number of words (codewords, centroids) of each dictionary, at most 256 each; the first may have
        up to 65,536 and is then a *wide first dictionary*: learned first, its nearest word is locked.
    beam : paths kept by multi-path encoding.
    rounds : at most this many cooling rounds of the offline `fit`.
    tolerance : `fit` stops when a round lowers the distortion by less than this fraction.
    early_rows, late_rows : rows for each word that a round of joint cooling anneals, while there is noise and
        after; early rounds take turns at the rows. 0 for all rows there are.
    early_beam : paths kept by encoding in the early rounds; 0 for `beam`.
    stage : dictionaries that one beam encodes; they are locked before the next stage begins. 0 for all at
        once. A wide first dictionary is in no stage.
    cooling : `joint` updates all dictionaries by one least-squares step per round; `kmeans` is
        the paper's way, one dictionary after the other.
    """

    words: tuple[int, ...] = (256,) * 8
    beam: int = 10
    seed: int = 0
    rounds: int = 25
    tolerance: float = 1e-3
    early_rows: int = 0
    late_rows: int = 0
    early_beam: int = 0
    cooling: Cooling = "joint"
    stage: int = 0

    def __post_init__(self) -> None:
        if not 1 <= len(self.words) <= MAX_DICTIONARIES:
            raise ValueError(f"{len(self.words)} dictionaries: expected 1 to {MAX_DICTIONARIES}")
        if not 1 <= self.words[0] <= MAX_WIDE_WORDS:
            raise ValueError(f"first dictionary of {self.words[0]} words: expected 1 to {MAX_WIDE_WORDS}")
        for number, size in enumerate(self.words[1:], start=2):
            if not 1 <= size <= MAX_WORDS:
                raise ValueError(f"dictionary {number} of {size} words: expected 1 to {MAX_WORDS}")
        if not 1 <= self.beam <= MAX_BEAM:
            raise ValueError(f"beam {self.beam}: expected 1 to {MAX_BEAM}")
        if self.stage < 0:
            raise ValueError(f"stage {self.stage}: expected 1 or more dictionaries, or 0 for all")
        if self.rounds < 0:
            raise ValueError(f"rounds {self.rounds}: expected 0 or more")
        for name in ("early_rows", "late_rows"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)}: expected rows for each word, or 0 for all")
        if not 0 <= self.early_beam <= MAX_BEAM:
            raise ValueError(f"early_beam {self.early_beam}: expected 1 to {MAX_BEAM}, or 0 for `beam`")
        if self.cooling not in ("joint", "kmeans"):
            raise ValueError(f"cooling {self.cooling!r}: expected 'joint' or 'kmeans'")


@dataclass(frozen=True, kw_only=True)
class TreeParams:
    """How codes are arranged into an A-Tree.

    bucket : a node of at most this many vectors is not split, its vectors are its leaves (T).
    direct_leaves : inside a split node, a group of at most this many vectors gets no node of its own: its
        vectors are direct leaves, which hang directly from the split node. `bucket=1, direct_leaves=1` is
        the paper's tree.
    norm_bytes : bytes of a leaf's squared norm: 1 or 2, quantized over the level's range, or 4, exact; 0, for
        none, only in planes, where inner products are compared.
    planes : whether leaves are stored in planes of 32, which shuffles scan: for dictionaries of up to 16
        words behind the first one. Nodes of level 1 are then not split.
    """

    bucket: int = 64
    direct_leaves: int = 1
    norm_bytes: Literal[0, 1, 2, 4] = 1
    planes: bool = False

    def __post_init__(self) -> None:
        if self.bucket < 1:
            raise ValueError(f"bucket {self.bucket}: expected 1 or more")
        if not 1 <= self.direct_leaves <= self.bucket:
            raise ValueError(f"direct_leaves {self.direct_leaves}: expected 1 to bucket ({self.bucket})")
        allowed = (0, 1) if self.planes else (1, 2, 4)
        if self.norm_bytes not in allowed:
            expected = " or ".join(map(str, allowed))
            raise ValueError(f"norm_bytes {self.norm_bytes}: expected {expected}")


@dataclass(frozen=True, kw_only=True)
class SearchParams:
    """How much of the tree a search visits.

    limits : nodes kept at level 1, 2, ...; the last number holds for every deeper level.
        0 means no limit. `SearchParams()` lets the index choose by its size.
    pruning_ratio : nodes of level 1 whose squared distance exceeds this multiple of the mean of the ten
        nearest are pruned, so a query whose neighbours lie in few nodes visits few.
    """

    limits: tuple[int, ...] = ()
    pruning_ratio: float = math.inf

    def __post_init__(self) -> None:
        if not self.pruning_ratio >= 1:
            raise ValueError(f"pruning_ratio {self.pruning_ratio}: expected 1 or more")
        if self.pruning_ratio < math.inf and not self.limits:
            raise ValueError(f"pruning_ratio {self.pruning_ratio} without limits: name both, or neither")
        for level, limit in enumerate(self.limits, start=1):
            if limit < 0:
                raise ValueError(f"limit {limit} of level {level}: expected 1 or more, or 0 for no limit")

    @classmethod
    def paper(cls, *, start: float, growth: float, levels: int) -> "SearchParams":
        """The paper's schedule L_i = L_0 · L_s^i for i = 1..levels."""
        return cls(limits=tuple(max(1, round(start * growth**level)) for level in range(1, levels + 1)))

    @classmethod
    def unlimited(cls) -> "SearchParams":
        """Visit the whole tree: the answer is the exhaustive ranking over the reconstructions."""
        return cls(limits=(0,))

    def scaled(self, effort: float) -> "SearchParams":
        """Visit about `effort` times as many nodes at level 1, and as many as before below it.

        With pruning ratio r the number of nodes kept grows about as (r - 1)², on real and generated SIFT.
        """
        first, *below = self.limits
        limits = (max(1, round(first * effort)) if first else 0, *below)
        return SearchParams(limits=limits, pruning_ratio=1 + (self.pruning_ratio - 1) * math.sqrt(effort))

    def per_level(self, levels: int) -> tuple[int, ...]:
        """One limit for each of `levels` levels."""
        if not self.limits:
            raise ValueError("limits are not chosen yet")
        return (self.limits + (self.limits[-1],) * levels)[:levels]
