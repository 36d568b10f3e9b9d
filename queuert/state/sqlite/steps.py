"""Steps of jobs, inside a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from queuert.errors import LeaseLostError, StateError
from queuert.event_log import EventKind
from queuert.jobs import AbortReason
from queuert.state import records
from queuert.state.sqlite import rows
from queuert.state.sqlite.connection import execute, fetch_one, fetch_value, now_us, run
from queuert.state.sqlite.event_log import add_event
from queuert.state.steps import EventWait, NewStep, StepRecord
from queuert.state.types import Lease

Connection = sqlite3.Connection


def record_step(connection: Connection, lease: Lease, step: NewStep) -> StepRecord:
    """Record a step if the token has the job's lease.

    Raises:
        LeaseLostError: the lease is lost; nothing was written.
    """
    _check_lease(connection, lease)
    now = now_us()
    wake_at = rows.wake_at(step.wake_at, now)
    started_at = None if step.started_at is None else rows.microseconds(step.started_at)
    run(
        connection,
        "record_step",
        id=lease.job_id,
        number=step.number,
        name=step.name,
        attempt=step.attempt,
        now=now,
        wake_at=wake_at,
        result=step.result,
        event=None,
        started_at=started_at,
    )
    if step.progress is not None:
        run(connection, "set_progress", id=lease.job_id, progress=step.progress)
        add_event(connection, EventKind.PHASE_COMPLETED, lease.job_id, of_worker=True)
    return _record((step.number, step.name, step.attempt, now, step.result, wake_at, None, None, started_at), now)


def begin_phase(connection: Connection, lease: Lease, progress: str) -> datetime:
    """Store the progress of a job whose phase begins, if the token has its lease.

    Raises:
        LeaseLostError: the lease is lost; nothing was written.
    """
    _check_lease(connection, lease)
    run(connection, "set_progress", id=lease.job_id, progress=progress)
    add_event(connection, EventKind.PHASE_STARTED, lease.job_id, of_worker=True)
    return rows.moment(now_us())


def get_progress(connection: Connection, job_id: str) -> str | None:
    """Return the progress of a job as it is stored."""
    progress: str | None = fetch_value(connection, "get_progress", id=job_id)
    return progress


def wait_for_event(connection: Connection, lease: Lease, wait: EventWait) -> StepRecord:
    """Record a wait as the next step of a job, if it is not recorded yet, and try to answer it.

    Raises:
        LeaseLostError: the lease is lost; nothing was written.
        StateError: the job has another step of this number.
    """
    _check_lease(connection, lease)
    now = now_us()
    found = [_record(row, now) for row in run(connection, "get_steps", id=lease.job_id, number=wait.number)]
    if not found:
        run(
            connection,
            "record_step",
            id=lease.job_id,
            number=wait.number,
            name=wait.name,
            attempt=wait.attempt,
            now=now,
            wake_at=now + rows.microseconds_of(wait.timeout),
            result=None,
            event=wait.event,
            started_at=None,
        )
    elif (found[0].name, found[0].event) != (wait.name, wait.event):
        raise StateError(f"step {wait.number} of job {lease.job_id!r} is not {wait.name!r}: repeat the attempt")
    if not found or found[0].waits:
        _answer(connection, lease.job_id, wait, now)
    [record] = [_record(row, now) for row in run(connection, "get_steps", id=lease.job_id, number=wait.number)]
    return record


def _answer(connection: Connection, job_id: str, wait: EventWait, now: int) -> None:
    """Answer a wait with the oldest event that nothing has taken, or by its timeout."""
    [(_, wake_at)] = run(connection, "awaited_event", id=job_id)
    event_id, payload = fetch_one(connection, "oldest_event", job=job_id, name=wait.event) or (None, None)
    if event_id is not None:
        run(connection, "take_event", job=job_id, id=event_id)
    elif wake_at > now:
        return
    run(connection, "answer_wait", id=job_id, number=wait.number, result=payload, now=now)


def wake_receiver(connection: Connection, job_id: str) -> bool:
    """Make a job due that was snoozed until the end of its wait, if the event is there. Return whether it was."""
    event, wake_at = fetch_one(connection, "awaited_event", id=job_id) or (None, None)
    if event is None or fetch_one(connection, "oldest_event", job=job_id, name=event) is None:
        return False
    return execute(connection, "wake_receiver", id=job_id, wake_at=wake_at, now=now_us()) == 1


def get_steps(connection: Connection, job_id: str) -> list[StepRecord]:
    """Return the steps of a job, in order."""
    now = now_us()
    return [_record(row, now) for row in run(connection, "get_steps", id=job_id, number=1)]


def _check_lease(connection: Connection, lease: Lease) -> None:
    state = fetch_one(connection, "lease_state", id=lease.job_id)
    if not rows.holds(lease.token, state):
        reason = rows.lost_reason(None, lease.token, state) or AbortReason.ALREADY_COMPLETED
        raise LeaseLostError(lease.job_id, reason)


def _record(row: Sequence[Any], now: int) -> StepRecord:
    number, name, attempt, recorded_at, result, wake_at, event, answered_at, started_at = row
    left = 0.0 if wake_at is None else max(0, wake_at - now) / 1_000_000
    ends, answered, started = map(rows.moment_or_none, (wake_at, answered_at, started_at))
    return records.step((number, name, attempt, rows.moment(recorded_at), result, ends, left, event, answered, started))
