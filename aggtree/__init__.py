"""aggtree: out-of-core, billion-scale nearest-neighbour indexing.

A vector is approximated by a sum of words (codewords, centroids), one of each trained dictionary
(codebook); the codes are kept in a tree that is searched on disk. This package re-exports the public API,
which is implemented in `aggtree.engine` (algorithms on arrays), `aggtree.storage` (files) and `aggtree.jobs`
(memory, scheduling, resuming, command line).
"""

import os

from aggtree.engine.params import AnnealingParams, SearchParams, TreeParams
from aggtree.engine.search.searcher import Answer
from aggtree.engine.search.tuned import TunedPoint
from aggtree.jobs.append import AppendResult, append
from aggtree.jobs.build import build
from aggtree.jobs.compact import compact
from aggtree.jobs.delete import DeleteResult, delete
from aggtree.jobs.exact import exact
from aggtree.jobs.export import ExportResult, export
from aggtree.jobs.plan import plan
from aggtree.jobs.planning.estimate import BuildPlan
from aggtree.jobs.report import report
from aggtree.jobs.running.job_run import BuildResult
from aggtree.jobs.running.progress import Progress
from aggtree.jobs.tune import tune
from aggtree.jobs.verify import verify
from aggtree.storage.errors import (
    AggtreeError,
    BuildLockedError,
    BuildMismatchError,
    DiskError,
    IndexFormatError,
    JobError,
    MemoryBudgetError,
    SourceError,
    UnreachableError,
)
from aggtree.storage.index.opened.vectors import Vectors
from aggtree.storage.index.reader import Index, open_index
from aggtree.storage.keywords import explain_keywords
from aggtree.storage.sources.base import VectorSource, open_source
from aggtree.storage.verify.index import Damage
from aggtree.storage.version import __version__

__all__ = [
    "AggtreeError",
    "AnnealingParams",
    "Answer",
    "AppendResult",
    "BuildLockedError",
    "BuildMismatchError",
    "BuildPlan",
    "BuildResult",
    "Damage",
    "DeleteResult",
    "DiskError",
    "ExportResult",
    "Index",
    "IndexFormatError",
    "JobError",
    "MemoryBudgetError",
    "Progress",
    "SearchParams",
    "SourceError",
    "TreeParams",
    "TunedPoint",
    "UnreachableError",
    "VectorSource",
    "__version__",
    "append",
    "build",
    "compact",
    "delete",
    "exact",
    "export",
    "open",
    "open_source",
    "plan",
    "report",
    "tune",
    "verify",
]


@explain_keywords
def open(path: str | os.PathLike[str], vectors: Vectors | None = None) -> Index:
    """Open a committed index, mapped read-only; IndexFormatError when it is missing or damaged.

    Any number of processes may open it at once; they share one copy in the system's page cache.

    vectors : the original vectors (a path, a source or an array), if they moved since the build; only exact
        distances need them. For an index with appended rows, one source of all rows or a list of the sources
        in order.
    """
    return open_index(path, vectors)
