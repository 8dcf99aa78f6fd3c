"""What is known of a job is one record, kept until the commit."""

from dataclasses import replace
from pathlib import Path

import pytest

from aggtree.storage.checksums import BlockChecksums
from aggtree.storage.index.file_record import FileRecord
from aggtree.storage.work.job_facts import FACTS, JobFacts, add_figures, read_facts, save_facts
from aggtree.storage.work.job_record import JobRecord, start_job

IDS = FileRecord.of("build-000000000000/own_ids", BlockChecksums())
ALL = JobFacts(vectors="/data/base.npy", own_ids=IDS, training_error=2.5, figures=({"name": "train"},))


@pytest.fixture
def job(tmp_path: Path) -> JobRecord:
    return start_job(tmp_path, {"seed": 0}, {"rows": 10})


@pytest.mark.parametrize("facts", [JobFacts(), JobFacts(vectors=""), ALL])
def test_what_is_known_is_read_back(job: JobRecord, facts: JobFacts) -> None:
    assert read_facts(job) == JobFacts()
    save_facts(job, facts)
    assert read_facts(job) == facts


def test_facts_are_added_one_after_the_other(job: JobRecord) -> None:
    add_figures(job, {"name": "train"})
    save_facts(job, replace(read_facts(job), vectors="/data/base.npy"))
    add_figures(job, {"name": "encode"})
    facts = read_facts(job)
    assert [stage["name"] for stage in facts.figures] == ["train", "encode"]
    assert facts.vectors == "/data/base.npy"
    assert job.done("figures") == job.done("source") == {}


@pytest.mark.parametrize("content", [b"", b"{}", b'{"figures": []}'])
def test_damaged_facts_are_not_known(job: JobRecord, content: bytes) -> None:
    save_facts(job, ALL)
    (job.work_directory / FACTS).write_bytes(content)
    assert read_facts(job) == JobFacts()
    add_figures(job, {"name": "sort"})
    assert read_facts(job).figures == ({"name": "sort"},)
