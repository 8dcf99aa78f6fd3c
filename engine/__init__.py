"""The algorithms: numpy arrays in, numpy arrays out. No files, no scheduler, no clock."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # type checkers and editors read this; a search does without training
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

_HOMES = {
    "AnnealingParams": "params",
    "CodeLayout": "dictionaries",
    "Dictionaries": "dictionaries",
    "DictionaryAnnealing": "training.annealing",
    "Encoder": "coding.encoding",
    "SearchParams": "params",
    "TreeParams": "params",
}
"""The module of each name, below this package."""


def __getattr__(name: str) -> object:
    """Import a public name when it is used first."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """All public names, imported or not."""
    return sorted({*globals(), *__all__})
