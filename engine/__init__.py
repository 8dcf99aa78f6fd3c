"""The algorithms: numpy arrays in, numpy arrays out. No files, no scheduler, no clock."""

from aggtree.engine.coding.encoding import Encoder
from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.params import AnnealingParams, SearchParams, TreeParams
from aggtree.engine.training.annealing import DictionaryAnnealing

__all__ = [
    "AnnealingParams",
    "CodeLayout",
    "Dictionaries",
    "DictionaryAnnealing",
    "Encoder",
    "SearchParams",
    "TreeParams",
]
