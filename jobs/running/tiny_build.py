"""The program of the child of `warm_up`: a tiny build that compiles the kernels of a large one."""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from aggtree.engine.tree.code_order import sort_codes
from aggtree.engine.tree.layout import build_tree_partition
from aggtree.jobs.build import BuildTask, run_build
from aggtree.jobs.planning.recipe import Recipe
from aggtree.jobs.running.job_run import RunOptions
from aggtree.jobs.running.warm_up import ROWS
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.index.dictionary_file import load_dictionaries
from aggtree.storage.index.format import CODES, DICTIONARIES
from aggtree.storage.index.reader import open_index
from aggtree.storage.sources.array import ArraySource
from aggtree.storage.sources.base import open_source


def main() -> None:
    """Compute a row of a source, or build a tiny index, as the order on standard input states."""
    order = json.loads(sys.stdin.read())
    if "spec" in order:
        open_source(order["spec"]).read(0, 1)
        return
    recipe = Recipe.from_json(order["recipe"])
    rows = np.random.default_rng(0).integers(0, 100, (ROWS, order["dimension"])).astype(order["dtype"])
    with TemporaryDirectory() as directory:
        index = Path(directory) / "index"
        task = BuildTask(source=ArraySource(rows), index=index, recipe=recipe)
        run_build(task, RunOptions(memory="1TiB", workers=0, progress=False))
        if order["search"]:
            with open_index(index, rows) as opened:
                opened.compile_kernels()
        if order["wide_ids"]:
            _build_with_wide_ids(index, recipe)


def _build_with_wide_ids(index: Path, recipe: Recipe) -> None:
    """Sort and build codes whose ids have 8 bytes."""
    (build,) = index.glob("build-*")
    dictionaries, norm_ranges = load_dictionaries(build / DICTIONARIES)
    codes = CodeStore.open(build / CODES).read(0, ROWS)
    build_tree_partition(
        *sort_codes(codes, np.arange(ROWS, dtype=np.uint64)), dictionaries, recipe.tree, norm_ranges
    )
