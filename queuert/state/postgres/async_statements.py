"""Functions that run statements on a given connection, shared by several groups. ``sync_statements.py`` is
generated."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeGuard, cast

from psycopg import AsyncConnection, AsyncPipeline, AsyncRawCursor, Error
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from queuert.errors import ChainNotFoundError
from queuert.jobs import JobStatus
from queuert.notify.adapter import PiggybackAdapter, Topic
from queuert.state._asyncio import async_turn
from queuert.state.postgres import parameters, psycopg_internals
from queuert.state.postgres.bounds import is_idle, milliseconds
from queuert.state.postgres.finishing import (
    CLAIMABLE,
    Inherited,
    closing_chains,
    finish_results,
    receivers,
    started_by,
    waiting_jobs,
    written_leases,
)
from queuert.state.postgres.management import attribute_rows, freed_keys
from queuert.state.postgres.other_drivers import AsyncAnyConnection, AsyncpgConnection
from queuert.state.postgres.protocol import (
    AsyncPooledConnection,
    NamedStatement,
    Step,
    async_execute_prepared,
    async_execute_two,
    is_plain_connection,
    numbered,
)
from queuert.state.postgres.rows import UNREADABLE, DeletedJob, Row, rows_one_by_one, times_in_utc
from queuert.state.postgres.starting import insertions, started_jobs
from queuert.state.postgres.statements import Statements
from queuert.state.types import Finish, FinishResult, Lease, NewJob, StartedJob, last_renewals

_EAGER_THRESHOLDS = (0, 1)

_OPEN = (TransactionStatus.INTRANS, TransactionStatus.INERROR)
_RESTARTED_AFTER = 0.5
"""The part of the timeout of a whole transaction after which it begins again, if there are more parts."""


async def fetch(
    connection: AsyncAnyConnection,
    statement: bytes | NamedStatement,
    values: parameters.Parameters | None = None,
    *,
    lenient: bool = False,
) -> list[Row]:
    """Run one statement and return its rows as tuples, whatever row factory the connection has.

    The rows come in binary form: it is the same whatever DateStyle and digits of floats a server, or a caller's
    connection, is set to, and is read in half the time. Placeholders are numbered once for each statement, where
    psycopg's other cursors do it at each execution of a text longer than 4 kB. A named statement bypasses the cursors
    if the connection belongs to the store's pool and may prepare. Then, or with ``lenient``, a row that cannot be read
    does not affect the others: see rows.py.
    """
    lenient = lenient or isinstance(statement, NamedStatement)
    if _is_quick(connection):
        if isinstance(statement, NamedStatement) and values is not None:
            return await async_execute_prepared(connection, statement, values)
        sent = await _send(AsyncRawCursor(connection), statement, values)
        assert sent.pgresult is not None, "a statement that was executed has a result"
        async with connection.lock:
            return connection.read(sent.pgresult, lenient=lenient)
    if isinstance(connection, AsyncpgConnection):
        return await connection.fetch(*_numbered(statement, values))
    async with await _send(_cursor(connection), statement, values) as cursor:
        try:
            return await cursor.fetchall()
        except UNREADABLE:
            if not lenient or cursor.pgresult is None:
                raise
            return rows_one_by_one(connection, cursor.pgresult)


def _cursor(connection: AsyncConnection[Any]) -> AsyncRawCursor[Row]:
    """Return a cursor whose rows are tuples with times in UTC."""
    cursor = AsyncRawCursor(connection, row_factory=tuple_row)
    times_in_utc(cursor.adapters)
    return cursor


async def _send(
    cursor: AsyncRawCursor[Row], statement: bytes | NamedStatement, values: parameters.Parameters | None = None
) -> AsyncRawCursor[Row]:
    """Send one statement by a cursor, and return that. Outside a pipeline this also waits for its answer."""
    text, given = _numbered(statement, values)
    await cursor.execute(text, None if values is None else given, binary=True)
    return cursor


def _numbered(statement: bytes | NamedStatement, values: parameters.Parameters | None) -> tuple[bytes, list[Any]]:
    """Return a statement in the server's syntax, and the values of its parameters in order."""
    if values is None:
        return statement.text if isinstance(statement, NamedStatement) else statement, []
    if isinstance(statement, NamedStatement):
        _, text, names = statement
    else:
        text, names = numbered(statement)
    return text, [values[name] for name in names]


def _is_quick(connection: AsyncAnyConnection) -> TypeGuard[AsyncPooledConnection]:
    """Whether it is ours, in no pipeline of psycopg's, and may prepare at once: cursors count executions first."""
    return (
        isinstance(connection, AsyncPooledConnection)
        and connection.prepare_threshold in _EAGER_THRESHOLDS
        and not psycopg_internals.PLAIN_CURSORS
        and connection.pgconn.pipeline_status == PipelineStatus.OFF
    )


async def begin_callers_transaction(connection: AsyncAnyConnection) -> None:
    """Begin the caller's transaction if its next statement would do so.

    On an idle connection psycopg's ``transaction()`` would not be a savepoint, but a transaction that commits by
    itself, whatever the caller does later.
    """
    if not connection.autocommit and is_idle(connection):
        await fetch(connection, b"SELECT 1")


async def lock_in_order(
    connection: AsyncAnyConnection,
    sql: Statements,
    others: Iterable[str],
    waiting: Sequence[NewJob],
    *,
    besides: Collection[str] = (),
    closing: Sequence[str] = (),
) -> None:
    """Lock jobs, chains, and the chains that jobs will wait for (except ``besides``, which are not written yet), in one
    order that all operations share.

    Chains that are about to close (``closing``) are among ``others``; the jobs that wait for them are locked as well.

    Raises:
        ChainNotFoundError: a chain that a job is to wait for does not exist.
    """
    awaited = {chain_id for job in waiting for chain_id in job.blockers}.difference(besides)
    locked = awaited.union(others)
    if not locked:
        return
    params = parameters.locks(locked, awaited=awaited, closing=closing)
    found = {id for (id,) in await fetch(connection, sql.lock_in_order, params)}
    missing = sorted(awaited - found)
    if missing:
        raise ChainNotFoundError(missing[0])


async def add_blockers(connection: AsyncAnyConnection, sql: Statements, waiting: Sequence[NewJob]) -> dict[str, str]:
    """Add blockers to jobs whose chains are locked; return the status that each job has then."""
    if not waiting:
        return {}
    return dict(await fetch(connection, sql.add_blockers, parameters.blockers(waiting)))


async def insert_jobs(
    connection: AsyncAnyConnection,
    sql: Statements,
    statement: bytes,
    jobs: Sequence[NewJob],
    *,
    awaited: bool = False,
) -> dict[str, StartedJob]:
    """Write the first jobs of new chains by ``start_jobs`` or ``start_if_absent``; return those that were written, by
    id."""
    written: dict[str, StartedJob] = {}
    for text, values in insertions(sql, statement, jobs, awaited=awaited):
        written |= started_jobs(await fetch(connection, text, values))
    return written


async def insert_and_notify(
    connection: AsyncConnection[Any],
    sql: Statements,
    jobs: Sequence[NewJob],
    notify: PiggybackAdapter,
    address: object,
) -> tuple[dict[str, StartedJob], bool]:
    """Write the first jobs of new chains as ``insert_jobs``, outside a transaction. If a prepared statement writes
    them, send a notification behind it, and return also whether that was sent."""
    written: dict[str, StartedJob] = {}
    notified = False
    for text, values in insertions(sql, sql.start_jobs, jobs):
        piggyback = None
        if isinstance(text, NamedStatement) and _is_quick(connection) and text.name in connection.prepared:
            # Prepared statements write jobs of one type.
            piggyback = notify.piggyback(Topic.JOBS, {jobs[0].type}, address)
        if piggyback is None:
            found = await fetch(connection, text, values)
        else:
            channel, notification = piggyback
            second = Step(sql.prepared["notify_after_commit"], {"channel": channel, "text": notification})
            own, start = cast("AsyncPooledConnection", connection), Step(cast("NamedStatement", text), values)
            found, notified = await async_execute_two(own, start, second)
        written |= started_jobs(found)
    return written, notified


async def insert_parts(
    connection: AsyncPooledConnection, sql: Statements, parts: Iterable[Sequence[NewJob]]
) -> list[StartedJob]:
    """Write the first jobs of new chains in one transaction: each part is sent before the next one is made."""
    try:
        async with connection.pipeline() as pipeline:
            return await _send_parts(connection, pipeline, sql, parts)
    except BaseException:
        # If a part fails or cannot be made, the transaction is still open. A broken connection has none.
        if is_plain_connection(connection.pgconn) and connection.info.transaction_status in _OPEN:
            with suppress(Error):
                await connection.rollback()
        raise


async def _send_parts(
    connection: AsyncPooledConnection, pipeline: AsyncPipeline, sql: Statements, parts: Iterable[Sequence[NewJob]]
) -> list[StartedJob]:
    """Write the parts in psycopg's pipeline. Its end waits for all answers and raises their errors."""
    await _send(_cursor(connection), b"BEGIN")
    bounds = connection.bounds
    await _send(_cursor(connection), sql.set_short_lock_timeout, bounds.parameters())
    restart_at = time.monotonic() + bounds.whole * _RESTARTED_AFTER
    ids: list[str] = []
    sent = []
    for part in parts:
        if time.monotonic() >= restart_at:
            # Each part is bounded, but there may be any number of them.
            await _send(_cursor(connection), sql.restart_timeout, {"whole": milliseconds(bounds.whole)})
            restart_at = time.monotonic() + bounds.whole * _RESTARTED_AFTER
        for text, values in insertions(sql, sql.start_jobs, part, before=len(ids)):
            sent.append(await _send(_cursor(connection), text, values))
        # The answer to this part should arrive while the next is sent, instead of waiting in the server. Only after
        # such a sync does the server measure how long the client is idle.
        connection.pgconn.pipeline_sync()
        pipeline.result_queue.append(None)
        ids += [job.id for job in part]
        await async_turn()
    await _send(_cursor(connection), b"COMMIT")
    written: dict[str, StartedJob] = {}
    for cursor in sent:
        written |= started_jobs(await cursor.fetchall())
    return [written[id] for id in ids]


async def forget_deleted(connection: AsyncAnyConnection, sql: Statements, deleted: Sequence[DeletedJob]) -> None:
    """Delete the deduplication keys and attribute entries of deleted chains."""
    keys = freed_keys(deleted)
    if keys["keys"]:
        await fetch(connection, sql.delete_keys, keys)
    entries = attribute_rows(deleted)
    if entries["ids"]:
        await fetch(connection, sql.delete_attributes, entries)


async def finish_and_release(
    connection: AsyncAnyConnection, sql: Statements, finishes: Sequence[Finish]
) -> dict[Lease, FinishResult]:
    """Write finishes inside the connection's transaction, and release the dependents of the chains that closed."""
    waiting = waiting_jobs(finishes)
    closing = closing_chains(finishes)
    new = {job.id for job in started_by(finishes)}
    held = {one.job.id for one in finishes}.union(closing)
    await lock_in_order(connection, sql, held, waiting, besides=new, closing=closing)
    if renewals := last_renewals(finishes):
        await fetch(connection, sql.renew_with_events, parameters.renewals(renewals))
    found = await fetch(connection, sql.finish, parameters.finish(finishes, closes_awaited=True))
    written = written_leases(found)
    begun = [one for one in finishes if one.job.lease in written]
    inherited: dict[str, Inherited] = {}
    if any(new.inherit_limit_key or new.inherit_attributes for new in started_by(begun)):
        params = {"ids": [one.job.id for one in begun if one.starts]}
        found_inherited = await fetch(connection, sql.read_inherited, params)
        inherited = {id: (limit_key, attributes) for id, limit_key, attributes in found_inherited}
    new_chains = started_by(begun, inherited)
    started = await insert_jobs(connection, sql, sql.start_jobs, new_chains, awaited=True)
    statuses = await add_blockers(connection, sql, waiting_jobs(begun))
    blocked = {job_id for job_id, status in statuses.items() if status == JobStatus.BLOCKED}
    released = await fetch(connection, sql.release_dependents, parameters.closed_chains(closing)) if closing else []
    if receiving := receivers(begun):
        await fetch(connection, sql.wake_receivers, {"ids": receiving})
    freed = [type for type, status in released if status in CLAIMABLE] + [job.type for job in started.values()]
    return finish_results(finishes, found, freed, blocked)
