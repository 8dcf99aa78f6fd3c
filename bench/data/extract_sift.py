"""Make the embedded default: SIFT descriptors of photographs that may be redistributed.

The photographs come from packages, named with their licences in `PHOTOGRAPHS`; nothing is downloaded here:

    pip install scikit-learn scikit-image opencv-python-headless
    apt-get download lomiri-wallpapers-16.04 && dpkg-deb -x lomiri-wallpapers-16.04_*.deb unpacked
    python -m bench extract_sift --debian unpacked --out aggtree/data

writes photos_base.bvecs, photos_query.bvecs (from other photographs than the base) and PROVENANCE.md.
The same versions give the same bytes.
"""

import argparse
import hashlib
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from aggtree.storage.sources.formats.vecs import write_vecs

LONGEST_SIDE = 1600
CONTRAST = 0.03  # a little below OpenCV's 0.04: more descriptors of fine texture
SEED = 0
BASE_ROWS, BASE_ROWS_PER_PHOTO = 33_000, 3_000
QUERY_ROWS, QUERY_ROWS_PER_PHOTO = 500, 150

DEBIAN = "lomiri-wallpapers-16.04 20.04.0-2 (Debian)"
LEARN = "scikit-learn"
IMAGE = "scikit-image"
BY2 = "CC-BY-2.0"
BY4 = "CC-BY-4.0"
CC0 = "CC0-1.0"
PUBLIC = "public domain"


@dataclass(frozen=True)
class Photograph:
    package: str
    name: str
    author: str
    licence: str
    query: bool = False


PHOTOGRAPHS = (
    Photograph(DEBIAN, "aitzgorri_by_Aitzol_Berasategi.jpg", "Aitzol Berasategi", BY4),
    Photograph(DEBIAN, "friends_by_Aitzol_Berasategi.jpg", "Aitzol Berasategi", BY4),
    Photograph(DEBIAN, "life_by_Aitzol_Berasategi.jpg", "Aitzol Berasategi", BY4),
    Photograph(DEBIAN, "picosdeeuropa_by_Aitzol_Berasategi.jpg", "Aitzol Berasategi", BY4),
    Photograph(DEBIAN, "Picture_1A_by_freespace.jpg", 'Trevor "Freespace"', BY4),
    Photograph(DEBIAN, "seeding_by_Clements_Engelhardt.jpg", "Clemens Engelhardt", CC0),
    Photograph(DEBIAN, "Wine_by_Jakkub_Mede.jpg", "Jakub Mede", BY4),
    Photograph(LEARN, "china.jpg", "danielbuechele (flickr)", BY2),
    Photograph(LEARN, "flower.jpg", "vultilion (flickr)", BY2),
    Photograph(IMAGE, "astronaut.png", "NASA", PUBLIC),
    Photograph(IMAGE, "brick.png", "CC0Textures", CC0),
    Photograph(IMAGE, "coffee.png", "Rachel Michetti, Pikolo Espresso Bar", CC0),
    Photograph(IMAGE, "grass.png", "linolafett", CC0),
    Photograph(IMAGE, "gravel.png", "CC0Textures", CC0),
    Photograph(IMAGE, "hubble_deep_field.jpg", "NASA", PUBLIC),
    Photograph(IMAGE, "retina.jpg", "Mikael Häggström", CC0),
    Photograph(DEBIAN, "Picture_0B_by_freespace.jpg", 'Trevor "Freespace"', BY4, query=True),
    Photograph(DEBIAN, "sunset_by_Aitzol_Berasategi.jpg", "Aitzol Berasategi", BY4, query=True),
    Photograph(IMAGE, "camera.png", "Lav Varshney", CC0, query=True),
    Photograph(IMAGE, "chelsea.png", "Stefan van der Walt", CC0, query=True),
    Photograph(IMAGE, "rocket.jpg", "SpaceX", PUBLIC, query=True),
)


def find(photograph: Photograph, debian: Path) -> Path:
    """Path of the photograph in the installed or unpacked package."""
    if photograph.package == LEARN:
        return Path(str(files("sklearn") / "datasets" / "images" / photograph.name))
    if photograph.package == IMAGE:
        return Path(str(files("skimage") / "data" / photograph.name))
    return debian / "usr" / "share" / "backgrounds" / photograph.name


def descriptors(path: Path, most: int, generator: np.random.Generator) -> NDArray[np.uint8]:
    """At most `most` SIFT descriptors (n, 128) of a photograph, at random ones of its key points."""
    pixels = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if pixels is None:
        raise SystemExit(f"{path}: cannot be read as an image")
    scale = LONGEST_SIDE / max(pixels.shape)
    if scale < 1:
        pixels = cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    _, values = cv2.SIFT_create(contrastThreshold=CONTRAST).detectAndCompute(pixels, None)
    chosen = np.sort(generator.permutation(len(values))[:most])
    return np.clip(np.rint(values[chosen]), 0, 255).astype(np.uint8)


def collect(debian: Path, *, query: bool, rows: int, per_photo: int) -> tuple[NDArray[np.uint8], list[str]]:
    """`rows` descriptors in random order, and a line of the provenance table for each photograph."""
    generator = np.random.default_rng(SEED)
    found, lines = [], []
    for photograph in PHOTOGRAPHS:
        if photograph.query == query:
            path = find(photograph, debian)
            found.append(descriptors(path, per_photo, generator))
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            lines.append(
                f"| {photograph.name} | {photograph.package} | {photograph.author} | {photograph.licence} "
                f"| {'query' if query else 'base'} | {digest} |"
            )
    values = np.concatenate(found)
    return values[generator.permutation(len(values))[:rows]], lines


PROVENANCE = """# Where these descriptors come from

`photos_base.bvecs` ({base_rows:,} rows) and `photos_query.bvecs` ({query_rows:,} rows, from other
photographs) hold SIFT descriptors, 128 uint8 each, extracted by OpenCV from photographs of three packages.
This file is the attribution that the CC-BY licences ask for; the change made to each work is its reduction
to descriptors of random key points, without their positions.

| photograph | package | author | licence | used for | sha256 of the photograph starts |
|---|---|---|---|---|---|
{lines}

Licences as stated by the packages themselves: `debian/copyright` of lomiri-wallpapers,
`datasets/images/README.txt` of scikit-learn, the docstrings of `skimage.data`. Texts:
CC-BY-4.0 <https://creativecommons.org/licenses/by/4.0/>,
CC-BY-2.0 <https://creativecommons.org/licenses/by/2.0/>,
CC0-1.0 <https://creativecommons.org/publicdomain/zero/1.0/>.

Versions: {versions}.

    apt-get download lomiri-wallpapers-16.04 && dpkg-deb -x lomiri-wallpapers-16.04_*.deb unpacked
    python -m bench extract_sift --debian unpacked --out aggtree/data

| file | bytes | sha256 |
|---|---|---|
{digests}
"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--debian", type=Path, required=True, help="where the Debian package was unpacked")
    parser.add_argument("--out", type=Path, default=Path("aggtree/data"))
    options = parser.parse_args(arguments)
    cv2.setNumThreads(1)
    base, lines = collect(options.debian, query=False, rows=BASE_ROWS, per_photo=BASE_ROWS_PER_PHOTO)
    query, more = collect(options.debian, query=True, rows=QUERY_ROWS, per_photo=QUERY_ROWS_PER_PHOTO)
    options.out.mkdir(parents=True, exist_ok=True)
    digests = []
    for name, vectors in (("photos_base.bvecs", base), ("photos_query.bvecs", query)):
        data = write_vecs(vectors, "bvecs")
        (options.out / name).write_bytes(data)
        digests.append(f"| {name} | {len(data):,} | {hashlib.sha256(data).hexdigest()} |")
    packages = ("opencv-python-headless", "scikit-learn", "scikit-image", "numpy")
    text = PROVENANCE.format(
        base_rows=len(base),
        query_rows=len(query),
        lines="\n".join(lines + more),
        versions=", ".join(f"{package} {version(package)}" for package in packages),
        digests="\n".join(digests),
    )
    (options.out / "PROVENANCE.md").write_text(text, encoding="utf-8")
    return 0
