"""Compile every kernel once, in a process of its own, before a build needs them.

The compiler keeps about 90 MiB in the process that ran it; a process that finds the compiled code on disk
does not need them. So a child builds a tiny index like the one wanted and goes away, and this process and
all its workers load what it left in numba's cache. A mark beside that cache says that it was done.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from aggtree.engine.simd import kernel_cache
from aggtree.engine.simd.primitive import JIT
from aggtree.jobs.planning.recipe import Recipe
from aggtree.jobs.running.progress import Progress
from aggtree.storage.sources.base import VectorSource, open_source

ROWS = 1200
WIDE_WORDS = 300
MARK = "compiled-"

_this_is_the_child = False


def compile_source_kernels(source: VectorSource) -> None:
    """See to it that numba's cache holds the kernels that compute rows, before the first row is asked for."""
    if source.spec.startswith("synthetic:"):
        _compile_in_child({"spec": source.spec}, {"source": source.spec.partition("?")[0]}, Progress())


def compile_kernels(recipe: Recipe, fingerprint: Mapping[str, Any], progress: Progress) -> None:
    """See to it that numba's cache holds the kernels of a build.

    fingerprint : of its source, for rows, dimension and dtype.
    """
    facts = {name: fingerprint[name] for name in ("dimension", "dtype")}
    wide_ids = int(fingerprint["rows"]) > 2**32
    # Sizes are not compiled in: builds of one kind share their kernels.
    kind = {
        "dtype": fingerprint["dtype"],
        "wide": recipe.words[0] > 256,
        "cooling": recipe.cooling,
        "norm_bytes": recipe.norm_bytes,
        "metric": recipe.metric,
        "wide_ids": wide_ids,
    }
    order = facts | {"recipe": _tiny(recipe).to_json(), "wide_ids": wide_ids}
    _compile_in_child(order, kind, progress)


def _compile_in_child(order: dict[str, Any], kind: dict[str, Any], progress: Progress) -> None:
    """Let a child carry out `order`, unless one of its kind was before."""
    if _this_is_the_child or not sys.executable or not JIT:
        return
    mark = _mark(kind)
    if kernel_cache.is_kept(mark):
        return
    progress.note("compiling the kernels, once for this machine")
    command = [sys.executable, "-c", "from aggtree.jobs.running.warm_up import main; main()"]
    done = subprocess.run(command, input=json.dumps(order), text=True, capture_output=True, check=False)
    if done.returncode == 0:  # otherwise this process compiles what it needs, with the memory that takes
        kernel_cache.keep(mark, b"")


def _tiny(recipe: Recipe) -> Recipe:
    """A recipe of the same kind for few rows: the same kernels with the same types."""
    words = (min(recipe.words[0], WIDE_WORDS), *recipe.words[1:])
    sizes = {"batch_rows": ROWS // 2, "train_rows": ROWS, "shard_rows": ROWS // 2}
    return Recipe.from_json(recipe.to_json() | {"words": list(words), "seed": 0} | sizes)


def _mark(kind: dict[str, Any]) -> str:
    """File that states that the kernels of a kind were compiled for this processor."""
    from llvmlite.binding import get_host_cpu_name

    return MARK + kernel_cache.digest(get_host_cpu_name(), json.dumps(kind, sort_keys=True))


def main() -> None:
    """Runs in the child: compute a row of the source, or build a tiny index, as the input says."""
    global _this_is_the_child  # noqa: PLW0603  (builds inside the child must not start children)
    _this_is_the_child = True
    order = json.loads(sys.stdin.read())
    if "spec" in order:
        open_source(order["spec"]).read(0, 1)
        return
    recipe = Recipe.from_json(order["recipe"])
    rows = np.random.default_rng(0).integers(0, 100, (ROWS, order["dimension"])).astype(order["dtype"])

    from aggtree.jobs.build import RunOptions, run_build
    from aggtree.jobs.running.streams import as_source

    with TemporaryDirectory() as directory:
        index = Path(directory) / "index"
        run_build(as_source(rows), index, recipe, RunOptions(memory="1TiB", workers=0))
        if order["wide_ids"]:
            _build_with_wide_ids(index, recipe)


def _build_with_wide_ids(index: Path, recipe: Recipe) -> None:
    """Sort and build codes whose ids have 8 bytes."""
    from aggtree.engine.tree.code_order import sort_codes
    from aggtree.engine.tree.layout import build_part
    from aggtree.storage.index.code_store import CodeStore
    from aggtree.storage.index.dictionary_file import load_dictionaries
    from aggtree.storage.index.format import CODES, DICTIONARIES

    (build,) = index.glob("build-*")
    dictionaries, norm_ranges = load_dictionaries(build / DICTIONARIES)
    codes = CodeStore.open(build / CODES).read(0, ROWS)
    build_part(*sort_codes(codes, np.arange(ROWS, dtype=np.uint64)), dictionaries, recipe.tree, norm_ranges)
