"""Reading much at once: the rows of a query as the text of COPY, on a snapshot that others share.

Every transaction sets what it needs, as a pooler may change servers, and none writes anything.
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
"""About how much is handed out at a time."""
_ROWS_AT_ONCE = 32
"""How many rows are taken before it is asked again whether they are enough."""

_TEXT = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "client_encoding": "UTF8",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "jit": "off",
}


class SnapshotReleased(StateError):
    """The snapshot is held no more."""


class TableDropped(StateError):
    """A table that was there when the read was planned is there no more."""


@contextmanager
def export_session(settings: BulkSettings) -> Iterator[BulkSession]:
    """A connection for the block, on which nothing is written.

    Raises:
        StateUnavailableError: the database cannot be reached.
    """
    with bulk_session(settings, application_name="queuert spark read") as session:
        session.connection.read_only = True
        yield session


@contextmanager
def _on_snapshot(session: BulkSession, snapshot: str | None) -> Iterator[Connection[Any]]:
    connection = session.connection
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    with mapped_errors(), connection.transaction():
        if snapshot is not None:
            # Before anything else, as the server wants it; it takes no parameter there.
            connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
        set_for_transaction(connection, {**session.settings.limits(), **_TEXT})
        yield connection


def copy_out(
    session: BulkSession,
    query: str,
    parameters: Mapping[str, Any],
    *,
    delimiter: str,
    quote: str,
    snapshot: str | None = None,
) -> Iterator[memoryview]:
    """The rows of a query as CSV without a header, whole rows at a time. Null is empty; an empty text is quoted.

    Args:
        session: see :func:`export_session`.
        query: with parameters as ``%(name)s``.
        parameters: their values, which are quoted here: COPY takes none.
        delimiter: one character between two fields.
        quote: one character around fields that need it.
        snapshot: the name of an exported one.

    Raises:
        SnapshotReleased: the snapshot is held no more.
        TableDropped: a table of the query is gone.
        StateError: the query failed.
    """
    text = f"COPY ({query}) TO STDOUT (FORMAT csv, DELIMITER E'\\x{ord(delimiter):02x}', QUOTE E'\\x{ord(quote):02x}')"
    try:
        with _on_snapshot(session, snapshot) as connection:
            yield from _chunks(connection, text, parameters)
    except StateError as error:
        raise _explained(error) from error.__cause__


def _chunks(connection: Connection[Any], text: str, parameters: Mapping[str, Any]) -> Iterator[memoryview]:
    merged = ClientCursor(connection).mogrify(text.encode(), parameters)
    pgconn = connection.pgconn
    _check(pgconn.exec_(merged.encode()), ExecStatus.COPY_OUT)
    ended = False
    try:
        # libpq's own calls, and no line of Python for a row: a row by the driver's iterator costs as much as all else
        # that is done with it. The rows go into one buffer at once, since a list of a million is slow to make.
        rows = map(itemgetter(1), iter(partial(pgconn.get_copy_data, 0), (-1, b"")))
        more = True
        while more:
            chunk, more = _filled(rows)
            if chunk.tell():
                yield chunk.getbuffer()
        ended = True
        _check(pgconn.get_result(), ExecStatus.COMMAND_OK)
    finally:
        if not ended:
            _abandon(connection)
        _drain(connection)


def _filled(rows: Iterator[memoryview]) -> tuple[BytesIO, bool]:
    """A buffer with as many rows as make a chunk, and whether there may be more of them."""
    chunk, size = BytesIO(), 0
    while size < CHUNK_BYTES:
        # Few at a time: nobody knows how long the next ones are.
        chunk.writelines(islice(rows, _ROWS_AT_ONCE))
        before, size = size, chunk.tell()
        if size == before:
            return chunk, False
    return chunk, True


def _check(result: PGresult | None, wanted: ExecStatus) -> None:
    if result is None or result.status != wanted:
        raise errors.error_from_result(result) if result is not None else InterfaceError("the server gave no result")


def _abandon(connection: Connection[Any]) -> None:
    """Stop a COPY that nobody reads to its end."""
    with suppress(OperationalError):
        connection.cancel_safe()
        while connection.pgconn.get_copy_data(0)[0] > 0:
            pass


def _drain(connection: Connection[Any]) -> None:
    while connection.pgconn.status == ConnStatus.OK and connection.pgconn.get_result() is not None:
        pass


def _explained(error: StateError) -> StateError:
    cause = error.__cause__
    if isinstance(cause, errors.UndefinedTable):
        return TableDropped(str(error))
    if isinstance(cause, errors.InvalidParameterValue | errors.UndefinedObject) and "snapshot" in str(cause):
        return SnapshotReleased(str(error))
    return error


def fetch_plainly(session: BulkSession, query: str | bytes, parameters: dict[str, Any] | None = None) -> list[Row]:
    """The rows of a query in a transaction of its own, which sees what is committed now."""
    session.connection.isolation_level = IsolationLevel.READ_COMMITTED
    statement = query.encode() if isinstance(query, str) else query
    with session.transaction() as connection:
        return fetch(connection, statement, parameters)


@contextmanager
def exported_snapshot(settings: BulkSettings) -> Iterator[str]:
    """Hold a snapshot for the block; its name, under which other connections to the same database may share it.

    Raises:
        StateUnavailableError: the database cannot be reached.
    """
    with export_session(settings) as session, _on_snapshot(session, None) as connection:
        # Held idle on purpose; a limit that the server has for that would take it away.
        connection.execute("SELECT set_config('idle_in_transaction_session_timeout', '0', true)")
        yield fetch(connection, b"SELECT pg_export_snapshot()")[0][0]
