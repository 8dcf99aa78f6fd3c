"""What leaves the index: ids and codes that others read, and decode to the same vectors."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.small_builds import SMALL, WIDE, vectors

import aggtree
from aggtree.jobs.cli.main import cli
from aggtree.jobs.export import packed_codes
from aggtree.storage.errors import SourceError

ROWS = 1300
GONE = [3, 1000, 1299]


@pytest.fixture(scope="module", params=["narrow", "wide"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of two segments with own ids, and some rows deleted."""
    path = tmp_path_factory.mktemp("export") / "index"
    base, ids = vectors(ROWS), np.arange(ROWS) * 3 - 50
    options = SMALL if request.param == "narrow" else WIDE | {"train_rows": 1200, "batch_rows": 1200}
    aggtree.build(base[:900], path, ids=ids[:900], workers=0, **options)
    aggtree.append(path, base[900:], ids=ids[900:], workers=0)
    aggtree.delete(path, ids[GONE])
    return path


def live() -> np.ndarray:
    return np.delete(np.arange(ROWS), GONE)


def decoded(index: Path, codes: np.ndarray) -> np.ndarray:
    with aggtree.open(index) as opened:
        return opened.dictionaries.decode(codes)


def test_numpy(index: Path, tmp_path: Path) -> None:
    answer = CliRunner().invoke(cli, ["export", str(index), "--to", str(tmp_path / "codes.npy")])
    assert answer.exit_code == 0 and "1,297 codes" in answer.output
    codes, ids = np.load(tmp_path / "codes.npy"), np.load(tmp_path / "codes.ids.npy")
    np.testing.assert_array_equal(ids, live() * 3 - 50)
    found = decoded(index, codes)
    with aggtree.open(index) as opened:
        rows, reconstructed = opened.searcher.sampled_vectors(10 * ROWS)
    kept = np.isin(rows, live())
    np.testing.assert_allclose(found, reconstructed[kept], rtol=1e-5, atol=1e-3)


def test_parquet(index: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    aggtree.export(index, tmp_path / "codes.npy")
    aggtree.export(index, tmp_path / "codes.parquet")
    table = parquet.read_table(tmp_path / "codes.parquet")
    np.testing.assert_array_equal(table["id"].to_numpy(), np.load(tmp_path / "codes.ids.npy"))
    codes = np.array(table["code"].to_pylist(), np.uint8)
    np.testing.assert_array_equal(codes, np.load(tmp_path / "codes.npy"))


def test_faiss_decodes_the_same_vectors(index: Path, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    aggtree.export(index, tmp_path / "codes.npy")
    aggtree.export(index, tmp_path / "codes.faiss")
    theirs = faiss.read_index(str(tmp_path / "codes.faiss"))
    ids = np.load(tmp_path / "codes.ids.npy")
    assert theirs.ntotal == len(ids)
    ours = decoded(index, np.load(tmp_path / "codes.npy"))
    found = np.stack([theirs.reconstruct(int(number)) for number in ids[::50]])
    np.testing.assert_allclose(found, ours[::50], rtol=1e-5, atol=1e-3)
    queries = vectors(5, seed=5).astype(np.float32)
    _, nearest = theirs.search(queries, 3)
    distances = ((queries[:, None] - ours[None]) ** 2).sum(axis=2)
    np.testing.assert_array_equal(nearest[:, 0], ids[distances.argmin(axis=1)])


def test_labels_are_packed_bit_by_bit() -> None:
    labels = np.array([[5, 0, 300], [2, 1, 511]])
    for row, packed in zip(labels, packed_codes(labels, (3, 1, 9)), strict=True):
        number = int(row[0]) | int(row[1]) << 3 | int(row[2]) << 4
        assert int.from_bytes(packed.tobytes(), "little") == number


def test_names_that_say_nothing_are_refused(index: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="expected a name that ends in"):
        aggtree.export(index, tmp_path / "codes.csv")
    with pytest.raises(SourceError, match="no directory"):
        aggtree.export(index, tmp_path / "nowhere" / "codes.npy")
