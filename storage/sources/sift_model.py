"""The file of the model of generated rows: the arrays below, one after the other, then their crc32c.

Little endian, no header: the file is part of the package and changes only together with this table.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from aggtree.engine.synthetic.sift_kernels import BINS, CHILDREN, DIMENSION, NEIGHBOURS, SiftModel
from aggtree.storage.byte_reader import open_bytes
from aggtree.storage.errors import SourceError

ANCHORS = 256
LEVELS = 12

# In the order of SiftModel: name, stored dtype, shape, dtype in memory.
ARRAYS: tuple[tuple[str, str, tuple[int, ...], Any], ...] = (
    ("anchors", "<i2", (ANCHORS, DIMENSION), np.float32),
    ("neighbours", "<u2", (ANCHORS, NEIGHBOURS), np.int64),
    ("shares", "<u8", (ANCHORS,), np.uint64),
    ("spreads", "<u2", (ANCHORS,), np.int64),
    ("basis", "<i2", (DIMENSION, DIMENSION), np.float32),
    ("values", "u1", (DIMENSION, BINS), np.uint8),
    ("weights", "<u2", (LEVELS,), np.int64),
    ("children", "<u8", (CHILDREN,), np.uint64),
    ("factors", "<u2", (256,), np.int64),
    ("max_step", "<u2", (), np.int64),
)


def pack_model(model: SiftModel) -> bytes:
    """The bytes of the model's file."""
    data = b"".join(
        np.asarray(getattr(model, name)).astype(stored).tobytes() for name, stored, _, _ in ARRAYS
    )
    return data + int(google_crc32c.value(data)).to_bytes(4, "little")


def model_path() -> Path:
    """Path of the model in the package."""
    return Path(str(files("aggtree") / "data" / "sift_model.bin"))


def load_model(path: Path) -> SiftModel:
    """Read a model, refusing one that is damaged."""
    reader = open_bytes(str(path))
    try:
        data = reader.read_array(0, (reader.size,), np.uint8).tobytes()
    finally:
        reader.close()
    sizes = [int(np.prod(shape, dtype=int)) * np.dtype(stored).itemsize for _, stored, shape, _ in ARRAYS]
    body = data[:-4]
    if len(body) != sum(sizes) or int(google_crc32c.value(body)).to_bytes(4, "little") != data[-4:]:
        raise SourceError(f"{path}: the model of the generated source is damaged: install aggtree again")
    arrays: list[NDArray[Any]] = []
    offset = 0
    for (_, stored, shape, dtype), size in zip(ARRAYS, sizes, strict=True):
        arrays.append(np.frombuffer(body[offset : offset + size], stored).reshape(shape).astype(dtype))
        offset += size
    return SiftModel._make([*arrays[:-1], int(arrays[-1])])
