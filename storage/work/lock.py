"""One builder per index directory.

The lock is a file held by `flock`, which the kernel releases when its owner dies, however it
dies. The file also names the owner: for the message, and for file systems shared by hosts
that do not see each other's locks, where an owner on another host is assumed to be alive.
"""

import errno
import fcntl
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aggtree.storage import atomic
from aggtree.storage.errors import BuildLockedError, IndexFormatError
from aggtree.storage.index.format import LOCK
from aggtree.storage.sealed_json import seal, unseal


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A process, distinguished from a later one of the same number by its start.

    boot : the running kernel's boot, the same in all containers of a machine; "" where unknown.
    start : of the process, in clock ticks since boot, not by the wall clock, which may be set back.
    """

    pid: int
    host: str
    boot: str
    start: str

    @classmethod
    def this_process(cls) -> "Owner":
        return cls(pid=os.getpid(), host=socket.gethostname(), boot=_boot(), start=_start(os.getpid()))

    def is_near(self) -> bool:
        """Whether it ran on this machine, where the kernel's locks are reliable."""
        return self.host == socket.gethostname() or (self.boot != "" and self.boot == _boot())

    def is_gone(self) -> bool:
        """Whether a process of this machine has ended."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return self.boot != _boot() or self.start != _start(self.pid)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class BuildLock:
    """Context manager: inside it, this process is the only one that builds in `index`.

    BuildLockedError names the owner when another process does.
    """

    def __init__(self, index: str | os.PathLike[str]) -> None:
        self.path = Path(index) / LOCK
        self._descriptor = -1

    def __enter__(self) -> Self:
        atomic.make_directory(self.path.parent)
        descriptor, locked = self._open()
        try:
            owner = _read_owner(descriptor)
            if owner and not (owner.is_near() and (locked or owner.is_gone())):
                raise BuildLockedError(self._refusal(owner))
            self._write_owner(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        # The name goes while the lock is held; whoever opened the old file sees that it has no name.
        try:
            atomic.remove_file(self.path)
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> tuple[int, bool]:
        """Descriptor of the file that has the name at present, and whether the system can lock it."""
        while True:
            with atomic.explained(self.path):
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    return descriptor, False
                owner = _read_owner(descriptor)
                os.close(descriptor)
                raise BuildLockedError(self._refusal(owner)) from error
            if self._has_name(descriptor):
                return descriptor, True
            os.close(descriptor)

    def _has_name(self, descriptor: int) -> bool:
        try:
            named = self.path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(descriptor), named)

    def _write_owner(self, descriptor: int) -> None:
        # In place, because the lock belongs to this file and not to its name.
        with atomic.explained(self.path):
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            atomic.write_all(descriptor, seal(asdict(Owner.this_process())))
            atomic.disk.sync(descriptor)

    def _refusal(self, owner: Owner | None) -> str:
        who = str(owner or "another process")
        return f"{self.path.parent}: {who} is building here; wait for it, or if it is gone remove {self.path}"


def _read_owner(descriptor: int) -> Owner | None:
    try:
        record: dict[str, Any] = unseal(os.pread(descriptor, 4096, 0), LOCK)
        texts = {name: str(record[name]) for name in ("host", "boot", "start")}
        return Owner(pid=int(record["pid"]), **texts)
    except (IndexFormatError, KeyError, ValueError, TypeError):
        return None  # killed while writing its name: it had done nothing yet


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start(pid: int) -> str:
    """Start of a living process; "" if it has ended, is a zombie, or start times are unknown."""
    try:
        # The name in parentheses may hold spaces. After it come the state and, as 20th field, the start.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""
