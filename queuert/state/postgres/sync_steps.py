# Generated from queuert/state/postgres/async_steps.py, do not edit: see scripts/unasync.py
"""Steps of jobs on Postgres. ``sync_steps.py`` is generated from this module."""

from __future__ import annotations

from datetime import datetime

from queuert.errors import LeaseLostError, StateError
from queuert.jobs import AbortReason
from queuert.state import records
from queuert.state.postgres import parameters, rows
from queuert.state.postgres.bounds import sync_bounded
from queuert.state.postgres.protocol import PooledConnection
from queuert.state.postgres.rows import LeaseState
from queuert.state.postgres.statements import Statements
from queuert.state.postgres.sync_base import PostgresBase
from queuert.state.postgres.sync_statements import fetch
from queuert.state.steps import EventWait, NewStep, StepRecord
from queuert.state.types import Lease


def record_step(connection: PooledConnection, sql: Statements, lease: Lease, step: NewStep) -> StepRecord:
    """Record a step on this connection, in its transaction if it has one.

    Raises:
        LeaseLostError: the lease is lost; nothing was written.
    """
    statement = sql.record_step if step.started_at is None else sql.record_phase
    found = fetch(connection, statement, parameters.new_step(lease, step))
    if not found:
        raise _lost(connection, sql, lease)
    return records.step(found[0])


def _lost(connection: PooledConnection, sql: Statements, lease: Lease) -> LeaseLostError:
    """Return the error for a lease that did not hold its job."""
    [state] = rows.lease_states([lease], fetch(connection, sql.lease_states, parameters.leases([lease])))
    reason = AbortReason.ALREADY_COMPLETED if isinstance(state, LeaseState) else state
    return LeaseLostError(lease.job_id, reason)


class PostgresSteps(PostgresBase):
    """Records and reads steps, phases and waits."""

    def record_step(self, lease: Lease, step: NewStep) -> StepRecord:
        """Record a step of a job, if the token has the job's lease."""
        with self._connections.connection() as connection:
            return record_step(connection, self._sql, lease, step)

    def get_steps(self, job_id: str) -> list[StepRecord]:
        """Return the steps of a job, in order."""
        return [records.step(row) for row in self._fetch(self._sql.get_steps, {"id": job_id})]

    def begin_phase(self, lease: Lease, progress: str) -> datetime:
        """Store the progress of a job whose phase begins, if the token has the job's lease."""
        with self._connections.connection() as connection:
            params = {"id": lease.job_id, "token": lease.token, "progress": progress}
            found = fetch(connection, self._sql.begin_phase, params)
            if not found:
                raise _lost(connection, self._sql, lease)
            begun_at: datetime
            [(begun_at,)] = found
            return begun_at

    def get_progress(self, job_id: str) -> str | None:
        """Return the progress of a job as it is stored."""
        progress: str | None
        [(progress,)] = self._fetch(self._sql.get_progress, {"id": job_id}) or [(None,)]
        return progress

    def wait_for_event(self, lease: Lease, wait: EventWait) -> StepRecord:
        """Record a wait as the next step of a job, if it is not recorded yet, and try to answer it."""
        with self._connections.connection() as connection, sync_bounded(connection):
            locked = fetch(connection, self._sql.lock_waiting_job, {"id": lease.job_id, "token": lease.token})
            if not locked:
                raise _lost(connection, self._sql, lease)
            [(chain_id,)] = locked
            params = parameters.event_wait(lease, chain_id, wait)
            fetch(connection, self._sql.record_wait, params)
            found = fetch(connection, self._sql.answer_wait, params)
            if not found:
                raise StateError(f"step {wait.number} of job {lease.job_id!r} is not {wait.name!r}: repeat the attempt")
            return records.step(found[0])
