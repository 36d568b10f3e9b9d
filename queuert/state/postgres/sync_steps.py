# Generated from queuert/state/postgres/async_steps.py, do not edit: see scripts/unasync.py
"""Steps of jobs on Postgres. ``sync_steps.py`` is generated from this module."""

from __future__ import annotations

from queuert.errors import LeaseLostError
from queuert.jobs import AbortReason
from queuert.state import records
from queuert.state.postgres import parameters, rows
from queuert.state.postgres.protocol import PooledConnection
from queuert.state.postgres.rows import LeaseState
from queuert.state.postgres.statements import Statements
from queuert.state.postgres.sync_base import PostgresBase
from queuert.state.postgres.sync_statements import fetch
from queuert.state.types import Lease, NewStep, StepRecord


def record_step(connection: PooledConnection, sql: Statements, lease: Lease, step: NewStep) -> StepRecord:
    """Record a step on this connection, in its transaction if it has one.

    Raises:
        LeaseLostError: the lease is lost; nothing was written.
    """
    found = fetch(connection, sql.record_step, parameters.new_step(lease, step))
    if not found:
        states = rows.lease_states([lease], fetch(connection, sql.lease_states, parameters.leases([lease])))
        reason = AbortReason.ALREADY_COMPLETED if isinstance(states[0], LeaseState) else states[0]
        raise LeaseLostError(lease.job_id, reason)
    return records.step(found[0])


class PostgresSteps(PostgresBase):
    """``record_step`` and ``get_steps``."""

    def record_step(self, lease: Lease, step: NewStep) -> StepRecord:
        """Record a step of a job, if the token has the job's lease."""
        with self._connections.connection() as connection:
            return record_step(connection, self._sql, lease, step)

    def get_steps(self, job_id: str) -> list[StepRecord]:
        """Return the steps of a job, in order."""
        return [records.step(row) for row in self._fetch(self._sql.get_steps, {"id": job_id})]
