"""A two-dimensional zarr array, format 2 or 3, sharded or not, local or behind a URL.

zarr reads a missing chunk as fill values. A partly copied directory would then be silently
indexed as zeros, so a source with missing chunks is refused.
"""

from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggtree.storage.byte_reader import reason
from aggtree.storage.errors import SourceError, UnreachableError
from aggtree.storage.remote_files import explained_remote, is_url, remote_options
from aggtree.storage.sources.formats.chunked_rows import ChunkedRows

# More chunk files than this cannot be listed in reasonable time; only a damaged shape implies more.
MAX_OBJECTS = 10_000_000


class ZarrSource(ChunkedRows):
    """Rows of a zarr array; `x.zarr::name` is the array `name` of a group."""

    def __init__(self, location: str, name: str) -> None:
        spec = f"{location}::{name}" if name else location
        self._array = _open_array(location, name, spec)
        shape = tuple(self._array.shape)
        super().__init__(spec, shape, np.dtype(self._array.dtype), int(self._array.chunks[0]) if shape else 1)
        self._refuse_missing_chunks()

    def _refuse_missing_chunks(self) -> None:
        objects = self._array.shards or self._array.chunks
        expected = -(-self.rows // objects[0]) * -(-self.dimension // objects[1])
        if expected > MAX_OBJECTS:
            raise SourceError(
                f"{self.spec}: shape {self._array.shape} in chunks of {objects}: use larger chunks"
            )
        inside = np.prod(np.array(objects) // np.array(self._array.chunks))
        with explained_remote(self.spec, SourceError) if is_url(self.spec) else nullcontext():
            missing = expected - int(self._array.nchunks_initialized // inside)
        if missing > 0:
            raise SourceError(
                f"{self.spec}: {missing} of its {expected} chunk files are missing: copy it again, "
                "or write it with write_empty_chunks=True"
            )

    def _decode(self, start: int, stop: int) -> NDArray[Any]:
        return np.asarray(self._array[start:stop])


def _open_array(location: str, name: str, spec: str) -> Any:
    import zarr

    options = remote_options(location) if is_url(location) else None
    try:
        opened = zarr.open(location, mode="r", path=name or None, storage_options=options)
    except FileNotFoundError as error:
        raise SourceError(f"{spec}: no zarr array there: check the path") from error
    except Exception as error:  # damaged metadata surface as errors of many types
        kind = UnreachableError if is_url(location) else SourceError
        raise kind(f"{spec}: cannot be opened as zarr: {reason(error)}") from error
    if isinstance(opened, zarr.Group):
        names = sorted(key for key, _ in opened.arrays())
        raise SourceError(f"{spec}: a zarr group, name an array in it as {location}::NAME; it has {names}")
    return opened


def open_vectors(location: str, name: str) -> ZarrSource:
    """Open a zarr array as vectors."""
    return ZarrSource(location, name)
