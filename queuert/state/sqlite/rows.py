"""Rows of SQLite, as the contract's values: pure functions."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from queuert.jobs import AbortReason, ChainRecord, ChainStatus, Job, JobError, JobStatus
from queuert.run_at import RunAt
from queuert.state import records
from queuert.state.types import ClaimedJob, FinishKind, PausedType, ScheduleRecord, StartedJob

Row = tuple[Any, ...]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(microseconds: int) -> datetime:
    """A stored time."""
    return _EPOCH + timedelta(microseconds=microseconds)


def moment_or_none(microseconds: int | None) -> datetime | None:
    """A stored time, if there is one."""
    return None if microseconds is None else moment(microseconds)


def microseconds(value: datetime) -> int:
    """A time, as stored."""
    return (value - _EPOCH) // timedelta(microseconds=1)


def microseconds_of(seconds: float) -> int:
    """A stretch of time, as stored."""
    return round(seconds * 1_000_000)


def due_at(run_at: RunAt | None, now: int) -> int:
    """When a job that is written now may run first: never in the past."""
    if run_at is None:
        return now
    if run_at.moment is not None:
        return max(now, microseconds(run_at.moment))
    return now + microseconds_of(run_at.delay or 0.0)


def error_json(error: JobError | None) -> str | None:
    """A job error as stored."""
    if error is None:
        return None
    fields = {"kind": error.kind, "message": error.message, "type": error.type, "traceback": error.traceback}
    return json.dumps({name: value for name, value in fields.items() if value is not None})


def existing_job(row: Row) -> StartedJob:
    """A row of ``find_first_job``."""
    chain_status = ChainStatus(row[4])
    return StartedJob(row[0], row[1], JobStatus(row[3]), moment(row[5]), existing=True, chain_status=chain_status)


def claimed_job(row: Row, token: str, lease_seconds: float) -> ClaimedJob:
    """A row of ``claim``."""
    return ClaimedJob(
        id=row[0],
        type=row[1],
        chain_id=row[2],
        chain_type=row[3],
        chain_index=row[4],
        priority=row[5],
        attempt=row[6],
        uncounted=row[7],
        lease_expirations=row[8],
        blocker_count=row[9],
        has_dependents=bool(row[10]),
        input=row[11],
        created_at=moment(row[12]),
        scheduled_at=moment(row[13]),
        started_at=moment(row[14]),
        lease_seconds=lease_seconds,
        token=token,
        trace_context=row[15],
        result_ttl=row[16],
    )


_TIMES = (12, 13, 14)


def readable(row: Row) -> Row:
    """A row of ``claim`` that could not be read, with the beginning of time for all times."""
    return tuple(0 if at in _TIMES else value for at, value in enumerate(row))


def _with_times(row: Row, *columns: int) -> Row:
    """The row with the stored times in these columns as datetimes."""
    values = list(row)
    for column in columns:
        values[column] = moment_or_none(row[column])
    return tuple(values)


def job(row: Row) -> Job:
    """A row of ``get_job`` and of the lists."""
    return records.job(_with_times(row, 13, 14, 15, 16, 18))


def chain(row: Row) -> ChainRecord:
    """A row of ``get_chain`` and of the lists."""
    return records.chain(_with_times(row, 7, 8, 10))


def schedule(row: Row) -> ScheduleRecord:
    """A row of ``list_schedules``."""
    return records.schedule(_with_times(row, 10, 11))


def schedule_values(one: ScheduleRecord, next_at: datetime | None) -> dict[str, Any]:
    """Parameters of ``put_schedule``."""
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
    }


def paused_type(row: Row) -> PausedType:
    """A row of ``list_paused_job_types``."""
    return PausedType(row[0], moment(row[1]), row[2])


ENDED = {
    FinishKind.COMPLETE: JobStatus.COMPLETED,
    FinishKind.CONTINUE: JobStatus.CONTINUED,
    FinishKind.FAIL: JobStatus.FAILED,
    FinishKind.CANCEL: JobStatus.CANCELLED,
}
"""The status that a finish leads to; the others make the job due, or let it wait, again."""

_RESTING = frozenset({JobStatus.READY, JobStatus.SCHEDULED, JobStatus.BLOCKED})


def lost_reason(kind: FinishKind | None, token: str, row: Row | None) -> AbortReason | None:
    """Why a lease does not hold its job, from the row of ``lease_state``.

    None where it does; and, asked for the finish of a ``kind``, where the lease itself wrote such a finish.
    """
    if row is None:
        return AbortReason.NOT_FOUND
    status, held = JobStatus(row[1]), row[2] == token
    if held:
        if row[3] or kind is None or status is ENDED.get(kind, status if status in _RESTING else None):
            return None
        return AbortReason.ALREADY_COMPLETED if status.final else AbortReason.TAKEN_BY_ANOTHER_WORKER
    if status is JobStatus.CANCELLED:
        return AbortReason.CANCELLED
    return AbortReason.ALREADY_COMPLETED if status.final else AbortReason.TAKEN_BY_ANOTHER_WORKER
