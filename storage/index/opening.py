"""`aggtree.open`."""

import os

from aggtree.storage.index.opened.vectors import Vectors
from aggtree.storage.index.reader import Index, open_index
from aggtree.storage.keywords import explain_keywords


@explain_keywords
def open(path: str | os.PathLike[str], vectors: Vectors | None = None) -> Index:
    """Open a committed index, mapped read-only; IndexFormatError when it is missing or damaged.

    Any number of processes may open it at once; they share one copy in the system's page cache.

    vectors : the original vectors (a path, a source or an array), if they moved since the build; only exact
        distances need them. For an index with appended rows, one source of all rows or a list of the sources
        in order.
    """
    return open_index(path, vectors)
