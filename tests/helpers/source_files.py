"""Vectors in every format, for tests of the readers."""

import tempfile
from pathlib import Path

import numpy as np

from aggtree.storage.sources.formats.vecs import write_vecs

ROWS, DIMENSION = 1003, 12
FLAT = ("fvecs", "bvecs", "ivecs", "fbin", "u8bin", "i8bin", "ibin", "npy")


def sample(dtype="u1"):
    return np.random.default_rng(0).integers(0, 120, (ROWS, DIMENSION)).astype(dtype)


def bin_bytes(vectors, dtype):
    return np.array(vectors.shape, "<u4").tobytes() + vectors.astype(dtype).tobytes()


def write_npy(path, vectors):
    with path.open("wb") as file:
        np.save(file, vectors)


def write_zarr(path, vectors, **options):
    import zarr

    array = zarr.create_array(str(path), shape=vectors.shape, dtype=vectors.dtype, **options)
    array[:] = vectors


def write_hdf5(path, **arrays):
    import h5py

    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, chunks=(100, array.shape[1]) if len(array) > 100 else None)


def write_parquet(path, columns, row_group_size=100):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=row_group_size)


def write_source(kind: str, folder: Path) -> str:
    """Write the sample in a format and return the spec that opens it."""
    path = folder / f"x.{kind.split(maxsplit=1)[0]}"
    if kind in ("fvecs", "bvecs", "ivecs"):
        path.write_bytes(write_vecs(sample(), kind))
    elif kind.endswith("bin"):
        path.write_bytes(
            bin_bytes(sample(), {"fbin": "<f4", "u8bin": "u1", "i8bin": "i1", "ibin": "<i4"}[kind])
        )
    elif kind.startswith("npy") and kind != "npy parts":
        order = "F" if "fortran" in kind else "C"
        write_npy(path, np.asarray(sample(kind.split()[1] if " " in kind else "u1"), order=order))
    elif kind == "npy parts":
        path = folder / "parts"
        path.mkdir()
        for number, start in enumerate(range(0, ROWS, 95)):
            write_npy(path / f"part-{number}.npy", sample()[start : start + 95])
    elif kind == "zarr":
        write_zarr(path, sample(), chunks=(100, DIMENSION))
    elif kind == "zarr sharded":
        write_zarr(path, sample(), chunks=(50, DIMENSION), shards=(200, DIMENSION))
    elif kind == "zarr v2":
        write_zarr(path, sample("f8"), chunks=(100, 5), zarr_format=2)
    elif kind == "hdf5":
        write_hdf5(path, train=sample(), test=sample("f4")[:5])
    elif kind == "parquet":
        write_parquet(path, {"id": list(range(ROWS)), "vector": list(sample("f4"))})
    return str(path)


def small_file(suffix: str) -> bytes:
    """A short valid file, which fuzzing damages."""
    vectors = sample()[:7, :5]
    if suffix.endswith("vecs"):
        return write_vecs(vectors, suffix)
    if suffix.endswith("bin"):
        return bin_bytes(vectors, {"fbin": "<f4", "u8bin": "u1", "i8bin": "i1", "ibin": "<i4"}[suffix])
    with tempfile.TemporaryDirectory() as folder:
        write_npy(Path(folder) / "x.npy", vectors)
        return (Path(folder) / "x.npy").read_bytes()
