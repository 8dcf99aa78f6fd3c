"""The embedded default: real SIFT descriptors shipped with the package (aggtree/data/PROVENANCE.md)."""

from importlib.resources import files
from pathlib import Path

from aggtree.storage.errors import SourceError
from aggtree.storage.sources.formats.vecs import VecsSource
from aggtree.storage.sources.formats.vecs import open_vectors as open_vecs

NAMES = {"demo:base": "photos_base.bvecs", "demo:query": "photos_query.bvecs"}


def demo_paths() -> tuple[Path, Path]:
    """The files of the base vectors (33,000 x 128 uint8) and of the queries (500, from other photographs)."""
    directory = files("aggtree") / "data"
    base, query = (Path(str(directory / name)) for name in NAMES.values())
    return base, query


def open_vectors(location: str, _name: str) -> VecsSource:
    """Open `demo:base` or `demo:query`."""
    if location not in NAMES:
        raise SourceError(f"{location}: unknown, the embedded vectors are called {' and '.join(NAMES)}")
    base, query = demo_paths()
    source = open_vecs(str(base if location == "demo:base" else query), "")
    source.spec = location
    return source
