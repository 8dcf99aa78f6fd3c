"""Random trees with what they were made from, and trees of garbage."""

import naive
import numpy as np

from aggtree.engine.dictionaries import Dictionaries
from aggtree.engine.params import TreeParams
from aggtree.engine.tree.layout import Tree, build_tree
from helpers.trees import random_codes, random_dictionaries, whole_ranges


def make(words: tuple[int, ...], rows: int, alphabet: int = 300, seed: int = 0, **kind: int) -> tuple:
    """Codes, ids, dictionaries and their tree."""
    codes = random_codes(words, rows, alphabet, seed)
    ids = np.random.default_rng(seed).permutation(2 * rows)[:rows].astype(np.uint32)
    dictionaries = random_dictionaries(words, seed)
    params = TreeParams(**kind)
    return (
        codes,
        ids,
        dictionaries,
        build_tree(codes, ids, dictionaries, params, whole_ranges(len(words))),
        params,
    )


def vectors(codes: np.ndarray, dictionaries: Dictionaries) -> np.ndarray:
    rows = [naive.labels_of(code, dictionaries.layout) for code in codes]
    return np.array([naive.reconstruction(row, dictionaries) for row in rows])


def garbage(tree: Tree, seed: int) -> Tree:
    """The tree with every byte that a file holds, but no length, replaced by noise."""
    random = np.random.default_rng(seed)

    def noise(array: np.ndarray) -> np.ndarray:
        return np.frombuffer(random.bytes(array.nbytes), array.dtype)

    names = ("labels", "norms", "child_start", "leaf_start", "records", "ids")
    return tree._replace(**{name: noise(getattr(tree, name)) for name in names})
