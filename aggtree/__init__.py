"""aggtree: out-of-core, billion-scale nearest-neighbour indexing.

The names a user needs, re-exported; the work is in `aggtree.engine` (algorithms on arrays),
`aggtree.storage` (what is on disk) and `aggtree.jobs` (memory, order, resume, command line).
"""

from aggtree.engine.params import AnnealingParams, SearchParams, TreeParams
from aggtree.jobs.append import append
from aggtree.jobs.build import build
from aggtree.jobs.compact import compact
from aggtree.jobs.delete import delete
from aggtree.jobs.export import export
from aggtree.storage.errors import AggtreeError, IndexFormatError, SourceError
from aggtree.storage.index.reader import Index
from aggtree.storage.index.reader import open_index as open
from aggtree.storage.version import __version__

__all__ = [
    "AggtreeError",
    "AnnealingParams",
    "Index",
    "IndexFormatError",
    "SearchParams",
    "SourceError",
    "TreeParams",
    "__version__",
    "append",
    "build",
    "compact",
    "delete",
    "export",
    "open",
]
