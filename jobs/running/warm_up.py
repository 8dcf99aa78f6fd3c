"""Compile every kernel once, in a process of its own, before a build needs them.

The compiler keeps about 90 MiB in the process that ran it; a process that finds the compiled code on disk
does not need them. So a child builds a tiny index of the same kind and exits, and this process and all
its workers load the code from the kernel cache. A mark in the cache records that this was done.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aggtree.engine.simd import kernel_cache
from aggtree.engine.simd.compile_notice import notice
from aggtree.engine.simd.primitive import JIT
from aggtree.jobs.planning.recipe import Recipe
from aggtree.jobs.running.progress import Progress
from aggtree.storage.sources.base import VectorSource

ROWS = 1200
WIDE_WORDS = 300
MARK = "compiled-"
CHILD = "AGGTREE_COMPILING"
"""Environment variable of the child: the builds it runs start no children of their own."""
PROGRAM = "from aggtree.jobs.running.tiny_build import main; main()"
"""What the child runs. Named, not imported: it builds an index, and every build comes by here."""
SEARCHED = {"search": True}
"""Kind of a child that also searched what it built."""


def compile_source_kernels(source: VectorSource) -> None:
    """Ensure that the kernel cache holds the kernels that compute rows, before the first row is needed."""
    if source.spec.startswith("synthetic:"):
        _compile_in_child({"spec": source.spec}, {"source": source.spec.partition("?")[0]}, Progress())


def compile_kernels(
    recipe: Recipe, fingerprint: Mapping[str, Any], progress: Progress, *, search: bool = False
) -> None:
    """Ensure that the kernel cache holds the kernels of a build.

    fingerprint : of its source, for rows, dimension and dtype; search : those of searches too
    """
    facts = {name: fingerprint[name] for name in ("dimension", "dtype")}
    wide_ids = int(fingerprint["rows"]) > 2**32
    kind = _kind(recipe, fingerprint, wide_ids=wide_ids)
    order = facts | {"recipe": _tiny(recipe).to_json(), "wide_ids": wide_ids, "search": search}
    _compile_in_child(order, kind | SEARCHED if search else kind, progress)
    if search and is_compiled(recipe, fingerprint, search=True):
        kernel_cache.keep(_mark(kind), b"")


def is_compiled(recipe: Recipe, fingerprint: Mapping[str, Any], *, search: bool) -> bool:
    """Whether the kernels of a build, or of searches too, were compiled before."""
    kind = _kind(recipe, fingerprint, wide_ids=int(fingerprint["rows"]) > 2**32)
    return kernel_cache.is_kept(_mark(kind | SEARCHED if search else kind))


def _kind(recipe: Recipe, fingerprint: Mapping[str, Any], *, wide_ids: bool) -> dict[str, Any]:
    """What is compiled in; sizes are not, so that builds of one kind share their kernels."""
    return {
        "dtype": fingerprint["dtype"],
        "wide": recipe.words[0] > 256,
        "online": _online(recipe),
        "cooling": recipe.annealing.cooling,
        "norm_bytes": recipe.tree.norm_bytes,
        "planes": recipe.tree.planes,
        "metric": recipe.metric,
        "wide_ids": wide_ids,
    }


def _compile_in_child(order: dict[str, Any], kind: dict[str, Any], progress: Progress) -> None:
    """Let a child execute `order`, unless one of its kind was executed before."""
    if CHILD in os.environ or not sys.executable or not JIT:
        return
    mark = _mark(kind)
    if kernel_cache.is_kept(mark):
        return
    progress.note(notice())
    command, environment = [sys.executable, "-c", PROGRAM], {**os.environ, CHILD: "1"}
    done = subprocess.run(
        command, input=json.dumps(order), env=environment, text=True, capture_output=True, check=False
    )
    if done.returncode == 0:  # otherwise this process compiles what it needs, with the memory that takes
        kernel_cache.keep(mark, b"")


def _tiny(recipe: Recipe) -> Recipe:
    """A recipe of the same kind for few rows: the same kernels with the same types."""
    words = (min(recipe.words[0], WIDE_WORDS), *recipe.words[1:])
    return replace(
        recipe,
        annealing=replace(recipe.annealing, words=words, seed=0),
        batch_rows=ROWS // 2 if _online(recipe) else ROWS,
        train_rows=ROWS,
        shard_rows=ROWS // 2,
    )


def _online(recipe: Recipe) -> bool:
    """Whether training takes one batch after another; on one batch it does more with other kernels."""
    return recipe.train_rows > recipe.batch_rows


def _mark(kind: dict[str, Any]) -> str:
    """File that states that the kernels of a kind were compiled for this processor."""
    from llvmlite.binding import get_host_cpu_name

    return MARK + kernel_cache.digest(get_host_cpu_name(), json.dumps(kind, sort_keys=True))
