"""The primitive of products: rows times words, many times faster than the code of numba's vectorizer.

`multiply_tile` keeps a tile of 6 rows x 16 words in registers. Multiply-add is the exact `fma`, dimension
after dimension, so a result never depends on the block it is computed in.
"""

from aggtree.engine.simd import emulation
from aggtree.engine.simd.builder import Array, Code, Value
from aggtree.engine.simd.primitive import Int64, primitive
from aggtree.engine.simd.vector_code import FLOATS, INT32, INTS, LANES

TILE_ROWS = emulation.TILE_ROWS


@primitive(emulation.multiply_tile)
def multiply_tile(
    code: Code, rows: Array, row: Int64, panel: Array, start: Array, out: Array, column: Int64
) -> None:
    """out[row + r, column + k] = start[column + k] + Σ_j rows[row + r, j] · panel[j, k].

    For r < TILE_ROWS and k < LANES. rows (n, d), panel (d, LANES) float32; out float32, or int32,
    which truncates.
    """
    dimension, width = rows.shape[1], out.shape[1]
    tile = [rows + (row + r) * dimension for r in range(TILE_ROWS)]

    def add_dimension(j: Value, *sums: Value) -> list[Value]:
        words = (panel + j * LANES).load(FLOATS)
        return [
            code.fused_multiply_add((values + j).scalar().splat(FLOATS), words, total)
            for values, total in zip(tile, sums, strict=True)
        ]

    first = (start + column).load(FLOATS)
    for r, total in enumerate(code.loop(0, dimension, 1, [first] * TILE_ROWS, add_dimension)):
        truncated = total.to_integer(INTS) if out.ir.type.pointee == INT32 else total
        (out + ((row + r) * width + column)).store(truncated)
