"""Errors that a user causes or can fix. Each message is one line with the file, the value and the remedy."""


class AggtreeError(Exception):
    """Base class of all errors of aggtree; the command line prints the message and exits with status 2."""


class SourceError(AggtreeError, ValueError):
    """Input vectors, queries or ids that are unreadable, malformed or unsuitable."""


class IndexFormatError(AggtreeError):
    """An index directory that is damaged, incomplete or of an unknown version."""


class DiskError(AggtreeError):
    """The system failed to read, write or rename a file: no space, no permission, a failing device."""


class UnreachableError(DiskError):
    """A remote store does not respond; a retry may succeed."""


class BuildMismatchError(AggtreeError):
    """A job is resumed with other parameters or another input than it was started with."""


class BuildLockedError(AggtreeError):
    """Another running process is writing to the index directory."""


class MemoryBudgetError(AggtreeError):
    """The plan does not fit the allowed memory."""


class JobError(AggtreeError):
    """A task of a job failed more often than it may be retried."""
