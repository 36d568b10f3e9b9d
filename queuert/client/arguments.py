"""Validates the arguments of listings, and decodes what they return."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from queuert.activity import ActivityFilter, Period
from queuert.client.schedules import JobTypeReference, type_names
from queuert.envelope import is_envelope
from queuert.errors import ConfigurationError
from queuert.event_log import JobEvent
from queuert.job_types import JobTypes
from queuert.jobs import Blocker, ChainState, ChainStatus, Job, JobStatus
from queuert.limits import ClientType
from queuert.new_chain import listed
from queuert.progress import shown_progress
from queuert.run_at import in_utc
from queuert.state.paging import Page
from queuert.state.records import json_value
from queuert.state.types import BlockerRecord

S = TypeVar("S", ChainStatus, JobStatus)


def type_filter(job_types: Iterable[JobTypeReference] | None) -> tuple[str, ...] | None:
    """Return the names of job types, each once, whether registered or not; None selects all.

    Raises:
        InvalidIdentifierError: a name is not valid, or ``job_types`` is a string.
    """
    return None if job_types is None else tuple(type_names(job_types))


def known_statuses(kind: type[S], statuses: Iterable[S | str] | None) -> tuple[S, ...] | None:
    """Return the statuses, each once, in order.

    Raises:
        ConfigurationError: a status does not exist, or ``statuses`` is a string or another single object.
    """
    if statuses is None:
        return None
    allowed = ", ".join(kind)
    if isinstance(statuses, str):
        raise ConfigurationError(f"statuses must be a sequence of {allowed}, got {str(statuses)!r}")
    values = listed(statuses, f"statuses must be a sequence of {allowed}")
    try:
        return tuple(dict.fromkeys(kind(status) for status in values))
    except ValueError:
        unknown = next(status for status in values if status not in tuple(kind))
        raise ConfigurationError(f"statuses must be among {allowed}, got {unknown!r}") from None


def checked_time(moment: datetime | None, *, name: str) -> datetime | None:
    """Return the time in UTC, if it has a time zone.

    Raises:
        ConfigurationError: it has none, or is not a datetime, or not between the years 1 and 9999.
    """
    if moment is None:
        return None
    if getattr(moment, "tzinfo", None) is None:
        raise ConfigurationError(
            f"{name} must be a datetime with a time zone, such as datetime.now(UTC), got {moment!r}"
        )
    return in_utc(moment, name)


_DEFAULT_SPANS = {"minute": timedelta(hours=1), "hour": timedelta(days=1)}


def activity_filter(
    job_types: Iterable[JobTypeReference] | None,
    since: datetime | None,
    until: datetime | None,
    by: Period,
    per_worker: bool,
    per_type: bool,
    workers: Iterable[str] | None,
) -> ActivityFilter:
    """Return which activity is to be read.

    Raises:
        ConfigurationError: a time has no time zone, ``by`` is neither ``minute`` nor ``hour``, or ``workers`` is a
            string.
        InvalidIdentifierError: a name is not valid, or ``job_types`` is a string.
    """
    if by not in ("minute", "hour"):
        raise ConfigurationError(f"by must be 'minute' or 'hour', got {by!r}")
    begin = checked_time(since, name="since") or datetime.now(UTC) - _DEFAULT_SPANS[by]
    if by == "hour":
        # The first hour is a whole one.
        begin = begin.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    if isinstance(workers, str):
        raise ConfigurationError(f"workers must be a sequence of ids, got the string {workers!r}: write [{workers!r}]")
    return ActivityFilter(
        begin,
        checked_time(until, name="until"),
        type_filter(job_types),
        by,
        bool(per_worker),
        bool(per_type),
        None if workers is None else tuple(workers),
    )


def known_client_types(job_types: JobTypes, stored: Iterable[ClientType]) -> list[ClientType]:
    """Return the job types that clients complete: those that are stored, and those of these definitions.

    The definitions may be newer: no worker may have recorded them yet.
    """
    found = {one.type: one for one in stored}
    found |= {one.name: ClientType(one.name, one.overdue_after) for one in job_types if one.completed_by == "client"}
    return [found[name] for name in sorted(found)]


def decoded_job(job_types: JobTypes, job: Job) -> Job:
    """Return the job with input and output decoded, if its job type is registered and its format can read them."""
    job_type = job_types.get(job.type)
    if job_type is None:
        return job
    if job.progress is not None and is_envelope(job.progress.message):
        job = replace(job, progress=shown_progress(job_type, job.progress))
    if not (is_envelope(job.input) or is_envelope(job.output)):
        return job
    return replace(job, input=job_type.shown("input", job.input), output=job_type.shown("output", job.output))


def decoded_state(job_types: JobTypes, state: ChainState) -> ChainState:
    """Return the state with the message of its progress decoded, if its job type is registered."""
    job_type = job_types.get(state.job_type)
    if job_type is None or state.progress is None or not is_envelope(state.progress.message):
        return state
    return replace(state, progress=shown_progress(job_type, state.progress))


def decoded_jobs(job_types: JobTypes, page: Page[Job]) -> Page[Job]:
    """Return the page with its jobs decoded by :func:`decoded_job`."""
    return Page(tuple(decoded_job(job_types, job) for job in page), page.next_cursor)


def decoded_blockers(job_types: JobTypes, records: Sequence[BlockerRecord]) -> list[Blocker]:
    """Return blockers with their outputs in the models of their job types, if these are registered.

    Raises:
        PayloadDecodeError: an output is not valid for its model.
    """
    return [_decoded_blocker(job_types, record) for record in records]


def _decoded_blocker(job_types: JobTypes, record: BlockerRecord) -> Blocker:
    if record.status is not ChainStatus.COMPLETED or record.output is None:
        output = None
    elif record.tail_type in job_types.names:
        output = job_types[record.tail_type].decode_output(record.output)
    else:
        output = json_value(record.output)
    return Blocker(record.chain_id, record.type, record.status, output, record.error)


def decoded_event(job_types: JobTypes, event: JobEvent) -> JobEvent:
    """Return an event with the message of its progress decoded, if the job type is registered."""
    job_type = job_types.get(event.type)
    if job_type is None or event.progress is None or not is_envelope(event.progress.message):
        return event
    return replace(event, progress=shown_progress(job_type, event.progress))
