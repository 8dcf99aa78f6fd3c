"""The word of a wide first dictionary: nearly always the nearest, without comparing all words.

Words are put into about √K groups by k-means over the words. A row is compared with the centres of all
groups, then with the words of the nearest PROBES groups. `bench/` reports the loss in E.
"""

import numpy as np
from numpy.typing import NDArray

from aggtree.engine.clustering.distances import ASSIGNED_ROWS, BLOCK_ROWS, Chooser, Map, NearestWord
from aggtree.engine.clustering.distances_kernels import Rows, copy_rows, multiply_rows
from aggtree.engine.clustering.kmeans import choose_rows, kmeans
from aggtree.engine.coding.records import Groups, make_group_scratch
from aggtree.engine.coding.wide_dictionary_kernels import nearest_groups, scan_group
from aggtree.engine.dictionaries import CodeLayout

EXACT_WORDS = 1024
"""Up to so many words comparing all is as fast."""

PROBES = 12
GROUP_ITERATIONS = 10
ITERATIONS = 12

EARLY_ROWS_PER_WORD = 64
"""Rows of each word for all iterations but the last, where there are twice as many or more."""

LAST_ITERATIONS = 3
"""Iterations over all rows, after those over fewer."""


class TwoStage:
    """Chooses words by their groups; the word of a row never depends on other rows."""

    def __init__(self, words: NDArray[np.float32], probes: int = PROBES) -> None:
        count = 2 ** round(np.log2(len(words)) / 2)
        # The grouping is a function of the words alone: every worker finds the same.
        rng = np.random.default_rng(0)
        centres = kmeans(words, choose_rows(words, count, rng), GROUP_ITERATIONS, rng)
        labels, _ = NearestWord(centres).assign(words)
        used = np.unique(labels)
        self._centres = NearestWord(centres[used])
        self._groups = _lay_out(words, np.searchsorted(used, labels), len(used))
        self._probes = min(probes, len(used))

    def assign(self, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Labels (n,) int64 and ‖c‖² − 2 x·c (n,) float32 of contiguous rows (n, d)."""
        labels = np.zeros(len(rows), np.int64)
        best = np.full(len(rows), np.inf, np.float32)
        probes = self._probed_groups(rows)
        order = np.argsort(probes.ravel(), kind="stable")
        members = order // self._probes
        bounds = np.searchsorted(probes.ravel()[order], np.arange(len(self._groups.first_panel)))
        scratch = make_group_scratch(self._groups)
        for group in range(len(bounds) - 1):
            chosen = members[bounds[group] : bounds[group + 1]]
            scan_group(rows, chosen, group, self._groups, scratch, best, labels)
        return labels, best

    def _probed_groups(self, rows: Rows) -> NDArray[np.int64]:
        """The nearest groups (n, probes) of each row."""
        found = np.empty((len(rows), self._probes), np.int64)
        block = np.empty((BLOCK_ROWS, rows.shape[1]), np.float32)
        scores = np.empty((BLOCK_ROWS, len(self._centres.start)), np.float32)
        for first in range(0, len(rows), BLOCK_ROWS):
            count = copy_rows(rows, first, block)
            multiply_rows(block, self._centres.panels, self._centres.start, scores)
            nearest_groups(scores, count, len(self._groups.first_panel) - 1, found[first : first + count])
        return found


def _lay_out(words: NDArray[np.float32], labels: NDArray[np.int64], count: int) -> Groups:
    """Order words by group, each group padded to whole panels."""
    panels, start, numbers, first_panel = [], [], [], [0]
    for group in range(count):
        members = np.flatnonzero(labels == group)
        part = NearestWord(words[members])
        padding = np.zeros(len(part.start) - len(members), np.int64)
        panels.append(part.panels)
        start.append(part.start)
        numbers.append(np.concatenate((members, padding)))
        first_panel.append(first_panel[-1] + len(part.panels))
    return Groups(
        np.concatenate(panels),
        np.concatenate(start),
        np.concatenate(numbers),
        np.asarray(first_panel, np.int64),
    )


def word_chooser(words: NDArray[np.float32], probes: int = PROBES) -> Chooser:
    """The assignment suited to the number of words; `probes` groups are compared if there are groups."""
    return NearestWord(words) if len(words) <= EXACT_WORDS else TwoStage(words, probes)


def learn_first_dictionary(
    rows: Rows, size: int, rng: np.random.Generator, map_: Map = map
) -> NDArray[np.float32]:
    """Words (size, d) of a wide first dictionary: k-means over rows (n, d), assigned as encoding will."""
    data = rows.astype(np.float32)
    words, iterations = choose_rows(data, size, rng), ITERATIONS
    step = len(data) // (EARLY_ROWS_PER_WORD * size)
    if step > 1:
        few = np.ascontiguousarray(data[::step])
        words = kmeans(few, words, ITERATIONS - LAST_ITERATIONS, rng, word_chooser, map_)
        iterations = LAST_ITERATIONS
    return kmeans(data, words, iterations, rng, word_chooser, map_)


def check_first_words(words: NDArray[np.float32], layout: CodeLayout) -> None:
    """ValueError when words (K, d) are no wide first dictionary of this layout."""
    if not layout.wide:
        raise ValueError(f"no wide first dictionary in sizes {layout.words}: give no first words")
    if len(words) != layout.words[0]:
        raise ValueError(f"{len(words)} first words: expected {layout.words[0]} words")


class FirstWords:
    """The words (K, d) float32 of a wide first dictionary, laid out to be chosen from."""

    def __init__(self, words: NDArray[np.float32]) -> None:
        self.words = words
        self._chooser = word_chooser(words)

    def residue(self, rows: Rows, map_: Map) -> NDArray[np.float32]:
        """What the nearest words leave of rows (n, d); `map_` runs over fixed blocks of them."""
        left = np.empty(rows.shape, np.float32)

        def subtract(start: int) -> None:
            here = slice(start, start + ASSIGNED_ROWS)
            left[here] = rows[here] - self.words[self._chooser.assign(rows[here])[0]]

        for _ in map_(subtract, range(0, len(rows), ASSIGNED_ROWS)):
            pass
        return left
