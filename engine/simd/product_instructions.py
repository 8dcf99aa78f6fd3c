"""LLVM vector code of products: rows times words, many times faster than what numba's vectorizer makes.

`multiply_tile` keeps a tile of 6 rows x 16 words in registers. Multiply-add is the exact `fma`, dimension
after dimension, so a result never depends on the block it is computed in.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from aggtree.engine.simd.vector_code import (
    FLOATS,
    INT64,
    INTS,
    LANES,
    Generator,
    array_data,
    declare,
    load,
    row_length,
    splat,
    store,
)

TILE_ROWS = 6


def _multiply_tile(
    _: Any, rows: Any, row: Any, panel: Any, start: Any, out: Any, column: Any
) -> tuple[Any, Generator]:
    """out[row + r, column + k] = start[column + k] + Σ_j rows[row + r, j] · panel[j, k].

    For r < TILE_ROWS and k < LANES. rows (n, d), panel (d, LANES) float32; out float32, or int32,
    which truncates.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row, column = args[1], args[5]
        dimension = row_length(context, builder, signature, args, 0)
        fma = declare(builder.module, ir.FunctionType(FLOATS, [FLOATS] * 3), f"llvm.fma.v{LANES}f32")
        panel_data = array_data(context, builder, signature, args, 2)
        rows_data = array_data(context, builder, signature, args, 0)
        first = load(builder, builder.gep(array_data(context, builder, signature, args, 3), [column]), FLOATS)
        row_data = [
            builder.gep(rows_data, [builder.mul(builder.add(row, INT64(r)), dimension)])
            for r in range(TILE_ROWS)
        ]
        before = builder.block
        loop, after = builder.append_basic_block("tile"), builder.append_basic_block("tile.end")
        builder.branch(loop)

        builder.position_at_end(loop)
        j = builder.phi(INT64)
        sums = [builder.phi(FLOATS) for _ in range(TILE_ROWS)]
        words = load(builder, builder.gep(panel_data, [builder.mul(j, INT64(LANES))]), FLOATS)
        totals = [
            builder.call(fma, [splat(builder, builder.load(builder.gep(data, [j])), FLOATS), words, total])
            for data, total in zip(row_data, sums, strict=True)
        ]
        following = builder.add(j, INT64(1))
        for value, initial, updated in zip(
            [j, *sums], [INT64(0)] + [first] * TILE_ROWS, [following, *totals], strict=True
        ):
            value.add_incoming(initial, before)
            value.add_incoming(updated, loop)
        builder.cbranch(builder.icmp_signed("<", following, dimension), loop, after)

        builder.position_at_end(after)
        out_data = array_data(context, builder, signature, args, 4)
        width = row_length(context, builder, signature, args, 4)
        for r, total in enumerate(totals):
            place = builder.add(builder.mul(builder.add(row, INT64(r)), width), column)
            value = builder.fptosi(total, INTS) if signature.args[4].dtype == types.int32 else total
            store(builder, value, builder.gep(out_data, [place]))
        return context.get_dummy_value()

    return types.void(rows, types.int64, panel, start, out, types.int64), generate


multiply_tile: Any = intrinsic(_multiply_tile)
