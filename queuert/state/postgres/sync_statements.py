# Generated from queuert/state/postgres/async_statements.py, do not edit: see scripts/unasync.py
"""The steps that operations on Postgres are made of, each on a given connection. ``sync_steps.py`` is generated."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeGuard

from psycopg import Connection, Error, Pipeline, RawCursor
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from queuert.errors import ChainNotFoundError
from queuert.jobs import JobStatus
from queuert.state.postgres import parameters, psycopg_internals
from queuert.state.postgres.finishing import (
    DUE,
    closing_chains,
    finish_results,
    started_by,
    waiting_jobs,
    written_leases,
)
from queuert.state.postgres.management import attribute_rows, freed_keys
from queuert.state.postgres.protocol import (
    NamedStatement,
    PooledConnection,
    is_plain_connection,
    numbered,
    sync_execute_prepared,
)
from queuert.state.postgres.rows import UNREADABLE, Row, rows_one_by_one
from queuert.state.postgres.starting import insertions, started_jobs
from queuert.state.postgres.statements import Statements
from queuert.state.types import Finish, FinishResult, Lease, NewJob, StartedJob

_EAGER_THRESHOLDS = (0, 1)

_OPEN = (TransactionStatus.INTRANS, TransactionStatus.INERROR)


def fetch(
    connection: Connection[Any],
    statement: bytes | NamedStatement,
    values: parameters.Parameters | None = None,
    *,
    binary: bool = False,
    lenient: bool = False,
) -> list[Row]:
    """Run one statement and return its rows as tuples, whatever row factory the connection has.

    ``binary`` asks for them in a form that is read in half the time; worth while for many. Placeholders are numbered
    once for each statement: psycopg's other cursors do it at each execution if the text is longer than 4 kB. One that
    has a name goes past the cursors, where the connection is ours and may prepare. With that, or where it is asked for
    (``lenient``), a row that cannot be read does not cost the others: see rows.py.
    """
    if isinstance(statement, NamedStatement) and values is not None and _is_quick(connection):
        return sync_execute_prepared(connection, statement, values)
    with _send(connection, statement, values, binary=binary) as cursor:
        try:
            return cursor.fetchall()
        except UNREADABLE:
            if not (lenient or isinstance(statement, NamedStatement)) or cursor.pgresult is None:
                raise
            return rows_one_by_one(connection, cursor.pgresult)


def _send(
    connection: Connection[Any],
    statement: bytes | NamedStatement,
    values: parameters.Parameters | None = None,
    *,
    binary: bool = False,
) -> RawCursor[Row]:
    """Send one statement. Its answer is waited for as well, unless the connection is in a pipeline."""
    if isinstance(statement, NamedStatement):
        _, text, names = statement
    else:
        text, names = (statement, ()) if values is None else numbered(statement)
    cursor = RawCursor(connection, row_factory=tuple_row)
    cursor.execute(text, None if values is None else [values[name] for name in names], binary=binary)
    return cursor


def _is_quick(connection: Connection[Any]) -> TypeGuard[PooledConnection]:
    """Whether it is ours, in no pipeline of psycopg's, and may prepare at once: cursors count executions first."""
    return (
        isinstance(connection, PooledConnection)
        and connection.prepare_threshold in _EAGER_THRESHOLDS
        and not psycopg_internals.PLAIN_CURSORS
        and connection.pgconn.pipeline_status == PipelineStatus.OFF
    )


def begin_callers_transaction(connection: Connection[Any]) -> None:
    """Begin the caller's transaction, if its next statement would have begun it.

    psycopg's ``transaction()`` is a savepoint inside a transaction; on an idle connection it would be one of its own,
    and committed whatever the caller does later.
    """
    if not connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
        fetch(connection, b"SELECT 1")


def lock_in_order(
    connection: Connection[Any],
    sql: Statements,
    others: Iterable[str],
    waiting: Sequence[NewJob],
    *,
    besides: Collection[str] = (),
    closing: Sequence[str] = (),
) -> None:
    """Lock jobs and chains, and the chains that jobs will wait for (``besides`` those yet to be written), in one order.

    Chains that are about to close (``closing``) are among ``others``: the jobs that wait for them are locked as well.

    Raises:
        ChainNotFoundError: a chain that a job is to wait for does not exist.
    """
    awaited = {chain_id for job in waiting for chain_id in job.blockers}.difference(besides)
    locked = awaited.union(others)
    if not locked:
        return
    params = parameters.locks(locked, awaited=awaited, closing=closing)
    found = {row[0] for row in fetch(connection, sql.lock_in_order, params)}
    missing = sorted(awaited - found)
    if missing:
        raise ChainNotFoundError(missing[0])


def add_blockers(connection: Connection[Any], sql: Statements, waiting: Sequence[NewJob]) -> dict[str, str]:
    """Let jobs wait for locked chains; returns the status that each job has then."""
    if not waiting:
        return {}
    found = fetch(connection, sql.add_blockers, parameters.blockers(waiting))
    return {row[0]: row[1] for row in found}


def insert_jobs(
    connection: Connection[Any],
    sql: Statements,
    statement: bytes,
    jobs: Sequence[NewJob],
    *,
    awaited: bool = False,
) -> dict[str, StartedJob]:
    """Write the first jobs of new chains by ``start_jobs`` or ``start_if_absent``; those that were written, by id."""
    written: dict[str, StartedJob] = {}
    for text, values in insertions(sql, statement, jobs, awaited=awaited):
        written |= started_jobs(fetch(connection, text, values, binary=True))
    return written


def insert_parts(connection: PooledConnection, sql: Statements, parts: Iterable[Sequence[NewJob]]) -> list[StartedJob]:
    """Write the first jobs of new chains in one transaction: each part is sent before the next one is made."""
    try:
        with connection.pipeline() as pipeline:
            return _send_parts(connection, pipeline, sql, parts)
    except BaseException:
        # Of what failed, or could not be made, the transaction is open still. A broken connection has none.
        if is_plain_connection(connection.pgconn) and connection.info.transaction_status in _OPEN:
            with suppress(Error):
                connection.rollback()
        raise


def _send_parts(
    connection: PooledConnection, pipeline: Pipeline, sql: Statements, parts: Iterable[Sequence[NewJob]]
) -> list[StartedJob]:
    """In psycopg's pipeline, whose end waits for all answers and raises what they say."""
    _send(connection, b"BEGIN")
    _send(connection, sql.set_short_lock_timeout, connection.bounds.parameters())
    ids: list[str] = []
    sent = []
    for part in parts:
        for text, values in insertions(sql, sql.start_jobs, part, before=len(ids)):
            sent.append(_send(connection, text, values, binary=True))
        # Its answer shall be here when the last part is sent, not wait in the server for the answer to that one. And
        # only from such a mark on does the server count for how long nothing comes.
        connection.pgconn.pipeline_sync()
        pipeline.result_queue.append(None)
        ids += [job.id for job in part]
    _send(connection, b"COMMIT")
    written: dict[str, StartedJob] = {}
    for cursor in sent:
        written |= started_jobs(cursor.fetchall())
    return [written[id] for id in ids]


def forget_deleted(connection: Connection[Any], sql: Statements, deleted: Sequence[Row]) -> None:
    """Remove what jobs had beside their rows: deduplication keys that no chain has any more, entries of attributes."""
    keys = freed_keys(deleted)
    if keys["keys"]:
        fetch(connection, sql.delete_keys, keys)
    entries = attribute_rows(deleted)
    if entries["ids"]:
        fetch(connection, sql.delete_attributes, entries)


def finish_and_release(
    connection: Connection[Any], sql: Statements, finishes: Sequence[Finish]
) -> dict[Lease, FinishResult]:
    """Finish inside the connection's transaction, and release the jobs that waited for the chains that closed."""
    waiting = waiting_jobs(finishes)
    closing = closing_chains(finishes)
    new = {job.id for job in started_by(finishes)}
    held = {one.job.id for one in finishes}.union(closing)
    lock_in_order(connection, sql, held, waiting, besides=new, closing=closing)
    found = fetch(connection, sql.finish, parameters.finish(finishes, closes_awaited=True))
    written = written_leases(found)
    begun = [one for one in finishes if one.job.lease in written]
    started = insert_jobs(connection, sql, sql.start_jobs, started_by(begun), awaited=True)
    statuses = add_blockers(connection, sql, waiting_jobs(begun))
    blocked = {job_id for job_id, status in statuses.items() if status == JobStatus.BLOCKED}
    released = fetch(connection, sql.unblock, parameters.closed_chains(closing)) if closing else []
    freed = [row[0] for row in released if row[1] in DUE] + [job.type for job in started.values()]
    return finish_results(finishes, found, freed, blocked)
