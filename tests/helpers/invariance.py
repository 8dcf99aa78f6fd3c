"""Changes of data that must not change how many true neighbours are found, and a look at many cases of each.

Each case builds two tiny indexes in memory, of plain rows and of the same rows changed, and compares the
recall of both against brute force. Training on other numbers ends in other words, so a single recall differs
by a few hundredths; in the mean of all cases .02 may be lost, and never much in one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from aggtree.engine.params import METRICS, Metric
from helpers.in_memory import MemoryIndex, index_in_memory, recall

ROWS, QUERIES = 1100, 100
MOST_LOST = 0.02
"""Of the recall of plain rows, in the mean of all cases."""
MOST_LOST_ONCE = 0.12
NOISE = 0.1
"""More than the standard deviation of what one case loses, with plain rows trained on twice."""

Vectors = tuple[np.ndarray, np.ndarray]
"""Rows and queries."""
Change = Callable[[np.ndarray, np.ndarray, np.random.Generator], Vectors]


def vectors(random: np.random.Generator) -> Vectors:
    """Rows of one cloud or of several, on axes of different length; queries of the same kind."""
    dimension, clusters = int(random.integers(6, 17)), int(random.integers(1, 9))
    axes = np.linalg.qr(random.normal(size=(dimension, dimension)))[0] * random.uniform(0.4, 2, dimension)
    centres = random.normal(size=(clusters, dimension)) * random.uniform(0, 2)
    mixed = random.integers(clusters, size=ROWS + QUERIES)
    made = (random.normal(size=(ROWS + QUERIES, dimension)) + centres[mixed]) @ axes
    made -= made[:ROWS].mean(axis=0)
    made = made.astype(np.float32)
    return made[:ROWS], made[ROWS:]


def translated(rows: np.ndarray, queries: np.ndarray, random: np.random.Generator) -> Vectors:
    offset = random.normal(size=rows.shape[1]) * 10 ** random.uniform(-1, 4)
    return (rows + offset).astype(np.float32), (queries + offset).astype(np.float32)


def scaled(rows: np.ndarray, queries: np.ndarray, random: np.random.Generator) -> Vectors:
    factor = np.float32(2.0 ** random.integers(-110, 121))
    return rows * factor, queries * factor


def rotated(rows: np.ndarray, queries: np.ndarray, random: np.random.Generator) -> Vectors:
    rotation = np.linalg.qr(random.normal(size=(rows.shape[1], rows.shape[1])))[0]
    return (rows @ rotation).astype(np.float32), (queries @ rotation).astype(np.float32)


def permuted(rows: np.ndarray, queries: np.ndarray, random: np.random.Generator) -> Vectors:
    order, dimensions = random.permutation(len(rows)), random.permutation(rows.shape[1])
    return rows[order][:, dimensions], queries[:, dimensions]


def repeated(rows: np.ndarray, queries: np.ndarray, random: np.random.Generator) -> Vectors:
    copies = random.integers(len(rows), size=random.integers(1, len(rows)))
    return np.concatenate((rows, rows[copies])), queries


def padded(rows: np.ndarray, queries: np.ndarray, random: np.random.Generator) -> Vectors:
    constants = (random.normal(size=random.integers(1, 9)) * 10 ** random.uniform(-2, 4)).astype(np.float32)
    return np.hstack((rows, np.tile(constants, (len(rows), 1)))), np.hstack(
        (queries, np.tile(constants, (len(queries), 1)))
    )


def with_outliers(rows: np.ndarray, queries: np.ndarray, random: np.random.Generator) -> Vectors:
    """A few rows, less than one in a hundred, of any length."""
    rows, count = rows.copy(), int(random.integers(1, len(rows) // 110))
    rows[random.permutation(len(rows))[:count]] *= np.float32(10 ** random.uniform(0, 30))
    return rows, queries


def slightly_padded(rows: np.ndarray, queries: np.ndarray, random: np.random.Generator) -> Vectors:
    """Angles to large constants would be rounded to nothing in the data themselves."""
    constant = np.float32(random.uniform(-2, 2))
    return np.pad(rows, ((0, 0), (0, 1)), constant_values=constant), np.pad(
        queries, ((0, 0), (0, 1)), constant_values=constant
    )


PROPERTIES: list[tuple[Metric, Change]] = [
    ("l2", translated),
    *((metric, change) for metric in METRICS for change in (scaled, rotated, permuted, repeated)),
    ("l2", padded),
    ("ip", slightly_padded),
    ("cosine", slightly_padded),
    *((metric, with_outliers) for metric in METRICS),
]


@dataclass
class Losses:
    """What was lost in each case; `reported` counts losses that a build would have reported in a line."""

    lost: list[float] = field(default_factory=list)
    reported: int = 0

    @property
    def mean(self) -> float:
        return float(np.mean(self.lost)) if self.lost else 0.0

    @property
    def silent(self) -> int:
        """Cases that lost much, and one more if too much was lost in the mean."""
        much = sum(loss > MOST_LOST_ONCE for loss in self.lost)
        return much + (self.mean > MOST_LOST + NOISE / np.sqrt(max(1, len(self.lost))))


@cache
def plain_recall(number: int, metric: Metric, planes: bool) -> float:
    """Recall of the rows of a case as they are; the properties share their cases."""
    plain = vectors(np.random.default_rng(number))
    return recall(index_in_memory(plain[0], metric, planes=planes), *plain, metric)


def losses(metric: Metric, change: Change, *, planes: bool, cases: int) -> Losses:
    """Compare the recall of plain and of changed rows in so many cases."""
    found = Losses()

    @seed(0)
    @settings(max_examples=cases, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**32 - 1))
    def one_case(number: int) -> None:
        changed = change(*vectors(np.random.default_rng(number)), np.random.default_rng((number, 1)))
        index = index_in_memory(changed[0], metric, planes=planes)
        lost = plain_recall(number, metric, planes) - recall(index, *changed, metric)
        if lost > MOST_LOST and speaks_up(index, metric):
            found.reported += 1
        else:
            found.lost.append(lost)

    one_case()
    return found


def speaks_up(index: MemoryIndex, metric: Metric) -> bool:
    """Whether a build reports what explains a loss; far rows of l2 and cosine explain none of other rows."""
    return index.quality.too_coarse or (metric == "ip" and len(index.far) > 0)
