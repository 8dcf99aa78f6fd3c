"""Kernels that call one primitive each: they cannot be called from Python."""

from typing import Any

from aggtree.engine.simd.compiled import kernel
from aggtree.engine.simd.instructions.byte_products import multiply_bytes, score_bytes
from aggtree.engine.simd.instructions.planes import scan_block
from aggtree.engine.simd.instructions.products import multiply_tile
from aggtree.engine.simd.instructions.rows import (
    bfloat16_value,
    float16_value,
    sum_products,
    sum_squares,
)
from aggtree.engine.simd.instructions.short_scores import (
    collect_keys,
    copy_path,
    rank_of_key,
    score_short_paths,
)
from aggtree.engine.simd.instructions.sieve import sieve_64, sieve_64_of_nine
from aggtree.engine.simd.instructions.vectors import (
    add_squares,
    count_at_most,
    lanes_at_most,
    lowest_bit,
    row_minima,
    score_row,
)
from aggtree.engine.simd.intrinsics import load_8_bytes


@kernel
def call_score_row(
    table: Any,
    offsets: Any,
    count: Any,
    own: Any,
    first: Any,
    base: Any,
    words: Any,
    scores: Any,
    place: Any,
    minima: Any,
    lane: Any,
) -> Any:
    return score_row(table, offsets, count, own, first, base, words, scores, place, minima, lane)


@kernel
def call_score_short_paths(
    table: Any,
    first: Any,
    paths: Any,
    path: Any,
    count: Any,
    own: Any,
    column: Any,
    base: Any,
    live: Any,
    scores: Any,
) -> Any:
    return score_short_paths(table, first, paths, path, count, own, column, base, live, scores)


@kernel
def call_collect_keys(scores: Any, live: Any, limit: Any, least: Any, keys: Any) -> Any:
    return collect_keys(scores, live, limit, least, keys)


@kernel
def call_rank_of_key(keys: Any, count: Any, key: Any) -> Any:
    return rank_of_key(keys, count, key)


@kernel
def call_copy_path(paths: Any, source: Any, target: Any) -> Any:
    return copy_path(paths, source, target)


@kernel
def call_scan_block(
    planes: Any, place: Any, count: Any, weighted: Any, tables: Any, limit: Any, sums: Any
) -> Any:
    return scan_block(planes, place, count, weighted, tables, limit, sums)


@kernel
def call_row_minima(values: Any, row: Any, words: Any, minima: Any) -> Any:
    return row_minima(values, row, words, minima)


@kernel
def call_count_at_most(values: Any, count: Any, limit: Any) -> Any:
    return count_at_most(values, count, limit)


@kernel
def call_lanes_at_most(values: Any, place: Any, limit: Any) -> Any:
    return lanes_at_most(values, place, limit)


@kernel
def call_lowest_bit(mask: Any) -> Any:
    return lowest_bit(mask)


@kernel
def call_add_squares(start: Any, words: Any, rows: Any, first: Any, last: Any, sums: Any) -> Any:
    return add_squares(start, words, rows, first, last, sums)


@kernel
def call_multiply_tile(rows: Any, row: Any, panel: Any, start: Any, out: Any, column: Any) -> Any:
    return multiply_tile(rows, row, panel, start, out, column)


@kernel
def call_score_bytes(
    row: Any,
    row_sum: Any,
    quads: Any,
    column: Any,
    vectors: Any,
    offsets: Any,
    base: Any,
    step: Any,
    unit: Any,
    ranks: Any,
    place: Any,
) -> Any:
    return score_bytes(row, row_sum, quads, column, vectors, offsets, base, step, unit, ranks, place)


@kernel
def call_sieve_64(
    records: Any, place: Any, size: Any, index: Any, tables: Any, whole: Any, planes: Any, most: Any
) -> Any:
    return sieve_64(records, place, size, index, tables, whole, planes, most)


@kernel
def call_sieve_64_of_nine(records: Any, place: Any, tables: Any, most: Any) -> Any:
    return sieve_64_of_nine(records, place, tables, most)


@kernel
def call_load_8_bytes(array: Any, offset: Any) -> Any:
    return load_8_bytes(array, offset)


@kernel
def call_sum_products(query: Any, values: Any, first: Any, whole: Any, sums: Any) -> Any:
    return sum_products(query, values, first, whole, sums)


@kernel
def call_sum_squares(query: Any, values: Any, first: Any, whole: Any, sums: Any) -> Any:
    return sum_squares(query, values, first, whole, sums)


@kernel
def call_float16_value(bits: Any) -> Any:
    return float16_value(bits)


@kernel
def call_bfloat16_value(bits: Any) -> Any:
    return bfloat16_value(bits)


@kernel
def call_multiply_bytes(
    row: Any, row_sum: Any, quads: Any, panel: Any, units: Any, unit: Any, start: Any, out: Any
) -> Any:
    return multiply_bytes(row, row_sum, quads, panel, units, unit, start, out)


CALLS = {
    "multiply_bytes": call_multiply_bytes,
    "sum_products": call_sum_products,
    "sum_squares": call_sum_squares,
    "float16_value": call_float16_value,
    "bfloat16_value": call_bfloat16_value,
    "scan_block": call_scan_block,
    "score_row": call_score_row,
    "score_short_paths": call_score_short_paths,
    "collect_keys": call_collect_keys,
    "rank_of_key": call_rank_of_key,
    "copy_path": call_copy_path,
    "row_minima": call_row_minima,
    "count_at_most": call_count_at_most,
    "lanes_at_most": call_lanes_at_most,
    "lowest_bit": call_lowest_bit,
    "add_squares": call_add_squares,
    "multiply_tile": call_multiply_tile,
    "score_bytes": call_score_bytes,
    "sieve_64": call_sieve_64,
    "sieve_64_of_nine": call_sieve_64_of_nine,
    "load_8_bytes": call_load_8_bytes,
}
"""By the name of the primitive."""
