"""What a build measures of itself before it ends: how good its codes are, and what a search finds by them.

The sample is a few short ranges of rows from the whole source, as many as are read in no time.
"""

from contextlib import suppress

import numpy as np

from aggtree.engine.quality import Quality
from aggtree.engine.sampled_search import measure_quality
from aggtree.jobs.planning.recipe import Recipe
from aggtree.jobs.planning.training_rows import sample_rows, spread_ranges
from aggtree.jobs.running.tasks import single_threaded_blas
from aggtree.storage.errors import AggtreeError
from aggtree.storage.index.code_store import CodeStore
from aggtree.storage.index.dictionary_file import load_dictionaries
from aggtree.storage.index.format import DICTIONARIES
from aggtree.storage.sources.base import VectorSource
from aggtree.storage.work.job_record import JobRecord


def measured_quality(
    job: JobRecord, recipe: Recipe, source: VectorSource | None, store: CodeStore
) -> Quality | None:
    """The quality of the codes in `store`; None if the vectors are not available or cannot be read."""
    if source is None:
        return None
    with suppress(AggtreeError), single_threaded_blas():
        ranges = spread_ranges(source.rows, sample_rows(source.dimension))
        rows = np.concatenate([source.read(*ends).astype(np.float32) for ends in ranges])
        codes = np.concatenate([store.read(*ends) for ends in ranges])
        usable = np.isfinite(rows).all(axis=1)
        if np.count_nonzero(usable) < 2:
            return None
        dictionaries, norm_ranges = load_dictionaries(job.build_directory / DICTIONARIES)
        return measure_quality(
            rows[usable], codes[usable], dictionaries, recipe.tree, norm_ranges, recipe.metric
        )
    return None


def warnings_of(quality: Quality | None, recipe: Recipe, far_rows: int, rows: int) -> tuple[str, ...]:
    """One line for each reason why answers of the index may be worse than its user expects."""
    lines = []
    if far_rows:
        effect = {
            "ip": "their inner products are understated; re-rank more candidates, or index these rows apart",
        }.get(recipe.metric, "they are stored nearer to the others than they are; re-rank if they matter")
        lines.append(f"{far_rows:,} of {rows:,} rows are far from all others: {effect}")
    if quality is not None and quality.too_coarse:
        remedy = "re-rank the answers (`rerank`), or scale dimensions that dwarf the others"
        if recipe.metric == "l2" and recipe.tree.norm_bytes == 1 and not recipe.tree.planes:
            remedy = "build with norm_bytes 4, re-rank the answers, or scale dimensions that dwarf the others"
        lines.append(
            f"a search finds {quality.recall:.2f} of the true neighbours in a sample, its codes allow "
            f"{quality.possible:.2f}: stored norms and sums are too coarse for these vectors; {remedy}"
        )
    return tuple(lines)
