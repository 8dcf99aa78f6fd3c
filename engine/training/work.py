"""How much work annealing is, in rows that a full beam encodes: for progress, and for estimates of time."""

from aggtree.engine.coding.stages import stages
from aggtree.engine.coding.wide_dictionary import EARLY_ROWS_PER_WORD, ITERATIONS, LAST_ITERATIONS
from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.params import AnnealingParams
from aggtree.engine.training.cooling import is_early, start_rows, thinning

BEAM_OF_PRODUCTS = 8
"""A row's products with all words take as long as this many paths."""

ROUND_ROWS_PER_WORD = 5
"""What a round takes besides encoding: tables, least squares."""

START_PASSES = 8
"""Row passes of k-means on the rows that dictionaries start from: most are in few dimensions."""


def fit_work(params: AnnealingParams, rows: int, *, learns_first: bool) -> list[float]:
    """Work of each step of a fit from scratch to `rows` rows: the start of each stage, and its rounds.

    learns_first : whether a wide first dictionary is learned from the same rows.
    """
    layout, steps = CodeLayout(params.words), list[float]()
    bounds = stages(layout, params.stage)
    longest = max((sum(params.words[start:stop]) for start, stop in bounds), default=1)
    late = rows // thinning(params, rows, longest, early=False)
    for number, (start, stop) in enumerate(bounds):
        words = sum(params.words[start:stop])
        rounds = [_round_work(params, late, words, turn) for turn in range(params.rounds)]
        begin = START_PASSES * min(late, start_rows(params) * words / (stop - start)) + sum(rounds[:1])
        begin += late if number else _first_work(params, rows, learns_first)
        # Words of all stages together make a pass: a stage has a share of them.
        share = words / sum(params.words[int(layout.wide) :])
        steps += [share * begin, *(share * work for work in rounds)]
    return steps or [float(rows)]


def _round_work(params: AnnealingParams, late: int, words: int, number: int) -> float:
    early = is_early(params, number)
    beam = (params.early_beam if early else 0) or params.beam
    rows = late // thinning(params, late, words, early=early)
    cost = (BEAM_OF_PRODUCTS + beam) / (BEAM_OF_PRODUCTS + params.beam)
    return rows * cost + ROUND_ROWS_PER_WORD * words


def _first_work(params: AnnealingParams, rows: int, learned: bool) -> float:
    """Work of learning a wide first dictionary, and of choosing its word for the rows."""
    layout = CodeLayout(params.words)
    if not layout.wide:
        return 0.0
    size = params.words[0]
    few = min(rows, EARLY_ROWS_PER_WORD * size)
    passes = (ITERATIONS - LAST_ITERATIONS) * few + LAST_ITERATIONS * rows if learned else 0
    behind = sum(params.words[1:]) * (1 + params.beam / BEAM_OF_PRODUCTS)
    return (passes + rows) * min(size, 2048) / max(behind, 1)
