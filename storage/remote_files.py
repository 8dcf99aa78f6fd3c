"""Objects behind fsspec URLs such as s3://bucket/codes.zarr: how to reach them, and why it failed.

Connecting and waiting are bounded, so a wrong address or a missing key is reported within seconds. What may
pass by itself, such as a server that does not answer, is an UnreachableError, which a job tries again;
everything else is final. fsspec is imported where it is used: a process that only answers queries never
loads it.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aggtree.storage.errors import AggtreeError, DiskError, UnreachableError

S3 = ("s3", "s3a")
OBJECT_STORES = (*S3, "gs", "gcs", "az", "abfs", "abfss", "oss", "oci")
"""Here a directory is but the beginning of a name; making one would make the bucket."""

# Seconds and attempts; botocore's own would let a refused connection take a quarter of a minute.
S3_CONFIG = {"connect_timeout": 10, "read_timeout": 60, "retries": {"total_max_attempts": 3}}

_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError")


def is_url(location: str) -> bool:
    """Whether a location is a URL; a path otherwise."""
    return "://" in location


def local_path(location: str) -> Path | None:
    """The path of a location on this machine; None for a remote one."""
    location = location.removeprefix("file://")
    return None if is_url(location) else Path(location)


def connect(url: str, final: type[AggtreeError] = DiskError) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it."""
    with explained_remote(url, final):
        from fsspec.core import url_to_fs

        system, path = url_to_fs(url, **remote_options(url))
        return system, path


def remote_options(url: str) -> dict[str, Any]:
    """Options of fsspec for a URL: bounded waiting, unless the user has configured it."""
    from fsspec.config import conf

    scheme = url.partition("://")[0]
    if scheme in S3 and "config_kwargs" not in conf.get(scheme, {}):
        return {"config_kwargs": S3_CONFIG}
    return {}


@contextmanager
def explained_remote(name: str, final: type[AggtreeError] = DiskError) -> Iterator[None]:
    """Turn whatever a backend raises inside the block into one line about `name`.

    final : the class of an error that will not pass by itself; otherwise it is an UnreachableError.
    """
    try:
        yield
    except AggtreeError:
        raise
    except Exception as error:  # every fsspec backend has error types of its own
        words = _final_words(error)
        if words:
            raise final(f"{name}: {words}") from error
        remedy = "check the network and the address"
        raise UnreachableError(f"{name}: cannot be reached ({_text(error)}): {remedy}") from error


def _text(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())


def _final_words(error: Exception) -> str:
    """What a user must change before it can work; "" for an error that may pass by itself."""
    text = _text(error)
    if isinstance(error, ImportError):
        return f"URLs of this kind need more packages ({text}): pip install 'aggtree[s3]'"
    if words := _credential_words(error, text):
        return words
    if isinstance(error, FileNotFoundError):
        what = "bucket" if "bucket does not exist" in text else "object"
        return f"no such {what}: check the URL"
    if isinstance(error, ValueError) and "rotocol" in text:
        return f"not a URL that fsspec knows ({text}): check its scheme"
    return ""


def _credential_words(error: Exception, text: str) -> str:
    """What is wrong with the credentials; "" for nothing."""
    if type(error).__name__ in _CREDENTIALS:
        return f"no credentials ({text}): set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if "expired" in text.lower():
        return f"the credentials have expired ({text}): renew them and run the same command again"
    if isinstance(error, PermissionError):
        return f"access denied ({text}): check the URL and the rights of these credentials"
    if isinstance(error, OSError) and error.errno == errno.EINVAL:
        # Answers without a body, such as to HEAD, do not say more.
        return f"the store refuses the request ({text}): check the URL and whether the credentials are valid"
    return ""


class RemoteFiles:
    """The objects below a URL, read and written whole.

    An object store shows an object completely or not at all. Other systems may show a part of one while
    it is written; nobody reads before the writer has recorded it.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._system, self._root = connect(url)

    def put(self, key: str, data: bytes) -> None:
        """Write an object; it is durable when this returns."""
        path = f"{self._root}/{key}"
        with explained_remote(f"{self.url}/{key}"):
            if self.url.partition("://")[0] not in OBJECT_STORES:
                self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._system.pipe_file(path, data)

    def get(self, key: str) -> bytes:
        """The bytes of an object."""
        with explained_remote(f"{self.url}/{key}"):
            return bytes(self._system.cat_file(f"{self._root}/{key}"))

    def sizes(self, keys: list[str]) -> dict[str, int]:
        """Bytes of those objects that are there."""
        with explained_remote(self.url):
            self._system.invalidate_cache()  # other processes write here too
            if len(keys) == 1:
                path = f"{self._root}/{keys[0]}"
                return {keys[0]: int(self._system.size(path))} if self._system.isfile(path) else {}
            found = self._system.find(self._root, detail=True)
        sizes = {path.strip("/"): int(facts["size"]) for path, facts in found.items()}
        root = self._root.strip("/")
        return {key: sizes[f"{root}/{key}"] for key in keys if f"{root}/{key}" in sizes}
