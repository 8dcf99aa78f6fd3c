"""The algorithms: numpy arrays in, numpy arrays out. No files, no scheduler, no clock."""

from aggtree.engine.annealing import DictionaryAnnealing
from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.encoding import Encoder
from aggtree.engine.params import AnnealingParams, SearchParams, TreeParams

__all__ = [
    "AnnealingParams",
    "CodeLayout",
    "Dictionaries",
    "DictionaryAnnealing",
    "Encoder",
    "SearchParams",
    "TreeParams",
]
