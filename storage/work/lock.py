"""One builder per index directory.

The lock is a file held by `flock`, which the kernel gives back when its owner dies, however it
dies. The file also names the owner: for the message, and for file systems shared by machines
that do not see each other's locks, where an owner on another machine is believed to be alive.
A host name does not tell machines apart: containers and clones share theirs.
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

HOST_NAMESPACE = "pid:[4026531836]"
"""Of processes outside of containers: a constant of Linux."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A process, distinguished from a later one of the same number by its start.

    boot : the running kernel's boot, the same in all containers of a machine; "" where unknown.
    start : of the process, in clock ticks since boot. No wall clock, which may be set back.
    machine : the machine across boots; "" in containers, and in locks of older releases.
    namespace : in which the pid counts; "" where unknown, and in locks of older releases.
    """

    pid: int
    host: str
    boot: str
    start: str
    machine: str = ""
    namespace: str = ""

    @classmethod
    def this_process(cls) -> "Owner":
        return cls(
            pid=os.getpid(),
            host=socket.gethostname(),
            boot=_boot(),
            start=_start(os.getpid()),
            machine=_machine(),
            namespace=_namespace(),
        )

    def is_near(self) -> bool:
        """Whether it ran on this machine, where the kernel's locks are reliable."""
        if self.boot == _boot() != "":
            return True
        same_name = self.host == socket.gethostname()
        if self.boot == _boot() == "":
            return same_name  # the system provides nothing else
        return same_name and self.machine == _machine() != ""  # before it was booted again

    def is_gone(self) -> bool:
        """Whether a process of this machine has ended; False if it cannot be seen from here."""
        if self.boot != _boot():
            return True
        if self.namespace not in ("", _namespace()):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return self.start != _start(self.pid)

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
        texts |= {name: str(record.get(name, "")) for name in ("machine", "namespace")}
        return Owner(pid=int(record["pid"]), **texts)
    except (IndexFormatError, KeyError, ValueError, TypeError):
        return None  # killed while writing its name: it had done nothing yet


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _machine() -> str:
    """Id of this machine; "" where unknown, and in a container: all of one image may share its file."""
    if _namespace() != HOST_NAMESPACE:
        return ""
    try:
        return Path("/etc/machine-id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
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
