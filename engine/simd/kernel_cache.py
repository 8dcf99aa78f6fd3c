"""Machine code of kernels, kept on disk between processes.

numba's own cache picks one directory per module at import time and fails when that directory cannot be
written later; its index file can also pair a signature with the code of another one when two processes write
at once. This cache has no index: the name of a file states everything its code depends on.

    <place>/<kernel>-<digest>.nbk      CRC-32 of the rest (4 bytes), then the pickled machine code

    digest of: Python, numba and llvmlite versions, optimisation level, processor and its features,
               signature, all modules of the engine, the kernel's own module

Places, in this order: the installation, the user's cache directory, a directory of this user in the system's
temporary directory; or `NUMBA_CACHE_DIR` alone, if it is set. Code is read from whichever place has it,
writable or not, and written to the first place that takes it. No failure of a place is an error: the kernel
is compiled instead.
"""

import contextlib
import hashlib
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from zlib import crc32

import llvmlite
import numba
from llvmlite.binding import address_of_symbol
from numba.core import config
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult

NUMBA_CONFIG: Any = config  # neither has types
NUMBA_RESULT: Any = CompileResult
SUFFIX = ".nbk"
DIRECTORY = "aggtree"


def engine_checksum() -> int:
    """Checksum of the names and contents of all modules of the engine, in subfolders too."""
    total = 0
    pending = [("", files("aggtree.engine"))]
    while pending:
        prefix, folder = pending.pop()
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            name = f"{prefix}{entry.name}"
            if entry.is_dir() and entry.name != "__pycache__":
                pending.append((f"{name}/", entry))
            elif entry.name.endswith(".py"):
                total = crc32(entry.read_bytes(), crc32(name.encode(), total))
    return total


SOURCES = engine_checksum()


def places() -> Iterator[Path]:
    """Directories that may hold compiled kernels, in the order in which they are tried."""
    configured = os.environ.get("NUMBA_CACHE_DIR")
    if configured:
        yield Path(configured) / DIRECTORY
        return
    yield Path(__file__).parent / "__pycache__"
    with contextlib.suppress(RuntimeError):  # no home directory
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / DIRECTORY
    yield Path(tempfile.gettempdir()) / f"{DIRECTORY}-{os.geteuid()}"


def is_trusted(place: Path) -> bool:
    """Whether only this user or root can have written there: files are executed."""
    try:
        status = place.stat()
    except OSError:
        return False
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o002


def first_writable_place() -> Path | None:
    """Where compiled code will be kept; None when nowhere."""
    for place in places():
        existing = next(folder for folder in (place, *place.parents) if folder.exists())
        if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
            return place
    return None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it, so that no process reads a partial file."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)  # others may read it
    if not is_trusted(path.parent):
        raise PermissionError(f"{path.parent}: is open to other users")
    descriptor, temporary = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def is_kept(name: str) -> bool:
    """Whether a place has a file of this name."""
    return any(is_trusted(place) and (place / name).exists() for place in places())


def keep(name: str, content: bytes) -> bool:
    """Write a file to the first writable place; False if there is none."""
    for place in places():
        with contextlib.suppress(OSError):
            write_whole(place / name, content)
            return True
    return False


class KernelCache(_Cache):
    """The compiled signatures of one kernel, as numba's dispatcher requests them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = function.__qualname__.replace("<locals>.", "")
        self._source = function.__code__.co_filename
        self._enabled = True

    @property
    def cache_path(self) -> str:
        """The place that is tried first."""
        return str(next(places()))

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def flush(self) -> None:
        """Nothing is buffered."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled code of a signature; None if no place has it."""
        if not self._enabled:
            return None
        name = self._file_name(sig, target_context.codegen())
        for place in places():
            # A file that cannot be read or used is as good as none.
            with contextlib.suppress(Exception):
                content = (place / name).read_bytes()
                if is_trusted(place) and crc32(content[4:]) == int.from_bytes(content[:4], "little"):
                    externals, *state = pickle.loads(content[4:])
                    # Registering all that numba can compile takes longer than to load code that is compiled.
                    if not all(address_of_symbol(symbol) for symbol in externals):
                        target_context.refresh()
                    return NUMBA_RESULT._rebuild(target_context, *state)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save compiled code in the first writable place."""
        if not self._enabled or data.lifted or data.library.has_dynamic_globals:
            return
        payload = pickle.dumps((data.library.external_symbols(), *data._reduce()), protocol=-1)
        keep(self._file_name(sig, data.codegen), crc32(payload).to_bytes(4, "little") + payload)

    def _file_name(self, signature: Any, codegen: Any) -> str:
        facts = (codegen.magic_tuple(), str(signature), _checksum_of(self._source))
        return f"{self._name}-{digest(*facts)}{SUFFIX}"


def digest(*facts: Any) -> str:
    """Name of compiled code with these facts, under this interpreter, compiler and engine."""
    versions = (sys.version, numba.__version__, llvmlite.__version__, NUMBA_CONFIG.OPT, SOURCES)
    return hashlib.sha256(repr((versions, facts)).encode()).hexdigest()[:24]


@cache
def _checksum_of(source: str) -> int:
    """Checksum of a module that may lie outside the engine; 0 for what was typed into an interpreter."""
    try:
        return crc32(Path(source).read_bytes())
    except OSError:
        return 0
