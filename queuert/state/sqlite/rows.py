"""Decodes rows of SQLite into values of the contract. Pure functions."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from queuert.attributes import attributes_text
from queuert.jobs import AbortReason, ChainRecord, ChainState, ChainStatus, Job, JobError, JobStatus
from queuert.limits import PausedType
from queuert.run_at import RunAt
from queuert.state import records
from queuert.state.types import ClaimedJob, FinishKind, ScheduleRecord, StartedJob

Row = tuple[Any, ...]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(microseconds: int) -> datetime:
    """Decode a stored time."""
    return _EPOCH + timedelta(microseconds=microseconds)


def moment_or_none(microseconds: int | None) -> datetime | None:
    """Decode a stored time; None stays None."""
    return None if microseconds is None else moment(microseconds)


def microseconds(value: datetime) -> int:
    """Encode a time."""
    return (value - _EPOCH) // timedelta(microseconds=1)


def microseconds_of(seconds: float) -> int:
    """Encode a duration."""
    return round(seconds * 1_000_000)


def due_at(run_at: RunAt | None, now: int) -> int:
    """Return when a job that is written now may first run: never in the past."""
    if run_at is None:
        return now
    if run_at.moment is not None:
        return max(now, microseconds(run_at.moment))
    return now + microseconds_of(run_at.delay or 0.0)


def wake_at(run_at: RunAt | None, now: int) -> int | None:
    """Return when a sleep that is recorded now ends; None for a step that is no sleep."""
    if run_at is None:
        return None
    return now + microseconds_of(run_at.delay or 0.0) if run_at.moment is None else microseconds(run_at.moment)


def error_json(error: JobError | None) -> str | None:
    """Return the error of a job as it is stored."""
    if error is None:
        return None
    fields = {"kind": error.kind, "message": error.message, "type": error.type, "traceback": error.traceback}
    return json.dumps({name: value for name, value in fields.items() if value is not None})


class FirstJob(NamedTuple):
    """A row of ``find_first_job``, and of the statements that find duplicates: its fields are their columns."""

    id: str
    type: str
    chain_index: int
    """0 for the first job of a chain. Another job may have the id that a chain was looked for by."""
    status: str
    chain_status: str | None
    created_at: int
    expires_at: int | None


class Tail(NamedTuple):
    """A row of ``last_job``, the last job of a chain with what it says of the chain: its fields are the columns."""

    id: str
    type: str
    status: str
    chain_index: int
    chain_status: str
    chain_type: str
    trace_context: str | None


def existing_job(first: FirstJob) -> StartedJob:
    """Return what a start returns that finds this chain."""
    assert first.chain_status is not None
    status, chain_status = JobStatus(first.status), ChainStatus(first.chain_status)
    created_at = moment(first.created_at)
    return StartedJob(first.id, first.type, status, created_at, existing=True, chain_status=chain_status)


_CLAIMED_TIMES = ("created_at", "scheduled_at", "started_at")


def claimed_job(row: Row, token: str) -> ClaimedJob:
    """Decode a row of ``claim``."""
    found: dict[str, Any] = dict(zip(records.CLAIMED, row, strict=False))
    for name in _CLAIMED_TIMES:
        found[name] = moment(found[name])
    found["has_dependents"] = bool(found["has_dependents"])
    return ClaimedJob(**found, token=token)


_TIMES = records.places(records.CLAIMED, *_CLAIMED_TIMES)


def readable(row: Row) -> Row:
    """Replace all times of an unreadable row of ``claim`` by the year 1970."""
    return tuple(0 if at in _TIMES else value for at, value in enumerate(row))


def with_times(row: Row, columns: tuple[int, ...]) -> Row:
    """The row with the stored times in these columns as datetimes."""
    values = list(row)
    for column in columns:
        values[column] = moment_or_none(row[column])
    return tuple(values)


_JOB_TIMES = records.places(records.JOB, "created_at", "scheduled_at", "started_at", "finished_at", "lease_expires_at")
_CHAIN_TIMES = records.places(records.CHAIN, "created_at", "closed_at", "expires_at", "stale_at")
_STATE_TIMES = records.places(records.CHAIN_STATE, "scheduled_at")
_SCHEDULE_TIMES = records.places(records.SCHEDULE, "next_at", "last_at", "starts_at", "ends_at")


def job(row: Row) -> Job:
    """Decode a row of ``get_job`` and of the lists."""
    return records.job(with_times(row, _JOB_TIMES))


def chain(row: Row) -> ChainRecord:
    """Decode a row of ``get_chain`` and of the lists."""
    return records.chain(with_times(row, _CHAIN_TIMES))


def chain_state(row: Row) -> ChainState:
    """Decode a row of ``get_chain_state``."""
    return records.chain_state(with_times(row, _STATE_TIMES))


def schedule(row: Row) -> ScheduleRecord:
    """Decode a row of ``list_schedules``."""
    return records.schedule(with_times(row, _SCHEDULE_TIMES))


def schedule_values(one: ScheduleRecord, next_at: datetime | None) -> dict[str, Any]:
    """Return the parameters of ``put_schedule``."""
    return {
        "name": one.name,
        "type": one.type,
        "input": one.input,
        "cron": one.cron,
        "every": one.every,
        "time_zone": one.time_zone,
        "missed": one.missed.value,
        "priority": one.priority,
        "limit_key": one.limit_key,
        "paused": int(one.paused),
        "next_at": None if next_at is None else microseconds(next_at),
        "owner": one.owner,
        "overlap": one.overlap.value,
        "jitter": one.jitter,
        "starts_at": None if one.starts_at is None else microseconds(one.starts_at),
        "ends_at": None if one.ends_at is None else microseconds(one.ends_at),
        "attributes": attributes_text(one.attributes),
        "result_ttl": one.result_ttl,
    }


def paused_type(row: Row) -> PausedType:
    """Decode a row of ``list_paused_job_types``."""
    type, paused_at, reason, by = row
    return PausedType(type, moment(paused_at), reason, by)


ENDED = {
    FinishKind.COMPLETE: JobStatus.COMPLETED,
    FinishKind.CONTINUE: JobStatus.CONTINUED,
    FinishKind.FAIL: JobStatus.FAILED,
    FinishKind.CANCEL: JobStatus.CANCELLED,
}
"""The final status of each kind of finish. Other kinds make the job due or blocked again."""

_RESTING = frozenset({JobStatus.READY, JobStatus.SCHEDULED, JobStatus.BLOCKED})


def holds(token: str, row: Row | None) -> bool:
    """Whether a lease holds its job, from the row of ``lease_state``."""
    if row is None:
        return False
    _, _, last_token, running = row
    return bool(running) and last_token == token


def lost_reason(kind: FinishKind | None, token: str, row: Row | None) -> AbortReason | None:
    """Return why a lease does not hold its job, from the row of ``lease_state``.

    None if it does, or if the lease has already written a finish of this ``kind``.
    """
    if row is None:
        return AbortReason.NOT_FOUND
    _, status_name, last_token, running = row
    status = JobStatus(status_name)
    if last_token == token:
        if running or kind is None or status is ENDED.get(kind, status if status in _RESTING else None):
            return None
        return AbortReason.ALREADY_COMPLETED if status.final else AbortReason.TAKEN_BY_ANOTHER_WORKER
    if status is JobStatus.CANCELLED:
        return AbortReason.CANCELLED
    return AbortReason.ALREADY_COMPLETED if status.final else AbortReason.TAKEN_BY_ANOTHER_WORKER
