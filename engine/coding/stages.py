"""Stages of a long code: groups of dictionaries, each encoded by one beam and locked."""

from aggtree.engine.dictionaries import CodeLayout


def stages(layout: CodeLayout, size: int) -> list[tuple[int, int]]:
    """First dictionary of each stage of `size`, and the one behind its last; a wide first one is in none.

    A stage is locked before the next begins, so that time grows with the length of a code and not with its
    square. With a size of 0 one beam encodes all dictionaries.
    """
    start, stop = int(layout.wide), layout.levels
    step = size or max(1, stop - start)
    return [(first, min(first + step, stop)) for first in range(start, stop, step)]
