"""Which locations named by an index may be opened without a request of the user.

A manifest names the vectors of an index, and sometimes its codes, by path or URL. The author of the index
chose these names, so opening them automatically would let a stranger choose which files this process reads
and which servers it contacts. A location is opened automatically only if

- this user passed it to a build: the manifest then holds its seal, a keyed hash that only this user can make;
- or it is below one of the locations in the environment variable AGGTREE_PLACES, separated by commas.

The key is a file of 32 random bytes that only this user can read. Without a home directory there is no key
and no seal. The seal covers the location only: the content found there is compared with its fingerprint.
"""

import hmac
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from aggtree.storage.atomic import put_private
from aggtree.storage.errors import AggtreeError
from aggtree.storage.remote_files import local_path
from aggtree.storage.sources.joined import SCHEME as JOINED
from aggtree.storage.sources.joined import split_spec
from aggtree.storage.sources.unit_rows import SCHEME as UNIT

VARIABLE = "AGGTREE_PLACES"
KEY_BYTES = 32
COMPUTED = ("synthetic:", "demo:")
"""Sources that read nothing but the installation."""


def seal_of(place: str) -> str:
    """The seal of a place that this user named; "" where this user can have no key."""
    key = _key(_key_file(), make=True) if place else None
    return _sealed(place, key) if key else ""


def _sealed(place: str, key: bytes) -> str:
    return hmac.new(key, place.encode("utf-8", "surrogateescape"), "sha256").hexdigest()


def may_open(place: str, seal: str) -> bool:
    """Whether a location that an index names may be opened without a request of the user."""
    key = _key(_key_file(), make=False) if seal else None
    if key and hmac.compare_digest(_sealed(place, key).encode(), seal.encode()):
        return True
    listed = [listed for listed in os.environ.get(VARIABLE, "").split(",") if listed]
    return all(any(_is_below(part, own) for own in listed) for part in _parts(place))


def refusal(index: Path, what: str, place: str, remedy: str) -> str:
    """Why a place is not opened, in one line."""
    return (
        f"{index}: names its {what} at {place[:200]!r}, which this user did not name to a build; {remedy}, "
        f"or list the place in {VARIABLE}"
    )


def _parts(place: str) -> Iterator[str]:
    """The paths and URLs of a source, without the names of data sets inside them."""
    if place.startswith(JOINED):
        for part in split_spec(place):
            yield from _parts(part)
    elif place.startswith(UNIT):
        yield from _parts(place.removeprefix(UNIT))
    elif not place.startswith(COMPUTED):
        yield place.partition("::")[0]


def _is_below(place: str, own: str) -> bool:
    path, directory = local_path(place), local_path(own)
    if path is not None and directory is not None:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(directory))
    if path is not None or directory is not None or ".." in place.split("/"):
        return False
    return place == own or place.startswith(own.rstrip("/") + "/")


def _key_file() -> Path | None:
    with suppress(RuntimeError):  # no home directory
        return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "aggtree" / "key"
    return None


def _key(file: Path | None, *, make: bool) -> bytes | None:
    """The key of this user, made if there is none; None if there can be none."""
    if file is None:
        return None
    known = _read_key(file)
    if known is None and make:
        with suppress(AggtreeError):
            put_private(file, secrets.token_bytes(KEY_BYTES))
        known = _read_key(file)
    return known


def _read_key(file: Path) -> bytes | None:
    """The key in a file that nobody else can have read or written."""
    try:
        status = file.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return None
        key = file.read_bytes()
    except OSError:
        return None
    return key if len(key) == KEY_BYTES else None
