"""All rows within a radius of each query, among those that the search visits.

The tree compares queries with reconstructions x̂, so a vector x near the radius may be missed or wrongly
found. With the vectors themselves the answer is exact among what was visited: by the triangle inequality
‖q - x̂‖ <= ‖q - x‖ + ‖x - x̂‖ every x within the radius is among the candidates within radius + error, where
the error is the largest of a sample of rows.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggtree.engine.search.nearest import (
    RowReader,
    SearchSpace,
    check_radius,
    filtered_params,
    scan_rows,
    scans,
    search_trees,
    squared,
)
from aggtree.engine.search.request import SearchRequest, chosen_params
from aggtree.engine.search.searcher import Answer

FIRST_ANSWERS = 256
MORE_ANSWERS = 8
"""How many answers a query first gets, and how many times more if all of them are within the radius."""

Part = tuple[NDArray[np.int64], Answer]
"""Numbers of some queries (p,), and their answers (p, a)."""


class RangeAnswer(NamedTuple):
    """Answers of query i, nearest first, are ids[starts[i] : starts[i + 1]], and their squared distances.

    starts : (q + 1,) int64, ids : (a,) int64, distances : (a,) float32
    """

    starts: NDArray[np.int64]
    ids: NDArray[np.int64]
    distances: NDArray[np.float32]


def find_within_radius(space: SearchSpace, queries: ArrayLike, request: SearchRequest) -> RangeAnswer:
    """All rows the search visits whose squared distance to a query is at most radius².

    The request has a radius; its k is not used. rerank : neither 0 nor "auto" for exact distances.
    """
    radius, within = request.radius, request.within
    if radius is None:
        raise ValueError("a range search without a radius: name one")
    check_radius(space)
    _, count, _ = space.searcher.prepared(queries)
    block = np.atleast_2d(np.asarray(queries))
    reader = space.vectors.open() if request.rerank not in ("auto", 0) else None
    if within is not None and within.count == 0:
        return _within([], radius, count)
    if within is not None and scans(within, 0):
        found = scan_rows(space, block, within.count, within, request.threads, reader)
        return _within([(np.arange(count), found)], radius, count)
    return _within(_candidates(space, block, radius, request, reader), radius, count)


def _candidates(
    space: SearchSpace,
    block: NDArray[np.generic],
    radius: float,
    request: SearchRequest,
    reader: RowReader | None,
) -> list[Part]:
    """Answers that hold every visited row within the radius, part by part of the queries."""
    within, threads = request.within, request.threads
    # All that is within the radius is wanted, and not the nearest alone.
    params = replace(chosen_params(request.params, space.default_params), pruning_ratio=math.inf)
    enough = None
    if within is not None:
        params, enough = filtered_params(params, within), 0
    farthest = squared(radius + space.largest_error if reader is not None else radius)
    wanted, most = FIRST_ANSWERS, max(1, space.rows)
    open_queries, parts = np.arange(len(block)), []
    while len(open_queries):
        wanted = min(wanted, most)
        answer, _ = search_trees(space, block[open_queries], wanted, params, threads, within, enough=enough)
        full = (answer.ids[:, -1] >= 0) & (answer.distances[:, -1] <= farthest) & (wanted < most)
        done = open_queries[~full]
        if len(done):
            near = answer.distances[~full] <= farthest
            columns = max(1, int(near.sum(axis=1).max()))
            ids = np.ascontiguousarray(np.where(near, answer.ids[~full], -1)[:, :columns])
            if reader is None:
                parts.append((done, Answer(ids, answer.distances[~full][:, :columns])))
            else:
                parts.append((done, reader.rank(block[done], ids, columns, threads)))
        open_queries, wanted = open_queries[full], wanted * MORE_ANSWERS
    return parts


def _within(parts: list[Part], radius: float, count: int) -> RangeAnswer:
    """The answers within the radius, query after query."""
    counts = np.zeros(count, np.int64)
    inside = [(answer.ids >= 0) & (answer.distances <= squared(radius)) for _, answer in parts]
    for (numbers, _), mask in zip(parts, inside, strict=True):
        counts[numbers] = mask.sum(axis=1)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    ids, distances = np.empty(starts[-1], np.int64), np.empty(starts[-1], np.float32)
    for (numbers, answer), mask in zip(parts, inside, strict=True):
        # Answers are sorted: those inside are the first of each row, and keep their order.
        places = np.repeat(starts[numbers], counts[numbers]) + _ranks(counts[numbers])
        ids[places], distances[places] = answer.ids[mask], answer.distances[mask]
    return RangeAnswer(starts, ids, distances)


def _ranks(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0..c-1 for each count c, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
