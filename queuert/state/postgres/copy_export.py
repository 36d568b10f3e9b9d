"""Exports the rows of a query by COPY, on a snapshot that several connections share.

Every transaction sets its own limits, because a pooler may change servers. None writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from io import BytesIO
from itertools import islice
from operator import itemgetter
from typing import Any

from psycopg import ClientCursor, Connection, InterfaceError, IsolationLevel, OperationalError, errors
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGresult

from queuert.errors import StateError
from queuert.state.postgres.bulk import BulkSession, BulkSettings, bulk_session, set_for_transaction
from queuert.state.postgres.errors import mapped_errors
from queuert.state.postgres.rows import Row
from queuert.state.postgres.sync_statements import fetch

CHUNK_BYTES = 1024 * 1024
"""The approximate size of a chunk."""
_ROWS_AT_ONCE = 32
"""The number of rows that are read before the size of the chunk is checked again."""
_LONG_BYTES = 64 * 1024 * 1024
"""Rows that are longer together are a chunk each: Arrow reads at most 2 GiB at once."""

_TEXT = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "client_encoding": "UTF8",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "jit": "off",
}


class SnapshotReleased(StateError):
    """The snapshot has been released: its transaction has ended."""


class TableDropped(StateError):
    """A table that existed when the read was planned was dropped."""


@contextmanager
def export_session(settings: BulkSettings) -> Iterator[BulkSession]:
    """Open a read-only connection that is closed when the block ends.

    Raises:
        StateUnavailableError: the database cannot be reached.
    """
    with bulk_session(settings, application_name="queuert spark read") as session:
        session.connection.read_only = True
        yield session


@contextmanager
def _on_snapshot(session: BulkSession, snapshot: str | None) -> Iterator[Connection[Any]]:
    """Open a transaction for the block; the block may end it by itself."""
    connection = session.connection
    with mapped_errors(session.settings.schema):
        connection.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            if snapshot is not None:
                # SET TRANSACTION SNAPSHOT must be the first statement, and takes no parameters.
                connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
            set_for_transaction(connection, {**session.settings.limits(), **_TEXT})
            yield connection
        finally:
            # Nothing was written, so a rollback ends it as well as a commit does.
            with suppress(OperationalError):
                connection.rollback()


def copy_out(
    session: BulkSession,
    query: str,
    parameters: Mapping[str, Any],
    *,
    delimiter: str,
    quote: str,
    snapshot: str | None = None,
) -> Iterator[memoryview]:
    """Yield the rows of a query as CSV without a header, in chunks of whole rows. NULL is empty; an empty text is
    quoted.

    Args:
        session: see :func:`export_session`.
        query: the query, with parameters as ``%(name)s``.
        parameters: their values. They are quoted here, because COPY takes no parameters.
        delimiter: the character between two fields.
        quote: the character around fields that need quotes.
        snapshot: the name of an exported snapshot; None to see what is committed now.

    Raises:
        SnapshotReleased: the transaction that exported the snapshot has ended.
        TableDropped: a table of the query was dropped.
        StateError: the query failed.
    """
    text = f"COPY ({query}) TO STDOUT (FORMAT csv, DELIMITER E'\\x{ord(delimiter):02x}', QUOTE E'\\x{ord(quote):02x}')"
    try:
        with _on_snapshot(session, snapshot) as connection:
            yield from _chunks(connection, text, parameters)
    except StateError as error:
        raise _explained(error, snapshot) from error.__cause__


def _chunks(connection: Connection[Any], text: str, parameters: Mapping[str, Any]) -> Iterator[memoryview]:
    merged = ClientCursor(connection).mogrify(text.encode(), parameters)
    pgconn = connection.pgconn
    # The server has sent the last rows long before a slow reader has dealt with them. It commits then, without being
    # told to, because a transaction that waits for the reader would be ended for being idle.
    _check(pgconn.exec_(b"%s; COMMIT" % merged.encode()), ExecStatus.COPY_OUT)
    ended = False
    try:
        # This loop runs in C: one row of psycopg's iterator in Python costs as much as all other work on it.
        yield from _joined(map(itemgetter(1), iter(partial(pgconn.get_copy_data, 0), (-1, b""))))
        ended = True
        for _ in ("COPY", "COMMIT"):
            _check(pgconn.get_result(), ExecStatus.COMMAND_OK)
    finally:
        if not ended:
            _abandon(connection)
        _drain(connection)


def _joined(rows: Iterator[memoryview]) -> Iterator[memoryview]:
    """Yield the rows in chunks."""
    chunk, at_once = BytesIO(), 1
    # Few rows at a time, since the length of the next ones is unknown: one, where the last ones were long.
    while few := list(islice(rows, at_once)):
        size = sum(map(len, few))
        at_once = 1 if size > CHUNK_BYTES * len(few) else _ROWS_AT_ONCE
        if size <= _LONG_BYTES:
            chunk.writelines(few)
        if chunk.tell() >= CHUNK_BYTES or (size > _LONG_BYTES and chunk.tell()):
            yield chunk.getbuffer()
            chunk = BytesIO()
        if size > _LONG_BYTES:
            yield from few
    if chunk.tell():
        yield chunk.getbuffer()


def _check(result: PGresult | None, wanted: ExecStatus) -> None:
    if result is None or result.status != wanted:
        raise (
            errors.error_from_result(result) if result is not None else InterfaceError("the server returned no result")
        )


def _abandon(connection: Connection[Any]) -> None:
    """Cancel a COPY that is not read to its end."""
    with suppress(OperationalError):
        connection.cancel_safe()
        while connection.pgconn.get_copy_data(0)[0] > 0:
            pass


def _drain(connection: Connection[Any]) -> None:
    while connection.pgconn.status == ConnStatus.OK and connection.pgconn.get_result() is not None:
        pass


def _explained(error: StateError, snapshot: str | None) -> StateError:
    cause = error.__cause__
    if isinstance(cause, errors.UndefinedTable):
        return TableDropped(cause.diag.message_primary or str(error))
    # Not by its text, which the server may have translated. The query names no object that a role could lack.
    if snapshot is not None and isinstance(cause, errors.InvalidParameterValue | errors.UndefinedObject):
        return SnapshotReleased(str(error))
    return error


def fetch_on(
    session: BulkSession, snapshot: str | None, query: str | bytes, parameters: dict[str, Any] | None = None
) -> list[Row]:
    """Return the rows of a query from a transaction of its own, which sees what the snapshot does, or without one what
    is committed now.

    Raises:
        SnapshotReleased: the transaction that exported the snapshot has ended.
    """
    if snapshot is None:
        return fetch_plainly(session, query, parameters)
    statement = query.encode() if isinstance(query, str) else query
    try:
        with _on_snapshot(session, snapshot) as connection:
            return fetch(connection, statement, parameters)
    except StateError as error:
        raise _explained(error, snapshot) from error.__cause__


def fetch_plainly(session: BulkSession, query: str | bytes, parameters: dict[str, Any] | None = None) -> list[Row]:
    """Return the rows of a query from a transaction of its own, which sees what is committed now."""
    session.connection.isolation_level = IsolationLevel.READ_COMMITTED
    statement = query.encode() if isinstance(query, str) else query
    with session.transaction() as connection:
        return fetch(connection, statement, parameters)


@contextmanager
def exported_snapshot(settings: BulkSettings) -> Iterator[str]:
    """Export a snapshot and keep it for the block. Other connections to the same database can use it by its name.

    Raises:
        StateUnavailableError: the database cannot be reached.
    """
    with export_session(settings) as session, _on_snapshot(session, None) as connection:
        # This transaction is idle on purpose, so a timeout of the server for idle transactions must not end it.
        connection.execute("SELECT set_config('idle_in_transaction_session_timeout', '0', true)")
        # Parts of the jobs are ranges of blocks: until it ends, VACUUM FULL and the like, which move rows, must wait,
        # with all who need the table behind them. So they should have a lock_timeout, as our migrations have.
        # The log has no such lock, which would stop all writers while retention waits to drop a day.
        fetch(connection, session.sql.read_to_lock_jobs)
        yield fetch(connection, b"SELECT pg_export_snapshot()")[0][0]
