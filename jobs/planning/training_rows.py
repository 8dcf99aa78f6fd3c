"""Which rows training reads: ranges spread over the whole source, so that its order does not matter much.

A source is cut into cells of equal size, one for each batch. The dictionaries behind a wide first one learn
from the middle of each cell, the first one from its beginning: if the source has at least twice the training
rows, no row is in both. The residues of rows that trained the first dictionary are too small, and with few
rows per word, dictionaries trained on them fit other rows less well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

FIRST_ROWS_PER_WORD = 60
"""Rows from which a wide first dictionary learns each of its words, where training may read so many.

`python -m bench training first_words` measures what fewer and more of them give.
"""

PIECES = 16
"""Ranges that a batch consists of where it is the only one: it stands for the whole source."""
LEAST_PIECE = 1000
"""Rows of a piece, at least: fewer are not worth a read of their own."""
SAMPLE_PLACES = 64
"""Ranges of a sample of rows."""
SAMPLE_ROWS, SAMPLE_VALUES = 4096, 1 << 19
"""Rows that are measured at the end of a build, and numbers in them: fewer rows if the dimension is high."""

Range = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class TrainingRows:
    """batches : row ranges of equal size, one after the other annealed on.
    pieces : consecutive ranges of `batches` that make up one batch.
    first : row ranges from which a wide first dictionary is learned, in each of its passes; none when it is
        learned from the one batch there is, or when there is no such dictionary.
    """

    batches: list[Range]
    first: list[Range]
    pieces: int = 1

    @property
    def count(self) -> int:
        """Batches."""
        return len(self.batches) // self.pieces

    @property
    def batch_rows(self) -> int:
        """Rows of a batch."""
        return sum(stop - start for start, stop in self.batches[: self.pieces])


def training_rows(
    rows: int, batch_rows: int, train_rows: int, words: int, *, spread: bool = False
) -> TrainingRows:
    """The rows to train on `train_rows` of a source, with a wide first dictionary of `words` words or 0.

    spread : take the only batch from all over a source that has at least twice its rows.
    """
    large = batch_rows >= PIECES * LEAST_PIECE and rows >= 2 * batch_rows
    if spread and train_rows <= batch_rows and large:
        return _spread_rows(rows, batch_rows, words)
    batches = batch_ranges(rows, batch_rows, train_rows)
    distinct = sorted(set(batches))
    if words == 0 or len(distinct) == 1:
        return TrainingRows(batches=batches, first=[])
    size = distinct[0][1] - distinct[0][0]
    wanted = first_rows(words, size, len(distinct))
    length = -(-wanted // len(distinct))
    cells = rows // size
    starts = [start for start, _ in distinct]
    if cells >= 2 * len(distinct):
        starts = [number * cells // len(distinct) * size for number in range(len(distinct))]
    return TrainingRows(batches=batches, first=[(start, start + length) for start in starts])


def _spread_rows(rows: int, batch_rows: int, words: int) -> TrainingRows:
    """One batch in pieces; a first dictionary that needs more rows learns from others."""
    length = batch_rows // PIECES
    batches = [(start, start + length) for start in _starts(rows, PIECES, 0.5)]
    wanted, first = min(FIRST_ROWS_PER_WORD * words, rows), []
    if wanted > batch_rows:
        count = -(-wanted // length)
        first = [(start, min(rows, start + length)) for start in _starts(rows, count, 0.0)]
    return TrainingRows(batches=batches, first=first, pieces=PIECES)


def _starts(rows: int, count: int, part: float) -> list[int]:
    """Where to begin in each of `count` equal cells of a source."""
    return [int((number + part) * (rows // count)) for number in range(count)]


def first_rows(words: int, batch_rows: int, batches: int) -> int:
    """Rows that each pass of a wide first dictionary reads: a batch at least, all batches at most."""
    return min(max(FIRST_ROWS_PER_WORD * words, batch_rows), batches * batch_rows)


def spread_ranges(rows: int, wanted: int, places: int = SAMPLE_PLACES) -> list[Range]:
    """Short ranges of about `wanted` rows in all, spread over a whole source; all rows of a small one."""
    places = min(places, rows)
    ends = [rows * number // places for number in range(places + 1)]
    return [(start, min(stop, start + -(-wanted // places))) for start, stop in pairwise(ends)]


def sample_rows(dimension: int) -> int:
    """Rows of the sample that is measured at the end of a build."""
    return min(SAMPLE_ROWS, max(SAMPLE_PLACES, SAMPLE_VALUES // dimension))


def cut_at(ranges: Sequence[Range], rows: int) -> list[int]:
    """Lengths of the pieces into which the bounds of these ranges cut a source."""
    bounds = sorted({0, rows}.union(*ranges))
    return [later - earlier for earlier, later in pairwise(bounds)]


def batch_ranges(rows: int, batch_rows: int, total: int) -> list[Range]:
    """Row ranges of batches until `total` rows are read: evenly spread, or all rows repeatedly.

    Batches have the same size and start at multiples of it, as the chunks of many sources do; but the last of
    a pass over all rows starts earlier where they do not divide evenly.
    """
    batch_rows = min(batch_rows, rows)
    per_pass = -(-rows // batch_rows)
    count = max(1, -(-total // batch_rows))
    if count < per_pass:
        whole = rows // batch_rows
        places = [(2 * number + 1) * whole // (2 * count) for number in range(count)]
    else:
        places = [number % per_pass for number in range(count)]
    starts = [min(place * batch_rows, rows - batch_rows) for place in places]
    return [(start, start + batch_rows) for start in starts]
