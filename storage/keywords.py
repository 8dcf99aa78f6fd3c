"""Propose the nearest name for a misspelt keyword, as the command line does; signatures are unchanged."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def explain_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """A function that takes what `function` takes, and proposes the nearest name for an unknown keyword."""
    known = [
        parameter.name
        for parameter in signature(function).parameters.values()
        if parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    ]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for keyword in kwargs:
            if keyword not in known:
                remedy = _remedy(keyword, known)
                raise TypeError(f"{function.__name__}() got an unexpected keyword {keyword!r}: {remedy}")
        return function(*args, **kwargs)

    return call


def _remedy(keyword: str, known: list[str]) -> str:
    nearest = get_close_matches(keyword, known, n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else f"it takes {', '.join(known)}"
