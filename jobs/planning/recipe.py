"""The recipe of an index: everything that decides its bytes, in one record, and how it is chosen.

Memory, workers, threads and the location of the files are not part of it: they must not change a byte.
"""

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.params import (
    METRICS,
    AnnealingParams,
    Metric,
    TreeParams,
    dictionary_sizes,
    parse_words,
)
from aggtree.engine.tree.planes import allows_planes
from aggtree.jobs.planning import costs, defaults
from aggtree.jobs.planning.costs import Workload
from aggtree.jobs.planning.defaults import Quality
from aggtree.jobs.planning.reused_dictionaries import ReusedDictionaries
from aggtree.jobs.planning.training_rows import TrainingRows, training_rows
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.manifest import read_manifest
from aggtree.storage.sources.base import VectorSource
from aggtree.storage.version import __version__
from aggtree.storage.work.job_record import PYTHON_NAMES

Words = str | int | Sequence[int]
"""Sizes of the dictionaries: `"4096,256x8"`, one size for all of them, or each size."""

NormBytes = Literal[0, 1, 2, 4]
_KEYS = {name: key for key, name in PYTHON_NAMES.items()}
"""Fields whose key in JSON is another one."""
_LATER: dict[str, Any] = {
    "metric": "l2",
    _KEYS["reused"]: "",
    "continued": False,
    "rounds": AnnealingParams.rounds,
    "tolerance": AnnealingParams.tolerance,
    "planes": False,
    "stage": AnnealingParams.stage,
    "early_rows": AnnealingParams.early_rows,
    "late_rows": AnnealingParams.late_rows,
    "early_beam": AnnealingParams.early_beam,
}
"""Values that older builds do not record: left out of the JSON where they have these defaults."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How an index is made from its source.

    annealing, tree : how dictionaries are learned, and how codes are arranged.
    batch_rows, train_rows : rows of a training batch, and of all batches together.
    shard_rows : rows of a code shard.
    skip_invalid : skip rows with NaN or infinite values.
    metric : distance of queries; vectors are scaled to length 1 for cosine.
    reused : checksum of dictionaries that were trained before; "" to train from scratch.
    continued : whether training continues from these dictionaries, instead of being skipped.
    """

    annealing: AnnealingParams
    tree: TreeParams
    batch_rows: int
    train_rows: int
    shard_rows: int
    skip_invalid: bool = False
    metric: Metric = "l2"
    reused: str = ""
    continued: bool = False

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ValueError(f"metric {self.metric!r}: expected {' or '.join(METRICS)}")
        if self.continued and not self.reused:
            raise ValueError("continue_training: expected the dictionaries of an index to continue from")
        if self.metric == "ip" and self.tree.norm_bytes == 4:
            raise ValueError("norm_bytes 4: inner products need no norms, leave it at 1")
        if self.tree.planes and not allows_planes(CodeLayout(self.words)):
            raise ValueError(
                f"planes: expected dictionaries of up to 16 words behind the first, not {self.words}"
            )
        if self.metric == "l2" and self.tree.norm_bytes == 0:
            raise ValueError("norm_bytes 0: Euclidean distances need norms, leave it at 1")
        for name in ("batch_rows", "train_rows", "shard_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected 1 or more")

    @property
    def words(self) -> tuple[int, ...]:
        """Sizes of the dictionaries."""
        return self.annealing.words

    @property
    def chunk_rows(self) -> int:
        """Rows of a shard's inner chunk."""
        whole = self.shard_rows % defaults.CHUNK_ROWS == 0
        return defaults.CHUNK_ROWS if whole else self.shard_rows

    def training_rows(self, rows: int) -> TrainingRows:
        """The rows of a source of `rows` rows that training reads."""
        learned = self.words[0] if CodeLayout(self.words).wide and not self.reused else 0
        spread = self.annealing.early_rows > 0
        return training_rows(rows, self.batch_rows, self.train_rows, learned, spread=spread)

    @property
    def trains(self) -> bool:
        """Whether dictionaries are learned."""
        return self.continued or not self.reused

    def flat(self) -> dict[str, Any]:
        """All values in one flat record, as JSON has them."""
        own = asdict(self)
        values = {**own.pop("annealing"), **own.pop("tree"), **own, "words": list(self.words)}
        return {_KEYS.get(name, name): value for name, value in values.items()}

    def to_json(self) -> dict[str, Any]:
        """The record kept with a build, from which its id is computed."""
        later = _LATER.items()
        return {name: value for name, value in self.flat().items() if (name, value) not in later}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Recipe":
        """The recipe in a job record or a manifest; IndexFormatError when it is invalid."""
        try:
            known = _LATER | dict(record)
            known |= {name: known[key] for name, key in _KEYS.items()}
            known["words"] = tuple(known["words"])
            annealing, tree = _made_of(AnnealingParams, known), _made_of(TreeParams, known)
            return _made_of(cls, known | {"annealing": annealing, "tree": tree})
        except (KeyError, TypeError, ValueError) as error:
            raise IndexFormatError(f"parameters of no build of aggtree {__version__}: {error!r}") from error

    def for_rows(self, rows: int, now: int) -> "Recipe":
        """The recipe for another number of rows than `now`, with the shard size of a build of that number."""
        if self.shard_rows != defaults.default_shard_rows(now):
            return self  # chosen by the user
        return replace(self, shard_rows=defaults.default_shard_rows(rows))

    def workload(self, rows: int, dimension: int, dtype: str, source_rows: int = 0) -> Workload:
        """The size of a build of this source."""
        try:
            item_bytes = np.dtype(dtype).itemsize
        except TypeError as error:  # a manifest may come from elsewhere
            raise IndexFormatError(f"vectors of type {dtype[:40]!r}: not one that numpy knows") from error
        return Workload(
            rows=rows,
            dimension=dimension,
            item_bytes=item_bytes,
            annealing=self.annealing,
            tree=self.tree,
            batch_rows=min(self.batch_rows, rows),
            shard_rows=self.shard_rows,
            train_rows=self.train_rows if self.trains else 0,
            source_rows=source_rows,
        )


Record = TypeVar("Record", AnnealingParams, TreeParams, Recipe)


def _made_of(kind: type[Record], record: Mapping[str, Any]) -> Record:
    """A dataclass from those values of a flat record that are its fields."""
    return kind(**{part.name: record[part.name] for part in fields(kind)})


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Choices of a user about a build; None is completed from the number of rows. See Recipe.

    words, dictionaries : sizes of the dictionaries, and how many; or the index whose dictionaries are reused.
    continue_training : continue to train the reused dictionaries.
    annealing : all but its words, which the two above decide.
    quality : how much work training may take; decides rounds, and the rows and paths of each.
    bytes_per_vector : instead of words: bytes of a code, all but the first label, in planes.
    size : instead of both: bytes of the whole index, which choose the bytes of a code.
    planes : whether the dictionaries that are reused are those of an index whose leaves are in planes.
    bucket, direct_leaves, norm_bytes : see TreeParams.
    """

    words: Words | None = None
    bytes_per_vector: int | None = None
    size: int | None = None
    planes: bool = False
    dictionaries: int | str | os.PathLike[str] | None = None
    continue_training: bool = False
    annealing: AnnealingParams = field(default_factory=AnnealingParams)
    quality: Quality = "default"
    train_rows: int | None = None
    batch_rows: int | None = None
    shard_rows: int | None = None
    bucket: int | None = None
    direct_leaves: int | None = None
    norm_bytes: NormBytes = TreeParams.norm_bytes
    skip_invalid: bool = False
    metric: Metric = "l2"

    def tree(self, words: tuple[int, ...], rows: int) -> TreeParams:
        """The tree of these choices over `rows` codes of such words."""
        if self.in_planes:
            given = {"bucket": self.bucket, "direct_leaves": self.direct_leaves}
            given["norm_bytes"] = None if self.norm_bytes == TreeParams.norm_bytes else self.norm_bytes
            for name, value in given.items():
                if value is not None:
                    raise ValueError(f"{name} {value}: does not apply to leaves in planes, omit it")
            return TreeParams(planes=True, norm_bytes=1 if self.metric == "l2" else 0)
        usual = defaults.default_tree(words, rows)
        bucket = usual.bucket if self.bucket is None else self.bucket
        direct_leaves = min(bucket, usual.direct_leaves) if self.direct_leaves is None else self.direct_leaves
        return TreeParams(bucket=bucket, direct_leaves=direct_leaves, norm_bytes=self.norm_bytes)

    @property
    def in_planes(self) -> bool:
        """Whether leaves are stored in planes."""
        return self.planes or self.bytes_per_vector is not None


def make_recipe(source: VectorSource, choices: Choices) -> tuple[Recipe, ReusedDictionaries | None]:
    """The recipe of a build of this source as a user chose it, and the dictionaries it reuses, if any."""
    if choices.dictionaries is None or isinstance(choices.dictionaries, int):
        if choices.continue_training:
            raise ValueError("continue_training: `dictionaries` names no index to continue from")
        recipe = choose_recipe(source.rows, with_code_bytes(source, choices))
        check_training_rows(source, recipe)
        return recipe, None
    index = Path(choices.dictionaries)
    manifest = read_manifest(index)
    if choices.words is not None:
        raise ValueError(f"words {choices.words}: {index} gives the dictionaries, leave them out")
    if manifest.metric != choices.metric:
        raise ValueError(f"metric {choices.metric}: the dictionaries of {index} are for {manifest.metric}")
    if manifest.dimension != source.dimension:
        raise ValueError(
            f"{source.spec}: vectors of dimension {source.dimension}, {index} is of {manifest.dimension}"
        )
    reused = ReusedDictionaries.of(index, manifest)
    first = manifest.first_segment
    # The same codes for the same rows: encoded in the stages the dictionaries were trained in.
    annealing = replace(choices.annealing, stage=first.parameters.get("stage", AnnealingParams.stage))
    chosen = replace(
        choices, words=manifest.words, dictionaries=None, planes=first.planes, annealing=annealing
    )
    recipe = choose_recipe(source.rows, chosen)
    return replace(recipe, reused=reused.checksum, continued=choices.continue_training), reused


def with_code_bytes(source: VectorSource, choices: Choices) -> Choices:
    """The choices with the bytes of a code where these decide: float vectors, or the size of the index, do.

    Vectors of bytes, such as SIFT, and sources of few rows have dictionaries of 256 words by default.
    """
    if choices.size is not None:
        return replace(choices, bytes_per_vector=_bytes_within(source, choices), size=None)
    of_words = (choices.words, choices.bytes_per_vector, choices.dictionaries)
    of_tree = (choices.bucket, choices.direct_leaves)
    chosen = any(value is not None for value in (*of_words, *of_tree)) or choices.norm_bytes != 1
    if chosen or source.dtype.kind != "f" or source.rows < defaults.EMBEDDING_ROWS:
        return choices
    return replace(choices, bytes_per_vector=defaults.default_code_bytes(source.dimension))


def _bytes_within(source: VectorSource, choices: Choices) -> int:
    """The most bytes per vector whose index takes at most the size that the user allows."""
    if choices.bytes_per_vector is not None:
        raise ValueError("size: decides the bytes of a code, leave out bytes_per_vector")

    def index_bytes(size: int) -> int:
        recipe = choose_recipe(source.rows, replace(choices, bytes_per_vector=size, size=None))
        return costs.index_bytes(recipe.workload(source.rows, source.dimension, source.dtype.name))

    allowed = choices.size or 0
    fitting = range(defaults.LEAST_BYTES, defaults.MOST_BYTES + 1)
    size = bisect_right(fitting, allowed, key=index_bytes) + defaults.LEAST_BYTES - 1
    if size < defaults.LEAST_BYTES:
        least = -(-index_bytes(defaults.LEAST_BYTES) // 2**20)
        raise ValueError(f"size: {source.rows:,} rows take at least {least}MiB, allow that much")
    return size


def choose_recipe(rows: int, choices: Choices | None = None) -> Recipe:
    """Complete the choices of a user by defaults for the number of rows; no dictionaries are reused."""
    chosen = choices or Choices()
    words = choose_words(rows, chosen)
    annealing = replace(chosen.annealing, words=words)
    if annealing.cooling == "joint" and annealing.rounds == AnnealingParams.rounds:
        annealing = defaults.scheduled(annealing, chosen.quality, planes=chosen.in_planes)
    train_rows = chosen.train_rows or defaults.default_train_rows(rows, words, planes=chosen.in_planes)
    return Recipe(
        annealing=annealing,
        tree=chosen.tree(words, rows),
        batch_rows=chosen.batch_rows or defaults.default_batch_rows(rows, train_rows),
        train_rows=train_rows,
        shard_rows=chosen.shard_rows or defaults.default_shard_rows(rows),
        skip_invalid=chosen.skip_invalid,
        metric=chosen.metric,
    )


def check_training_rows(source: VectorSource, recipe: Recipe) -> None:
    """ValueError if training would read fewer rows than a dictionary that it starts from scratch has words.

    Rows that are skipped because of invalid values are not known yet.
    """
    words = recipe.words
    wide = CodeLayout(words).wide
    found = recipe.training_rows(source.rows)
    batch = found.batch_rows
    first = sum(stop - start for start, stop in found.first) or batch
    narrow = max(words[wide:], default=0)
    if wide and first < words[0]:
        few, size = first, words[0]
    elif batch < narrow:
        few, size = batch, narrow
    else:
        return
    if source.rows < size:
        remedy = "add vectors or use fewer words"
    else:
        remedy = f"raise train_rows and batch_rows to {size:,} or more, or use fewer words"
    raise ValueError(f"{source.spec}: {few:,} rows to train on cannot teach {size:,} words: {remedy}")


def choose_words(rows: int, choices: Choices) -> tuple[int, ...]:
    """Sizes of the dictionaries from the choices of a user, completed from the number of rows."""
    count = choices.dictionaries if isinstance(choices.dictionaries, int) else None
    words = choices.words
    if choices.bytes_per_vector is not None:
        if words is not None or count is not None:
            raise ValueError("bytes_per_vector: decides the dictionaries, leave out words and dictionaries")
        return defaults.words_of_bytes(rows, choices.bytes_per_vector, choices.metric)
    if words is None:
        return defaults.default_words(rows) if count is None else dictionary_sizes(count, 256)
    if isinstance(words, str):
        sizes = parse_words(words)
        words = sizes[0] if len(sizes) == 1 else sizes
    return dictionary_sizes(count, words)
