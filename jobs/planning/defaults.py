"""Defaults of a build, which follow from the number of rows, their dimension and their type.

These choices decide bytes of the index, so they may depend on the input and never on the machine, on memory
or on the number of workers.
"""

import math
from dataclasses import replace
from typing import Literal

from aggtree.engine.dictionaries import SHORT_WORDS
from aggtree.engine.params import AnnealingParams, Metric, TreeParams

BATCH_ROWS = 100_000
ONE_BATCH_ROWS = 200_000
CHUNK_ROWS = 100_000
SHARD_ROWS = 1_000_000
SHARDS_WANTED = 16

LEAST_BYTES, MOST_BYTES = 2, 128
"""Of a code that is chosen by its bytes."""
EMBEDDING_ROWS = 4096
"""Any code distinguishes fewer rows than these, and a large part of them is re-ranked."""
SHORT_STAGE = 16
"""Short dictionaries of a stage: four stages have the error of one beam over 64 dictionaries."""
SHORT_TRAIN_ROWS = 65_536
"""Least rows to train short dictionaries on."""
SHORT_ROWS_PER_FIRST_WORD = 128
"""Rows of each word of the first dictionary before short ones, as far as one batch has them: half as many
raise the error of glove200k by 1.7 %."""

Quality = Literal["fast", "default", "best"]
QUALITIES: tuple[Quality, ...] = ("default", "fast", "best")
"""How much work training may take; the default first."""

_SCHEDULES: dict[tuple[bool, Quality], tuple[int, int, int, int]] = {
    (False, "fast"): (12, 24, 48, 4),
    (False, "default"): (25, 20, 0, 4),
    (False, "best"): (60, 48, 0, 0),
    (True, "fast"): (6, 32, 128, 4),
    (True, "default"): (10, 64, 384, 4),
    (True, "best"): (30, 256, 0, 0),
}
"""rounds, early_rows, late_rows, early_beam by whether leaves are in planes."""

Words = tuple[int, ...]


def scheduled(params: AnnealingParams, quality: Quality, *, planes: bool) -> AnnealingParams:
    """The parameters with the rounds that suit a quality, and the rows and paths of each.

    Rounds with noise need few rows and a narrow beam if they take turns at the rows; the last ones, without
    noise, decide the error. `python -m bench build_time` measures it.
    """
    if quality not in QUALITIES:
        raise ValueError(f"quality {quality!r}: expected {' or '.join(QUALITIES)}")
    rounds, early_rows, late_rows, early_beam = _SCHEDULES[planes, quality]
    return replace(
        params,
        rounds=rounds,
        early_rows=early_rows,
        late_rows=late_rows,
        early_beam=min(early_beam, params.beam),
        stage=params.stage or (SHORT_STAGE if planes else 0),
    )


def default_words(rows: int) -> Words:
    """Sizes of the dictionaries: eight of 256, behind a wide first one if there are enough rows.

    A first dictionary of about 2·√n words leaves about √n/2 vectors below each, which is what makes the tree
    prune. Beyond a million rows it grows faster, because all words are no longer compared with a query:
    1024 words at 300 thousand rows, 4096 at 3 million, 16,384 at 10 million, 65,536 from 100 million on.
    At 10 million rows that width was not compared with others. There are never more words than rows.
    """
    wanted = max(2 * math.sqrt(max(1, rows)), 2000 * (rows / 1e6) ** 0.8)
    first = 2 ** round(math.log2(wanted))
    behind = (min(256, rows),) * 8
    return (min(first, 65_536), *behind) if first > 256 else behind


def default_code_bytes(dimension: int) -> int:
    """Bytes of the code of a float vector: two bits per dimension up to 32 bytes, then one up to 64.

    Embeddings are searched for their ten nearest, which take more to tell apart than the nearest. With two
    bits per dimension .96 of the true ten are among 105 candidates on word embeddings of 100 dimensions, and
    with one bit .97 on sentence embeddings of 256.
    """
    return max(8, min(32, dimension // 4), min(64, dimension // 8))


def words_of_bytes(rows: int, size: int, metric: Metric) -> Words:
    """Sizes of the dictionaries of a code of `size` bytes: two of 16 words a byte, behind a wide first one.

    Euclidean distances need one of the bytes for the norm.
    """
    if not LEAST_BYTES <= size <= MOST_BYTES:
        raise ValueError(f"bytes_per_vector {size}: expected {LEAST_BYTES} to {MOST_BYTES}")
    labels = size - (metric == "l2")
    return (max(2, min(default_words(rows)[0], rows)), *(min(SHORT_WORDS, rows),) * (2 * labels))


def default_tree(words: Words, rows: int) -> TreeParams:
    """Larger buckets behind a wide first dictionary: its nodes are already small.

    Measured on 500,000 real SIFT with 1024 first words: bucket 1024 and direct_leaves 16 find more in less
    than half the time of 128 and 1, and take 13.0 instead of 15.0 bytes per vector. Behind the widest
    dictionary a node of a hundred million rows has 1500: sieved at a stretch they take less time than with
    their best children, and so do the few nodes that have many more. A node of a billion has 15,000, which
    is too many.
    """
    if words[0] <= 256:
        return TreeParams(bucket=64, direct_leaves=1)
    if words[0] < 65_536:
        return TreeParams(bucket=1024, direct_leaves=16)
    return TreeParams(bucket=16_384 if rows < 4096 * words[0] else 4096, direct_leaves=16)


def default_batch_rows(rows: int, train_rows: int | None = None) -> int:
    """Rows of one training batch; a small source, or all that is to be read of a large one, is one batch.

    Annealing the same rows offline learns much more from a small source than passing over them as a stream:
    measured on 20,000 SIFT vectors, a held-out error of 22.9k instead of 27.1k in less time.
    """
    most = min(rows, train_rows or rows)
    return most if most <= ONE_BATCH_ROWS else BATCH_ROWS


def default_train_rows(rows: int, words: Words, *, planes: bool = False) -> int:
    """Rows that dictionaries are annealed on: one batch, of which short dictionaries in planes need less.

    A first dictionary that needs more rows, such as four million for 65,536 words, reads them in passes of
    its own. On SIFT vectors, 25 rounds that take turns at 200,000 rows have 1.01 of the error of 25 rounds on
    100,000 rows and 19 more batches, in .4 of the time.
    """
    most = min(rows, ONE_BATCH_ROWS)
    return min(most, max(SHORT_TRAIN_ROWS, SHORT_ROWS_PER_FIRST_WORD * words[0])) if planes else most


def default_shard_rows(rows: int) -> int:
    """Rows of one code shard: a million, less where that would leave too few shards to work on at once."""
    wanted = -(-rows // SHARDS_WANTED)
    unit = CHUNK_ROWS if wanted > CHUNK_ROWS else CHUNK_ROWS // 2
    return min(SHARD_ROWS, -(-wanted // unit) * unit)
