"""Facts about a job, apart from its finished partitions, in work-<id>/facts.json.

One sealed record, replaced as a whole by the process that holds the index's lock. A damaged record counts as
empty: its facts are determined again, or must be given by the user again.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from aggtree.storage.atomic import Json
from aggtree.storage.errors import IndexFormatError
from aggtree.storage.index.file_record import FileRecord, as_number, as_text
from aggtree.storage.sealed_json import read_sealed, write_sealed
from aggtree.storage.work.job_record import JobRecord

FACTS = "facts.json"


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """Facts about a job; None if unknown.

    vectors : what opens the source again; "" for an array, which nothing opens again.
    vectors_seal : of the user who named `vectors`; see `storage/places.py`.
    own_ids : the file of the user's own ids, once they are copied.
    training_error : mean squared error of the rows that the dictionaries were trained on.
    figures : time and memory of each finished stage, in the order in which they ended.
    """

    vectors: str | None = None
    vectors_seal: str = ""
    own_ids: FileRecord | None = None
    training_error: float | None = None
    figures: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> dict[str, Json]:
        record: dict[str, Json] = {"figures": [dict(stage) for stage in self.figures]}
        record |= {"vectors": self.vectors} if self.vectors is not None else {}
        record |= {"vectors_seal": self.vectors_seal} if self.vectors_seal else {}
        record |= {"own_ids": self.own_ids.to_json()} if self.own_ids else {}
        return record | ({"training_error": self.training_error} if self.training_error is not None else {})

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "JobFacts":
        error = record.get("training_error")
        return cls(
            vectors=as_text(record["vectors"]) if "vectors" in record else None,
            vectors_seal=as_text(record.get("vectors_seal", "")),
            own_ids=FileRecord.from_json(record["own_ids"]) if "own_ids" in record else None,
            training_error=None if error is None else as_number(error),
            figures=tuple(dict(stage) for stage in record["figures"]),
        )


def read_facts(job: JobRecord) -> JobFacts:
    """The facts about a job."""
    path = job.work_directory / FACTS
    with suppress(IndexFormatError, KeyError, TypeError, ValueError, AttributeError):
        return JobFacts.from_json(read_sealed(path)) if path.exists() else JobFacts()
    return JobFacts()


def save_facts(job: JobRecord, facts: JobFacts) -> None:
    """Replace the stored facts."""
    write_sealed(job.work_directory / FACTS, facts.to_json())


def add_figures(job: JobRecord, stage: Mapping[str, Any]) -> None:
    """Add the figures of one more stage."""
    facts = read_facts(job)
    save_facts(job, replace(facts, figures=(*facts.figures, stage)))
