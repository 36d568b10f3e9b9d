"""What a client is asked to list, checked before anything is read; what it read, decoded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from queuert.client.schedules import JobTypeReference, type_names
from queuert.codecs.envelope import is_envelope
from queuert.errors import ConfigurationError
from queuert.job_types import JobTypes
from queuert.jobs import Blocker, ChainStatus, Job, JobStatus
from queuert.progress import shown_progress
from queuert.state.paging import Page
from queuert.state.stored_json import json_value
from queuert.state.types import BlockerRecord

S = TypeVar("S", ChainStatus, JobStatus)


def type_filter(job_types: Iterable[JobTypeReference] | None) -> tuple[str, ...] | None:
    """The names of job types, each once, also of such as are not registered; None for all.

    Raises:
        InvalidIdentifierError: no job type can have such a name, or they are not a sequence.
    """
    return None if job_types is None else tuple(type_names(job_types))


def known_statuses(kind: type[S], statuses: Iterable[S | str] | None) -> tuple[S, ...] | None:
    """The statuses, each once, in order.

    Raises:
        ConfigurationError: one of them is none, or a string is given in place of a sequence.
    """
    if statuses is None:
        return None
    allowed = ", ".join(kind)
    if isinstance(statuses, str):
        raise ConfigurationError(f"statuses is {str(statuses)!r}: a sequence of {allowed}")
    try:
        return tuple(dict.fromkeys(kind(one) for one in statuses))
    except ValueError as error:
        raise ConfigurationError(f"{error}: use {allowed}") from None


def checked_time(moment: datetime | None, *, name: str) -> datetime | None:
    """The time, if it says in which zone.

    Raises:
        ConfigurationError: it does not, or is none.
    """
    if moment is not None and (getattr(moment, "tzinfo", None) is None):
        raise ConfigurationError(f"{name} is {moment!r}: a datetime with a time zone, such as datetime.now(UTC)")
    return moment


def shown(job_types: JobTypes, job: Job) -> Job:
    """The job with input and output as plain JSON, as far as its type is registered and its format can read them."""
    job_type = job_types.get(job.type)
    if job_type is None:
        return job
    if job.progress is not None and is_envelope(job.progress.message):
        job = replace(job, progress=shown_progress(job_type, job.progress))
    if not (is_envelope(job.input) or is_envelope(job.output)):
        return job
    return replace(job, input=job_type.shown("input", job.input), output=job_type.shown("output", job.output))


def shown_page(job_types: JobTypes, page: Page[Job]) -> Page[Job]:
    """The page with its jobs :func:`shown`."""
    return Page(tuple(shown(job_types, job) for job in page), page.next_cursor)


def decoded_blockers(job_types: JobTypes, records: Sequence[BlockerRecord]) -> list[Blocker]:
    """Blockers with their outputs in the models of their job types, as far as these are registered.

    Raises:
        PayloadDecodeError: an output does not fit its model.
    """
    return [_decoded(job_types, record) for record in records]


def _decoded(job_types: JobTypes, record: BlockerRecord) -> Blocker:
    if record.status is not ChainStatus.COMPLETED or record.output is None:
        output = None
    elif record.tail_type in job_types.names:
        output = job_types[record.tail_type].decode_output(record.output)
    else:
        output = json_value(record.output)
    return Blocker(record.chain_id, record.type, record.status, output, record.error)
