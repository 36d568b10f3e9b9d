"""Stored rows as the records that operations return, for every store: pure functions.

Rows are in the order of the columns that the stores' lists select, with times as datetimes. Stored JSON is decoded for
display; text that is not valid becomes a value as well, so that no manual edit makes reading a job fail.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from queuert.attributes import attributes_of
from queuert.jobs import (
    ChainRecord,
    ChainState,
    ChainStatus,
    Job,
    JobError,
    JobFailure,
    JobProgress,
    JobStatus,
    PhaseProgress,
)
from queuert.schedules import MissedRuns, Overlap
from queuert.state.steps import StepRecord
from queuert.state.types import BlockerRecord, ScheduleRecord
from queuert.trace_context import trace_id_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def job(row: Sequence[Any]) -> Job:
    """Return a job, with its input, output, error and progress decoded."""
    return Job(
        id=row[0],
        type=row[1],
        chain_id=row[2],
        chain_index=row[3],
        status=JobStatus(row[4]),
        priority=row[5],
        attempt=row[6],
        uncounted=row[7],
        lease_expirations=row[8],
        open_blockers=row[9],
        input=json_value(row[10]),
        output=json_value(row[11]),
        last_error=job_error(row[12]),
        created_at=row[13],
        scheduled_at=row[14],
        started_at=row[15],
        finished_at=row[16],
        holder=row[17],
        lease_expires_at=row[18],
        continued_by=row[19],
        deduplication_key=row[20],
        limit_key=row[21],
        progress=job_progress(row[22], row[6]),
        failures=job_failures(json_value(row[23])),
        max_attempts=row[24],
        trace_id=trace_id_of(row[25]),
        attempt_trace_id=trace_id_of(row[26]),
    )


def chain(row: Sequence[Any]) -> ChainRecord:
    """Return a chain: its first job, and what its last job says of it."""
    return ChainRecord(
        id=row[0],
        type=row[1],
        status=ChainStatus(row[2]),
        input=row[3],
        output=row[4],
        error=None if row[5] is None else job_error(row[5]),
        tail_type=row[6],
        created_at=row[7],
        closed_at=row[8],
        tail_id=row[9],
        expires_at=row[10],
        attributes=attributes_of(row[11]) if row[11] else {},
        stale_at=row[12],
    )


def chain_state(row: Sequence[Any]) -> ChainState:
    """Return where a chain is: its status, and its last job."""
    return ChainState(
        id=row[0],
        type=row[1],
        status=ChainStatus(row[2]),
        job_id=row[3],
        job_type=row[4],
        job_status=JobStatus(row[5]),
        attempt=row[6],
        scheduled_at=row[7],
        open_blockers=row[8],
        last_error=job_error(row[9]),
        progress=job_progress(row[10], row[6]),
    )


def blocker(row: Sequence[Any]) -> BlockerRecord:
    """Return a chain that a job waits for."""
    return BlockerRecord(row[0], row[1], ChainStatus(row[2]), row[3], row[4], job_error(row[5]), row[6])


def step(row: Sequence[Any]) -> StepRecord:
    """Return a step of a job."""
    return StepRecord(*row)


def schedule(row: Sequence[Any]) -> ScheduleRecord:
    """Return a recurring schedule."""
    return ScheduleRecord(
        name=row[0],
        type=row[1],
        input=row[2],
        cron=row[3],
        every=row[4],
        time_zone=row[5],
        missed=MissedRuns(row[6]),
        priority=row[7],
        limit_key=row[8],
        paused=bool(row[9]),
        next_at=row[10],
        last_at=row[11],
        owner=row[12],
        overlap=Overlap(row[13]),
        jitter=row[14],
        starts_at=row[15],
        ends_at=row[16],
        attributes=attributes_of(row[17]) if row[17] else {},
        result_ttl=row[18],
        last_chain_id=row[19],
    )


def job_error(text: str | None) -> JobError | None:
    """Return a stored error; any other text, such as a manual edit, becomes an error of kind ``unknown``."""
    return None if text is None else _error_of(json_value(text))


def _error_of(value: Any) -> JobError:
    if not isinstance(value, dict):
        return JobError(kind="unknown", message=str(value))
    parts = {name: None if value.get(name) is None else str(value[name]) for name in ("type", "traceback")}
    return JobError(kind=str(value.get("kind", "unknown")), message=str(value.get("message", "")), **parts)


def job_failures(values: Any) -> tuple[JobFailure, ...]:
    """Return the stored failures of a job. What cannot be read, such as a manual edit, is left out."""
    return tuple(filter(None, map(_failure, values))) if isinstance(values, list) else ()


def _failure(value: Any) -> JobFailure | None:
    try:
        error = value["error"]
        return JobFailure(
            attempt=int(value["attempt"]),
            started_at=None if value["started_at"] is None else _moment(value["started_at"]),
            failed_at=_moment(value["failed_at"]),
            worker=None if value["worker"] is None else str(value["worker"]),
            error=JobError("unknown", "the attempt failed without an error") if error is None else _error_of(error),
        )
    except (ValueError, TypeError, KeyError, OverflowError):
        return None


def _moment(value: str | int) -> datetime:
    """A time inside JSON: ISO 8601 from Postgres, microseconds since 1970 from the other stores."""
    if isinstance(value, str):
        return datetime.fromisoformat(value).astimezone(UTC)
    return _EPOCH + timedelta(microseconds=value)


def json_value(text: str | None) -> Any:
    """Return decoded JSON for display; text that Python cannot decode (numbers of 5,000 digits) is returned as is."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _phase(found: Any, attempt: int) -> PhaseProgress:
    return PhaseProgress(
        name=str(found["name"]),
        number=int(found["number"]),
        count=int(found["count"]),
        fraction=float(found["fraction"]),
        attempt=attempt,
        started_at=datetime.fromisoformat(found["started_at"]),
    )


def job_progress(text: str | None, attempt: int) -> JobProgress | None:
    """Return the stored progress of an attempt; None if there is none, or that of another attempt, or not valid.

    That of phases stays until another attempt has begun a phase.
    """
    if text is None:
        return None
    try:
        found = json.loads(text)
        if found["attempt"] != attempt and "phase" not in found:
            return None
        fraction, done, total = (
            None if found.get(name) is None else float(found[name]) for name in ("fraction", "done", "total")
        )
        phase = None if "phase" not in found else _phase(found["phase"], found["attempt"])
        return JobProgress(fraction, done, total, found.get("message"), datetime.fromisoformat(found["at"]), phase)
    except (ValueError, TypeError, KeyError, RecursionError):
        # A manual edit must not make reading the job fail.
        return None
