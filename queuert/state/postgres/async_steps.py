"""The steps that operations on Postgres are made of, each on a given connection. ``sync_steps.py`` is generated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from psycopg import AsyncConnection, AsyncCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from queuert.errors import ChainNotFoundError, UnsupportedConnectionError
from queuert.jobs import JobStatus
from queuert.state.adapter import Finish, FinishResult, Lease, NewJob
from queuert.state.postgres import parameters
from queuert.state.postgres.finishing import closing_chains, continuations_with_blockers, finish_results, written_leases
from queuert.state.postgres.rows import Row
from queuert.state.postgres.statements import Statements


async def fetch(
    connection: AsyncConnection[Any], statement: bytes, values: parameters.Parameters | None = None
) -> list[Row]:
    """Run one statement and return its rows as tuples, whatever row factory the connection has."""
    async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(statement, values)
        return await cursor.fetchall()


def callers_connection(given: Any) -> AsyncConnection[Any]:
    """The psycopg connection in what a caller gave as ``connection=``: itself, or the one of a cursor.

    Raises:
        UnsupportedConnectionError: it is something else, or of the other colour.
    """
    if isinstance(given, AsyncConnection):
        return given
    if isinstance(given, AsyncCursor):
        return given.connection
    kind = f"{type(given).__module__}.{type(given).__name__}"
    raise UnsupportedConnectionError(f"connection= takes a psycopg.AsyncConnection or its cursor, not {kind}")


async def begin_callers_transaction(connection: AsyncConnection[Any]) -> None:
    """Begin the caller's transaction, if its next statement would have begun it.

    psycopg's ``transaction()`` is a savepoint inside a transaction; on an idle connection it would be one of its own,
    and committed whatever the caller does later.
    """
    if not connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
        await fetch(connection, b"SELECT 1")


async def lock_rows(
    connection: AsyncConnection[Any], sql: Statements, rows: Iterable[str], waiting: Sequence[NewJob]
) -> None:
    """Lock jobs and chains, and the chains that new jobs will wait for, all in one order.

    Raises:
        ChainNotFoundError: a chain that a job is to wait for does not exist.
    """
    awaited = {chain_id for job in waiting for chain_id in job.blockers}
    asked = {"rows": list(awaited.union(rows)), "awaited": list(awaited)}
    if not asked["rows"]:
        return
    found = {row[0] for row in await fetch(connection, sql.lock_rows, asked)}
    missing = sorted(awaited - found)
    if missing:
        raise ChainNotFoundError(missing[0])


async def add_blockers(connection: AsyncConnection[Any], sql: Statements, waiting: Sequence[NewJob]) -> dict[str, str]:
    """Let freshly written jobs wait for locked chains; returns the status that each job has then."""
    found = await fetch(connection, sql.add_blockers, parameters.blockers(waiting))
    return {row[0]: row[1] for row in found}


async def finish_and_release(
    connection: AsyncConnection[Any], sql: Statements, finishes: Sequence[Finish]
) -> dict[Lease, FinishResult]:
    """Finish inside the connection's transaction, and release the jobs that waited for the chains that closed."""
    waiting = continuations_with_blockers(finishes)
    closing = closing_chains(finishes)
    await lock_rows(connection, sql, {one.job.id for one in finishes}.union(closing), waiting)
    found = await fetch(connection, sql.finish, parameters.finish(finishes, closes_awaited=True))
    written = written_leases(found)
    begun = continuations_with_blockers([one for one in finishes if one.job.lease in written])
    statuses = await add_blockers(connection, sql, begun) if begun else {}
    blocked = {job_id for job_id, status in statuses.items() if status == JobStatus.BLOCKED}
    released = await fetch(connection, sql.unblock, {"chains": closing}) if closing else []
    freed = [row[0] for row in released if row[1] != JobStatus.BLOCKED]
    return finish_results(finishes, found, freed, blocked)
