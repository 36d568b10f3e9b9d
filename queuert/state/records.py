"""Stored rows as the records that operations return, for every store: pure functions.

A row has the fields of its record, in their order (``JOB`` and the others have their names), with times as datetimes.
Stored JSON is decoded for display; text that is not valid becomes a value as well, so that no manual edit makes reading
a job fail.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from queuert.attributes import attributes_of
from queuert.event_log import JobEvent
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
    overdue_at,
)
from queuert.schedules import MissedRuns, Overlap
from queuert.state.steps import StepRecord
from queuert.state.types import BlockerRecord, ClaimedJob, ScheduleRecord
from queuert.trace_context import trace_id_of
from queuert.workers import WorkerRecord, WorkerState

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def columns_of(record: type[Any]) -> tuple[str, ...]:
    """Return the names of the fields of a record, in their order."""
    return tuple(field.name for field in fields(record))


JOB, CHAIN, CHAIN_STATE, SCHEDULE = map(columns_of, (Job, ChainRecord, ChainState, ScheduleRecord))
"""The columns of each record, as statements select them: its fields. So a field stands in one place, and no position in
two."""

EVENT = tuple(name for name in columns_of(JobEvent) if name != "cursor")
"""The columns of an event: its fields, but for the cursor, which a store makes of them."""

WORKER = columns_of(WorkerRecord)

OF_CHAIN_STATE = {name: f"tail.{name}" for name in CHAIN_STATE} | {
    **{name: f"chain.{name}" for name in ("id", "type", "status")},
    **{f"job_{name}": f"tail.{name}" for name in ("id", "type", "status")},
}
"""The expressions of a chain's state: of its row ``chain``, and of the row ``tail`` of its last job."""

CLAIMED = tuple(name for name in columns_of(ClaimedJob) if name not in ("token", "fault"))
"""The columns of a claimed job: its fields, without those that the store knows by itself."""


def selected(columns: Sequence[str], expressions: Mapping[str, str]) -> str:
    """Return what a statement selects for these columns: the expressions of a store, and otherwise the names."""
    return ", ".join(expressions.get(name, name) for name in columns)


def places(columns: Sequence[str], *names: str) -> tuple[int, ...]:
    """Return the positions of these columns in a row."""
    return tuple(map(columns.index, names))


def job(row: Sequence[Any]) -> Job:
    """Return a job, with its input, output, error and progress decoded."""
    found = dict(zip(JOB, row, strict=True))
    found["status"] = JobStatus(found["status"])
    found["input"], found["output"] = json_value(found["input"]), json_value(found["output"])
    found["last_error"] = job_error(found["last_error"])
    found["progress"] = job_progress(found["progress"], found["attempt"])
    found["failures"] = job_failures(json_value(found["failures"]))
    found["trace_id"] = trace_id_of(found["trace_id"])
    found["attempt_trace_id"] = trace_id_of(found["attempt_trace_id"])
    # Stores select the seconds that the type allows.
    found["overdue_at"] = overdue_at(found["status"], found["scheduled_at"], found["overdue_at"])
    return Job(**found)


def chain(row: Sequence[Any]) -> ChainRecord:
    """Return a chain: its first job, and what its last job says of it."""
    found = dict(zip(CHAIN, row, strict=True))
    found["status"] = ChainStatus(found["status"])
    if found["error"] is not None:
        found["error"] = job_error(found["error"])
    found["attributes"] = attributes_of(found["attributes"]) if found["attributes"] else {}
    return ChainRecord(**found)


def chain_state(row: Sequence[Any]) -> ChainState:
    """Return where a chain is: its status, and its last job."""
    found = dict(zip(CHAIN_STATE, row, strict=True))
    found["status"], found["job_status"] = ChainStatus(found["status"]), JobStatus(found["job_status"])
    found["last_error"] = job_error(found["last_error"])
    found["progress"] = job_progress(found["progress"], found["attempt"])
    return ChainState(**found)


def event(row: Sequence[Any], cursor: str) -> JobEvent:
    """Return an event of the log."""
    found = dict(zip(EVENT, row, strict=True))
    # Postgres has it as text: a number of 64 bits without a sign.
    found["tx"] = int(found["tx"])
    found["status"] = JobStatus(found["status"])
    found["error"] = job_error(found["error"])
    found["progress"] = job_progress(found["progress"], found["attempt"])
    return JobEvent(**found, cursor=cursor)


def worker(row: Sequence[Any]) -> WorkerRecord:
    """Return a worker."""
    found = dict(zip(WORKER, row, strict=True))
    found["job_types"], found["state"] = tuple(found["job_types"]), WorkerState(found["state"])
    return WorkerRecord(**found)


def blocker(row: Sequence[Any]) -> BlockerRecord:
    """Return a chain that a job waits for."""
    chain_id, type, status, tail_type, output, error, attempt_trace = row
    return BlockerRecord(chain_id, type, ChainStatus(status), tail_type, output, job_error(error), attempt_trace)


def step(row: Sequence[Any]) -> StepRecord:
    """Return a step of a job."""
    return StepRecord(*row)


def schedule(row: Sequence[Any]) -> ScheduleRecord:
    """Return a recurring schedule."""
    found = dict(zip(SCHEDULE, row, strict=True))
    found["missed"], found["overlap"] = MissedRuns(found["missed"]), Overlap(found["overlap"])
    found["paused"] = bool(found["paused"])
    found["attributes"] = attributes_of(found["attributes"]) if found["attributes"] else {}
    return ScheduleRecord(**found)


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
    return _utc(value) if isinstance(value, str) else _EPOCH + timedelta(microseconds=value)


def _utc(text: str) -> datetime:
    """A time of ISO 8601; one without a zone is in UTC."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


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
        started_at=_utc(found["started_at"]),
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
        return JobProgress(fraction, done, total, found.get("message"), _utc(found["at"]), phase)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        # A manual edit must not make reading the job fail.
        return None
