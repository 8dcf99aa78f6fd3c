"""The files of a data set: PREFIX_base, PREFIX_learn and PREFIX_query as bvecs in one folder."""

from pathlib import Path

import numpy as np

from aggtree.storage.vector_source import open_source


def read_vectors(folder: Path, prefix: str, name: str) -> np.ndarray:
    """All rows of one file of the set; `name` is base, learn or query."""
    with open_source(folder / f"{prefix}_{name}.bvecs") as source:
        return np.ascontiguousarray(source.read(0, source.rows))
