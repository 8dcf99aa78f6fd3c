"""How well the dictionaries fit appended rows, compared with the training rows."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from aggtree.storage.errors import IndexFormatError, SourceError
from aggtree.storage.index.build_report import read_report
from aggtree.storage.index.manifest import IndexManifest, read_manifest
from aggtree.storage.index.reader import open_index
from aggtree.storage.sources.array import ArraySource
from aggtree.storage.sources.unit_rows import metric_source
from aggtree.storage.work.job_facts import read_facts, save_facts
from aggtree.storage.work.job_record import JobRecord

DRIFT_ROWS = 1000
"""Rows of each shard of an appended segment whose error is measured."""
SAMPLE_ROWS = 2000
"""Rows of the index whose error is measured where that of training is not known."""


def mean_error(job: JobRecord) -> float | None:
    """Mean squared error of the rows that a job encoded, from the samples of its shards."""
    shards = [record for record in job.done("encode").values() if "error" in record]
    rows = sum(int(record["rows"]) for record in shards)
    return sum(float(record["error"]) * int(record["rows"]) for record in shards) / rows if rows else None


def note_training_error(job: JobRecord) -> None:
    """Record the training error, which the commit stores in the manifest."""
    manifest, facts = read_manifest(job.index), read_facts(job)
    if manifest.first_segment.distortion is None and facts.training_error is None:
        save_facts(job, replace(facts, training_error=training_error(job.index, manifest)))


def training_error(index: Path, manifest: IndexManifest) -> float | None:
    """Mean squared error of the training rows, or of rows of the index.

    From the report of the build; without one, from a sample of the vectors, if they are still there.
    """
    with suppress(IndexFormatError):
        report = read_report(index, manifest.first_segment.build)
        if report is not None and report.distortions:
            return report.distortions[-1]
    try:
        with open_index(index) as opened:
            rows, found = opened.searcher.sampled_vectors(SAMPLE_ROWS)
            vectors = metric_source(ArraySource(opened.raw_vectors.take(rows)), manifest.metric)
            apart = vectors.read(0, len(rows)).astype(np.float64) - found
    except SourceError:
        return None
    return float(np.einsum("ij,ij->i", apart, apart).mean())
