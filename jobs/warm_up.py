"""Load every kernel once before workers start, so that they find the compiled code on disk.

Otherwise each of them would compile all kernels at the same time, with the memory that takes.
"""

from pathlib import Path

import numpy as np

from aggtree.engine.code_order import sort_codes
from aggtree.engine.encoding import Encoder
from aggtree.engine.tree import build_part
from aggtree.jobs.recipe import Recipe
from aggtree.storage.dictionary_file import load_dictionaries


def warm_up(dictionaries_file: Path, recipe: Recipe, source_dtype: str) -> None:
    """Encode, sort and build one row as the tasks will."""
    dictionaries, norm_ranges = load_dictionaries(dictionaries_file)
    rows = np.zeros((1, dictionaries.dimension), source_dtype)
    codes = Encoder(dictionaries, recipe.beam).encode(rows)
    for dtype in (np.uint32, np.uint64):
        build_part(*sort_codes(codes, np.zeros(1, dtype)), dictionaries, recipe.tree, norm_ranges)
