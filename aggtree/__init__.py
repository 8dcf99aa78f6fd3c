"""aggtree: out-of-core, billion-scale nearest-neighbour indexing.

A vector is approximated by a sum of words (codewords, centroids), one of each trained dictionary
(codebook); the codes are kept in a tree that is searched on disk. This package re-exports the public API,
which is implemented in `aggtree.engine` (algorithms on arrays), `aggtree.storage` (files) and `aggtree.jobs`
(memory, scheduling, resuming, command line).
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # type checkers and editors read this; at run time a name is imported when it is used first
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
    from aggtree.jobs.warm_up import warm_up
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
    from aggtree.storage.index.opening import open
    from aggtree.storage.index.reader import Index
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
    "warm_up",
]

_HOMES = {
    "AnnealingParams": "engine.params",
    "SearchParams": "engine.params",
    "TreeParams": "engine.params",
    "Answer": "engine.search.searcher",
    "TunedPoint": "engine.search.tuned",
    "AppendResult": "jobs.append",
    "append": "jobs.append",
    "build": "jobs.build",
    "compact": "jobs.compact",
    "DeleteResult": "jobs.delete",
    "delete": "jobs.delete",
    "exact": "jobs.exact",
    "ExportResult": "jobs.export",
    "export": "jobs.export",
    "plan": "jobs.plan",
    "BuildPlan": "jobs.planning.estimate",
    "report": "jobs.report",
    "BuildResult": "jobs.running.job_run",
    "Progress": "jobs.running.progress",
    "tune": "jobs.tune",
    "verify": "jobs.verify",
    "warm_up": "jobs.warm_up",
    "AggtreeError": "storage.errors",
    "BuildLockedError": "storage.errors",
    "BuildMismatchError": "storage.errors",
    "DiskError": "storage.errors",
    "IndexFormatError": "storage.errors",
    "JobError": "storage.errors",
    "MemoryBudgetError": "storage.errors",
    "SourceError": "storage.errors",
    "UnreachableError": "storage.errors",
    "open": "storage.index.opening",
    "Index": "storage.index.reader",
    "VectorSource": "storage.sources.base",
    "open_source": "storage.sources.base",
    "Damage": "storage.verify.index",
    "__version__": "storage.version",
}
"""The module of each name, below this package."""


def __getattr__(name: str) -> object:
    """Import a public name, or a layer, when it is used first: a process loads what it needs and no more."""
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name in ("engine", "storage", "jobs"):
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """All public names, imported or not."""
    return sorted({*globals(), *__all__})
