"""A disk that fails at its n-th operation."""

import errno
import os
from pathlib import Path

from aggtree.storage.atomic import Disk


class FailingDisk(Disk):
    """Counts the operations that change the disk; number `at`, and all after it if `forever`, fail."""

    def __init__(self, at: int = -1, code: int = errno.ENOSPC, *, forever: bool = True) -> None:
        self.operations: list[str] = []
        self.at = at
        self.code = code
        self.forever = forever

    def _count(self, name: str) -> None:
        self.operations.append(name)
        number = len(self.operations) - 1
        if number == self.at or (self.forever and 0 <= self.at < number):
            raise OSError(self.code, os.strerror(self.code))

    def create(self, path: Path) -> int:
        self._count("create")
        return super().create(path)

    def write(self, descriptor: int, data: memoryview) -> int:
        self._count("write")
        # Half of it, as the system may: callers must go on with the rest.
        return super().write(descriptor, data[: max(1, len(data) // 2)])

    def sync(self, descriptor: int) -> None:
        self._count("sync")

    def rename(self, source: Path, target: Path) -> None:
        self._count("rename")
        super().rename(source, target)

    def make_directory(self, path: Path) -> None:
        self._count("make_directory")
        super().make_directory(path)

    def remove_file(self, path: Path) -> None:
        self._count("remove_file")
        super().remove_file(path)

    def remove_tree(self, path: Path) -> None:
        self._count("remove_tree")
        super().remove_tree(path)
