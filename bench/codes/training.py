"""Effect of the training rows: their number and choice for a wide first dictionary, and few rows.

    python -m bench training [--data DIR] [first_words|other_rows|few_rows|more_rows ...]
    python -m bench training --rows-per-word 15 other_rows

E is a mean squared error. `first_words`: a wide first dictionary from several numbers of rows per word, E of
other rows after each pass. `other_rows`: the dictionaries after a wide first one, trained on the rows the
first was learned from and on others, E of both and of rows no part has seen. Both take generated rows.

`few_rows` takes PREFIX_learn in DIR, a tenth of it held out: E of both parts at the start, after rounds that
fit all words to the rows, and after as many rounds on mixtures, with several shares of the second row and
several numbers of axes. All go on from one start. PREFIX_base gives the covariance for the bound: the least E
that any code of so many bits has for a Gaussian source.

`more_rows` takes the last fifth of PREFIX_base for E, and trains on a quarter, a half and all of
PREFIX_learn, then on PREFIX_learn and the rest of PREFIX_base, beside Faiss's residual quantizer: what more
rows would bring.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from threadpoolctl import threadpool_limits

from aggtree.engine.coding.wide_dictionary import word_chooser
from aggtree.engine.params import parse_words
from aggtree.engine.training import annealing, mixing
from aggtree.engine.training.annealing import DictionaryAnnealing
from aggtree.engine.training.mixing import LeadingAxes, leading_axes
from aggtree.engine.training.wide_dictionary_trainer import FirstDictionaryTrainer
from aggtree.jobs.planning.training_rows import FIRST_ROWS_PER_WORD
from aggtree.storage.sources.base import open_source
from bench import record
from bench.data.data_sets import read_vectors

BEAM = 10
BATCH = 100_000
HELD_OUT = 20_000
MORE_ROUNDS = 60
ROWS_PER_WORD = (15, 30, 60, 120)
SHARES = (0.0, 0.3, 0.5, 0.7)
SPARE_AXES = (1, 1.5, 2, 3, 4)
"""Numbers of axes, as multiples of those an ideal code describes."""

Measured = tuple[dict[str, Any], dict[str, Any]]
"""Parameters and results of a line."""


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench training", description=__doc__)
    parser.add_argument("what", nargs="*", help=f"{', '.join(MEASURES)}; all when left out")
    parser.add_argument("--data", type=Path, help="the folder of PREFIX_learn and PREFIX_base, for few_rows")
    parser.add_argument("--prefix", default="photogist10k")
    parser.add_argument("--first", type=int, default=8192, help="words of the first dictionary")
    parser.add_argument("--rows-per-word", type=int, default=FIRST_ROWS_PER_WORD, help="for other_rows")
    parser.add_argument("--words", default="256x8", help="of the others, and of few_rows")
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args(arguments)
    options.what = options.what or list(MEASURES)
    if set(options.what) - {*MEASURES}:
        parser.error(f"{options.what}: expected some of {', '.join(MEASURES)}")
    for what in {"few_rows", "more_rows"} & {*options.what} if options.data is None else ():
        parser.error(f"{what}: name the folder of the vectors by --data")
    return options


def generated_rows(count: int) -> np.ndarray:
    with open_source(f"synthetic:sift?rows={count}&seed=1") as source:
        return source.read(0, count)


def mean_error(rows: np.ndarray, decoded: np.ndarray) -> float:
    return float(((rows - decoded) ** 2).sum(axis=1, dtype=np.float64).mean())


def first_error(words: np.ndarray, rows: np.ndarray) -> float:
    """E of the first word alone, chosen as encoding does."""
    return mean_error(rows, words[word_chooser(words).assign(rows)[0]])


def code_error(trainer: DictionaryAnnealing, rows: np.ndarray) -> float:
    """E of the whole code."""
    return mean_error(rows, trainer.decode(trainer.encode(rows)))


def learned_words(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Words as they were drawn, then after each pass; no pass is left out for gaining little."""
    trainer = FirstDictionaryTrainer(size, tolerance=-1)
    while not trainer.done:
        for start in range(0, len(rows), BATCH):
            trainer.add(rows[start : start + BATCH])
        trainer.end_pass()
        yield trainer.words


def first_words(options: argparse.Namespace) -> Measured:
    """E of rows not learned from, by rows per word: drawn words, then after each pass."""
    rows = generated_rows(HELD_OUT + max(ROWS_PER_WORD) * options.first)
    held_out, rows = rows[:HELD_OUT], rows[HELD_OUT:]
    errors = {}
    for count in ROWS_PER_WORD:
        passes = learned_words(rows[: count * options.first], options.first)
        errors[str(count)] = [first_error(words, held_out) for words in passes]
    return {"first": options.first, "held_out": HELD_OUT}, {"E": errors}


def other_rows(options: argparse.Namespace) -> Measured:
    """E of three kinds of rows, with the later dictionaries trained on two of them."""
    count = options.rows_per_word * options.first
    rows = generated_rows(count + BATCH + HELD_OUT)
    learned, others, neither = np.split(rows, [count, count + BATCH])
    *_, words = learned_words(learned, options.first)
    kinds = {"learned": learned[:HELD_OUT], "others": others[:HELD_OUT], "neither": neither}
    sizes = (options.first, *parse_words(options.words))
    codes = {}
    for name, trained in {"learned": learned[:BATCH], "others": others}.items():
        trainer = DictionaryAnnealing(words=sizes, beam=BEAM, rounds=options.rounds)
        trainer.fit(trained, first=words)
        codes[name] = {kind: code_error(trainer, part) for kind, part in kinds.items()}
    parameters = {"first": options.first, "words": options.words, "rounds": options.rounds, "batch": BATCH}
    first = {kind: first_error(words, part) for kind, part in kinds.items()}
    return parameters | {"rows_per_word": options.rows_per_word}, {"first_E": first, "E": codes}


class FewRows:
    """Anneals in several ways from one start, which is the residual quantization of `rows`."""

    def __init__(self, rows: np.ndarray, held_out: np.ndarray, words: tuple[int, ...], rounds: int) -> None:
        self.rows, self.held_out = rows, held_out
        bits = float(np.log2(words).sum())
        with mock.patch.object(mixing, "SPARE_AXES", 1):
            self.ideal_axes = len(leading_axes(rows, bits).axes)
        with mock.patch.object(mixing, "SPARE_AXES", rows.shape[1]):
            self._space = leading_axes(rows, bits)
        states = []
        trainer = DictionaryAnnealing(words=words, beam=BEAM, rounds=rounds)
        trainer.fit(rows, progress=lambda *_: states.append(trainer.state()))
        self._start = states[0]
        self.start, self.mixed = self.errors(DictionaryAnnealing.from_state(states[0])), self.errors(trainer)

    def errors(self, trainer: DictionaryAnnealing) -> dict[str, float]:
        return {"trained": code_error(trainer, self.rows), "held_out": code_error(trainer, self.held_out)}

    def joint(self) -> dict[str, float]:
        """With all words fitted to the rows themselves."""
        with mock.patch.object(annealing, "JOINT_ROWS_PER_WORD", 0):
            return self._go_on()

    def mixtures(self, share: float, axes: int) -> dict[str, float]:
        """With mixtures of this share of the second row, on so many axes."""
        space = LeadingAxes(self._space.centre, np.ascontiguousarray(self._space.axes[:axes]), 0.0)
        with (
            mock.patch.object(mixing, "MIX", share),
            mock.patch.object(annealing, "leading_axes", lambda *_: space),
        ):
            return self._go_on()

    def _go_on(self) -> dict[str, float]:
        return self.errors(DictionaryAnnealing.from_state(self._start).fit(self.rows, resume=True))


def gaussian_bound(rows: np.ndarray, bits: float) -> float:
    """Least E of a code of so many bits for Gaussian rows with this covariance: reverse water-filling."""
    spread = np.linalg.eigvalsh(np.cov(rows.T, dtype=np.float64))[::-1]
    spread = np.maximum(spread, 1e-12 * spread[0])
    # log2 of the error on each axis when the first 1, 2, ... are described.
    level = (np.cumsum(np.log2(spread)) - 2 * bits) / np.arange(1, len(spread) + 1)
    described = np.count_nonzero(np.log2(spread) > level)
    return float(described * 2 ** level[described - 1] + spread[described:].sum())


def few_rows(options: argparse.Namespace) -> Measured:
    """E of training rows and of a tenth held out, by the ways of cooling; the bound for the base file."""
    learn, words = read_vectors(options.data, options.prefix, "learn"), parse_words(options.words)
    out = np.arange(len(learn)) % 10 == 9
    few = FewRows(learn[~out], learn[out], words, options.rounds)
    usual = mixing.SPARE_AXES * few.ideal_axes

    def mixtures(share: float, axes: int) -> dict[str, float]:
        return few.mixed if (share, axes) == (mixing.MIX, usual) else few.mixtures(share, axes)

    parameters = {
        "prefix": options.prefix,
        "words": options.words,
        "rounds": options.rounds,
        "rows": len(few.rows),
        "held_out": len(few.held_out),
        "dimension": learn.shape[1],
    }
    base = read_vectors(options.data, options.prefix, "base")
    return parameters, {
        "start": few.start,
        "joint": few.joint(),
        "mixed": few.mixed,
        "ideal_axes": few.ideal_axes,
        "shares": {str(share): mixtures(share, usual) for share in SHARES},
        "axes": {
            str(count): mixtures(mixing.MIX, count)
            for count in (round(spare * few.ideal_axes) for spare in SPARE_AXES)
        },
        "bound": gaussian_bound(base, float(np.log2(words).sum())),
    }


def more_rows(options: argparse.Namespace) -> Measured:
    """E of the same rows by the number of training rows, ours and of Faiss's residual quantizer."""
    from bench.codes.quantizer import train_faiss, train_ours

    learn, base = (read_vectors(options.data, options.prefix, kind) for kind in ("learn", "base"))
    rest, test = np.split(base, [len(base) * 4 // 5])
    every = np.concatenate([learn, rest])
    words = parse_words(options.words)
    settings = argparse.Namespace(bytes=len(words), rounds=MORE_ROUNDS)
    errors: dict[str, dict[str, float]] = {"da": {}, "rq": {}}
    for count in (len(learn) // 4, len(learn) // 2, len(learn), len(every)):
        errors["da"][str(count)] = train_ours(settings, every[:count], test)["E"]
        errors["rq"][str(count)] = train_faiss("rq", settings, every[:count], test)["E"]
    parameters = {"prefix": options.prefix, "words": options.words, "rounds": MORE_ROUNDS, "test": len(test)}
    bits = float(np.log2(words).sum())
    return parameters | {"dimension": base.shape[1]}, {"E": errors, "bound": gaussian_bound(base, bits)}


MEASURES: dict[str, Callable[[argparse.Namespace], Measured]] = {
    "first_words": first_words,
    "other_rows": other_rows,
    "few_rows": few_rows,
    "more_rows": more_rows,
}


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    for what in options.what:
        began = time.perf_counter()
        with threadpool_limits(1):
            parameters, results = MEASURES[what](options)
        seconds = time.perf_counter() - began
        record.write("training", {"what": what} | parameters, results | {"seconds": seconds})
    return 0
