"""Everything that decides the bytes of an index, in one record that is kept with the build.

Memory, workers, threads and the place of the files are not in it: they must not change a byte.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from aggtree.engine.params import (
    METRICS,
    AnnealingParams,
    Cooling,
    Metric,
    TreeParams,
    dictionary_sizes,
    parse_words,
)
from aggtree.jobs.planning import defaults
from aggtree.jobs.planning.costs import Workload
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.version import __version__

Words = str | int | Sequence[int] | None
_LATER = ("metric", "taken", "continued")
"""Fields that older builds do not have, and that are left out where they have their defaults."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How an index is made from its source.

    words, beam, seed, cooling : see AnnealingParams; bucket, stray, norm_bytes : see TreeParams.
    batch_rows, train_rows : rows of a training batch, and of all batches together.
    shard_rows : rows of a code shard.
    skip_invalid : leave out rows with NaN or infinite values.
    metric : what queries are answered by; vectors are scaled to length 1 for cosine.
    taken : checksum of dictionaries that were trained before; "" to train from scratch.
    continued : whether training goes on from these dictionaries, instead of being left out.
    """

    words: tuple[int, ...]
    beam: int
    seed: int
    cooling: Cooling
    batch_rows: int
    train_rows: int
    shard_rows: int
    bucket: int
    stray: int
    norm_bytes: int
    skip_invalid: bool
    metric: Metric = "l2"
    taken: str = ""
    continued: bool = False

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ValueError(f"metric {self.metric!r}: expected {' or '.join(METRICS)}")
        if self.continued and not self.taken:
            raise ValueError("continue: expected dictionaries of an index to go on from")
        if self.metric == "ip" and self.norm_bytes == 4:
            raise ValueError("norm_bytes 4: inner products need no norms, leave it at 1")
        for name in ("batch_rows", "train_rows", "shard_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected 1 or more")
        _ = self.annealing, self.tree  # checked here, before anything starts

    @property
    def annealing(self) -> AnnealingParams:
        return AnnealingParams(words=self.words, beam=self.beam, seed=self.seed, cooling=self.cooling)

    @property
    def tree(self) -> TreeParams:
        return TreeParams(bucket=self.bucket, stray=self.stray, norm_bytes=self.norm_bytes)  # type: ignore[arg-type]

    @property
    def chunk_rows(self) -> int:
        """Rows of a shard's inner chunk."""
        whole = self.shard_rows % defaults.CHUNK_ROWS == 0
        return defaults.CHUNK_ROWS if whole else self.shard_rows

    def to_json(self) -> dict[str, Any]:
        record = asdict(self) | {"words": list(self.words)}
        for name in _LATER:
            if record[name] == getattr(Recipe, name):
                del record[name]  # as builds were named before there were others
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Recipe":
        """The recipe a job or a manifest remembers; IndexFormatError when it is none of ours."""
        try:
            values = {
                field.name: record[field.name]
                for field in fields(cls)
                if field.name in record or field.name not in _LATER
            }
            return cls(**values | {"words": tuple(values["words"])})
        except (KeyError, TypeError, ValueError) as error:
            raise IndexFormatError(f"parameters of no build of aggtree {__version__}: {error!r}") from error

    @property
    def trains(self) -> bool:
        """Whether dictionaries are learned."""
        return self.continued or not self.taken

    def for_rows(self, rows: int, now: int) -> "Recipe":
        """The recipe for another number of rows than `now`: shards as a build of them would have."""
        if self.shard_rows != defaults.default_shard_rows(now):
            return self  # chosen by the user
        return replace(self, shard_rows=defaults.default_shard_rows(rows))

    def workload(self, rows: int, dimension: int, dtype: str, source_rows: int = 0) -> Workload:
        """The size of a build of this source."""
        try:
            item_bytes = np.dtype(dtype).itemsize
        except TypeError as error:  # as a manifest may say that is none of ours
            raise IndexFormatError(f"vectors of type {dtype[:40]!r}: not one that numpy knows") from error
        return Workload(
            rows=rows,
            dimension=dimension,
            item_bytes=item_bytes,
            words=self.words,
            beam=self.beam,
            batch_rows=min(self.batch_rows, rows),
            shard_rows=self.shard_rows,
            train_rows=self.train_rows if self.trains else 0,
            tree=self.tree,
            source_rows=source_rows,
            cooling=self.cooling,
        )


def choose_words(rows: int, words: Words, dictionaries: int | None) -> tuple[int, ...]:
    """Sizes of the dictionaries from what a user gave; what is left out follows from the rows."""
    if words is None:
        return (
            dictionary_sizes(dictionaries, 256) if dictionaries is not None else defaults.default_words(rows)
        )
    if isinstance(words, str):
        sizes = parse_words(words)
        words = sizes[0] if len(sizes) == 1 else sizes
    return dictionary_sizes(dictionaries, words)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a user may decide about a build; None follows from the number of rows. See Recipe."""

    words: Words = None
    dictionaries: int | None = None
    beam: int = 10
    seed: int = 0
    cooling: Cooling = "joint"
    train_rows: int | None = None
    batch_rows: int | None = None
    shard_rows: int | None = None
    bucket: int | None = None
    stray: int | None = None
    norm_bytes: int = 1
    skip_invalid: bool = False
    metric: Metric = "l2"
    taken: str = ""
    continued: bool = False


def choose_recipe(rows: int, choices: Choices | None = None, **given: Any) -> Recipe:
    """Complete what the user gave, as `Choices` or one by one, by what the number of rows suggests."""
    chosen = replace(choices or Choices(), **given)
    sizes = choose_words(rows, chosen.words, chosen.dictionaries)
    tree = defaults.default_tree(sizes, rows)
    bucket = tree.bucket if chosen.bucket is None else chosen.bucket
    return Recipe(
        words=sizes,
        beam=chosen.beam,
        seed=chosen.seed,
        cooling=chosen.cooling,
        batch_rows=chosen.batch_rows or defaults.default_batch_rows(rows, chosen.train_rows),
        train_rows=chosen.train_rows or defaults.default_train_rows(rows, sizes),
        shard_rows=chosen.shard_rows or defaults.default_shard_rows(rows),
        bucket=bucket,
        stray=min(bucket, tree.stray) if chosen.stray is None else chosen.stray,
        norm_bytes=chosen.norm_bytes,
        skip_invalid=chosen.skip_invalid,
        metric=chosen.metric,
        taken=chosen.taken,
        continued=chosen.continued,
    )
