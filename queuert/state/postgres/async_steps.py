"""Steps of jobs on Postgres. ``sync_steps.py`` is generated from this module."""

from __future__ import annotations

from queuert.errors import LeaseLostError
from queuert.jobs import AbortReason
from queuert.state import records
from queuert.state.postgres import parameters, rows
from queuert.state.postgres.async_base import AsyncPostgresBase
from queuert.state.postgres.async_statements import fetch
from queuert.state.postgres.protocol import AsyncPooledConnection
from queuert.state.postgres.rows import LeaseState
from queuert.state.postgres.statements import Statements
from queuert.state.types import Lease, NewStep, StepRecord


async def record_step(connection: AsyncPooledConnection, sql: Statements, lease: Lease, step: NewStep) -> StepRecord:
    """Record a step on this connection, in its transaction if it has one.

    Raises:
        LeaseLostError: the lease is lost; nothing was written.
    """
    found = await fetch(connection, sql.record_step, parameters.new_step(lease, step))
    if not found:
        states = rows.lease_states([lease], await fetch(connection, sql.lease_states, parameters.leases([lease])))
        reason = AbortReason.ALREADY_COMPLETED if isinstance(states[0], LeaseState) else states[0]
        raise LeaseLostError(lease.job_id, reason)
    return records.step(found[0])


class AsyncPostgresSteps(AsyncPostgresBase):
    """``record_step`` and ``get_steps``."""

    async def record_step(self, lease: Lease, step: NewStep) -> StepRecord:
        """Record a step of a job, if the token has the job's lease."""
        async with self._connections.connection() as connection:
            return await record_step(connection, self._sql, lease, step)

    async def get_steps(self, job_id: str) -> list[StepRecord]:
        """Return the steps of a job, in order."""
        return [records.step(row) for row in await self._fetch(self._sql.get_steps, {"id": job_id})]
