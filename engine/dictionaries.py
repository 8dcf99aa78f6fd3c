"""Learned dictionaries, and the bytes of a code.

A vector x is approximated by x̂ = Σ_m c_m(i_m), one word (codeword, centroid) of each of M
dictionaries (codebooks). Its code is the labels i_1..i_M, a byte each; the label of a *wide* first
dictionary (more than 256 words) takes two bytes, high byte first, so that sorting codes as bytes sorts
them as labels:

    narrow   | i_1 | i_2 | ... | i_M |          width M
    wide     | i_1 hi | i_1 lo | i_2 | ... |    width M + 1
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.transform import Transform

MAX_WORDS = 256
SHORT_WORDS = 16
"""Words of a dictionary whose labels take four bits."""
MAX_WIDE_WORDS = 65_536


@dataclass(frozen=True)
class CodeLayout:
    """Which bytes of a code belong to which dictionary."""

    words: tuple[int, ...]

    @property
    def levels(self) -> int:
        """Number of dictionaries, which is the depth of the tree."""
        return len(self.words)

    @property
    def wide(self) -> bool:
        """Whether the first label takes two bytes."""
        return self.words[0] > MAX_WORDS

    @property
    def width(self) -> int:
        """Bytes of a code."""
        return self.levels + self.wide

    @property
    def bits(self) -> float:
        """Bits of the labels behind a wide first dictionary, whose label is where a leaf hangs."""
        return sum(math.log2(size) for size in self.words[self.wide :])

    def prefix_bytes(self, level: int) -> int:
        """Bytes of the first `level` labels."""
        return 0 if level == 0 else level + self.wide

    def labels(self, codes: NDArray[np.uint8]) -> NDArray[np.uint16]:
        """Labels (n, M) of codes (n, width)."""
        labels = np.empty((len(codes), self.levels), np.uint16)
        labels[:, 1:] = codes[:, self.wide + 1 :]
        labels[:, 0] = self.first_labels(codes)
        return labels

    def first_labels(self, codes: NDArray[np.uint8]) -> NDArray[np.uint16]:
        """Labels (n,) of the first dictionary in codes (n, width)."""
        labels = codes[:, int(self.wide)].astype(np.uint16)
        if self.wide:
            labels |= codes[:, 0].astype(np.uint16) << 8
        return labels

    def pack(self, labels: NDArray[np.integer]) -> NDArray[np.uint8]:
        """Codes (n, width) of labels (n, M)."""
        codes = np.empty((len(labels), self.width), np.uint8)
        codes[:, self.wide :] = labels & 0xFF
        if self.wide:
            codes[:, 0] = labels[:, 0] >> 8
        return codes


@dataclass(frozen=True, eq=False)
class Dictionaries:
    """M dictionaries stacked into one array.

    words : (ΣK_m, d) float32, all words of dictionary 1, then of dictionary 2, ...
    layout : the size of each dictionary.
    transform : what is done to vectors before their codes are found.
    """

    words: NDArray[np.float32]
    layout: CodeLayout
    transform: Transform = field(default_factory=Transform)

    def __post_init__(self) -> None:
        if self.words.ndim != 2 or len(self.words) != sum(self.layout.words):
            raise ValueError(f"words {self.words.shape} do not fit dictionaries of sizes {self.layout.words}")

    @property
    def dimension(self) -> int:
        return int(self.words.shape[1])

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(M + 1,) first word of each dictionary in `words`."""
        return np.concatenate(([0], np.cumsum(self.layout.words))).astype(np.int64)

    def part(self, number: int) -> NDArray[np.float32]:
        """Dictionary `number` (from 0) as a view (K, d)."""
        return self.words[self.starts[number] : self.starts[number + 1]]

    def check_codes(self, codes: NDArray[np.uint8]) -> NDArray[np.uint16]:
        """Labels of `codes`, or ValueError if they are not codes of these dictionaries."""
        if codes.ndim != 2 or codes.shape[1] != self.layout.width or codes.dtype != np.uint8:
            raise ValueError(f"codes {codes.dtype}{codes.shape}: expected uint8 (n, {self.layout.width})")
        labels = self.layout.labels(codes)
        sizes = np.asarray(self.layout.words)
        if len(labels) and (labels.max(axis=0) >= sizes).any():
            number = int(np.flatnonzero(labels.max(axis=0) >= sizes)[0])
            raise ValueError(
                f"codes use label {labels[:, number].max()} of dictionary {number + 1}, "
                f"which has {sizes[number]} words"
            )
        return labels

    def decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Reconstructions x̂ = Σ c_m(i_m), (n, d) float32."""
        labels = self.check_codes(codes)
        vectors = np.zeros((len(codes), self.dimension), np.float32)
        for number in range(self.layout.levels):
            vectors += self.part(number)[labels[:, number]]
        return self.transform.restore(vectors)
