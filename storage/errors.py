"""Errors a user can cause or must act on. Each message is one line: the file, the value, the remedy."""


class AggtreeError(Exception):
    """Base of every error aggtree raises on purpose; the command line prints it and exits with 2."""


class SourceError(AggtreeError, ValueError):
    """A vector file that cannot be read as what it claims to be."""


class IndexFormatError(AggtreeError):
    """An index directory that is damaged, incomplete or of an unknown version."""


class DiskError(AggtreeError):
    """A file the system would not read, write or rename: no space, no permission, a failing device."""


class UnreachableError(DiskError):
    """A remote store that does not answer; it may do so later."""


class BuildMismatchError(AggtreeError):
    """A build resumed with other parameters or another input than it was started with."""


class BuildLockedError(AggtreeError):
    """A build directory that another live process is writing."""


class MemoryBudgetError(AggtreeError):
    """A plan that does not fit the memory the user allows."""


class JobError(AggtreeError):
    """A partition of a job that failed more often than it may."""
