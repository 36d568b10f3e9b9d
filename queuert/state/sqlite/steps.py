"""Steps of jobs, inside a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from queuert.errors import LeaseLostError
from queuert.jobs import AbortReason
from queuert.state import records
from queuert.state.sqlite import rows
from queuert.state.sqlite.connection import fetch_one, now_us, run
from queuert.state.types import Lease, NewStep, StepRecord

Connection = sqlite3.Connection


def record_step(connection: Connection, lease: Lease, step: NewStep) -> StepRecord:
    """Record a step if the token has the job's lease.

    Raises:
        LeaseLostError: the lease is lost; nothing was written.
    """
    state = fetch_one(connection, "lease_state", id=lease.job_id)
    if state is None or state[2] != lease.token or not state[3]:
        reason = rows.lost_reason(None, lease.token, state) or AbortReason.ALREADY_COMPLETED
        raise LeaseLostError(lease.job_id, reason)
    now = now_us()
    wake_at = rows.wake_at(step.wake_at, now)
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
    )
    return _record((step.number, step.name, step.attempt, now, step.result, wake_at), now)


def get_steps(connection: Connection, job_id: str) -> list[StepRecord]:
    """Return the steps of a job, in order."""
    now = now_us()
    return [_record(row, now) for row in run(connection, "get_steps", id=job_id)]


def _record(row: Sequence[Any], now: int) -> StepRecord:
    number, name, attempt, recorded_at, result, wake_at = row
    left = 0.0 if wake_at is None else max(0, wake_at - now) / 1_000_000
    at = (rows.moment(recorded_at), rows.moment_or_none(wake_at))
    return records.step((number, name, attempt, at[0], result, at[1], left))
