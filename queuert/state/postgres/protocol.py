"""Sends statements without psycopg's cursors, one or several in one round trip: used by every start, claim and finish.

They run on the pool's connections, which know more of themselves than psycopg's: what is prepared, whether a block of
an attempt holds them, whether the server has left them.

A cursor examines each parameter and decides at each execution whether to prepare, which takes a seventh of the time of
a start. psycopg's pipeline mode saves the same round trips, but costs a worker twice as much processor time. Here
statements are prepared under names of their own, parameters are text, and results are read as they arrive.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import blake2s
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

from psycopg import (
    AsyncConnection,
    AsyncRawCursor,
    Connection,
    DataError,
    Error,
    OperationalError,
    ProgrammingError,
    RawCursor,
    errors,
)
from psycopg.pq import ConnStatus, ExecStatus, Format, PipelineStatus, TransactionStatus

from queuert.errors import QueuertError
from queuert.migrations import forgetting_login
from queuert.passwords import Password, current_password, current_password_async
from queuert.state.postgres import psycopg_internals
from queuert.state.postgres.bounds import Bounds
from queuert.state.postgres.psycopg_internals import DeallocationHook, Ready, Transformer, Wait, generators
from queuert.state.postgres.rows import UNREADABLE, OwnAdapters, rows_one_by_one

if TYPE_CHECKING:
    from psycopg import abc
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGconn, PGresult

_AT_REST = 0.1
"""Seconds of rest after which a connection is checked when it is taken from the pool. A check is two system calls."""


class ConnectionState(DeallocationHook):
    """The state of a connection of the pool.

    Attributes:
        prepared: names of the statements that are prepared on this connection.
        configured: the settings of our connections were sent to the server.
        held: a block's transaction is open, which the handler may not end.
        used_by_client: calls of a client have written on this connection within the open block.
        idle_since: when its last user gave it back (monotonic).
        begin_for_handlers: begins a transaction with the isolation level that the server gives by default, for
            statements of a handler; ours need another one.
        bounds: how long the server lets a transaction of ours stand still.
    """

    pgconn: PGconn
    prepared: set[bytes]
    configured: bool
    held: bool
    used_by_client: bool
    idle_since: float
    begin_for_handlers: NamedStatement
    bounds: Bounds

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prepared = set()
        self.configured = False
        self.held = False
        self.used_by_client = False
        self.idle_since = 0.0
        self.begin_for_handlers = BEGIN
        self.bounds = Bounds()
        self._transformer: abc.Transformer | None = None

    def on_deallocate_all(self) -> None:
        """Clear the prepared names: after a rollback, even to a savepoint, psycopg deallocates all statements, ours
        too."""
        self.prepared.clear()

    def read(self, result: PGresult, *, lenient: bool = True) -> list[tuple[Any, ...]]:
        """Return the rows of a result in binary form, with times in UTC. Call it with the connection's lock.

        Raises:
            psycopg.DataError, ValueError, OverflowError: a value cannot be read, unless ``lenient``: see rows.py.
        """
        if self._transformer is None:
            # Without the connection: it would refer to itself, and its memory wait for the garbage collector. The
            # session's encoding is UTF-8, which a transformer without one reads.
            adapters = OwnAdapters.of(self).adapters  # type: ignore[arg-type]
            self._transformer = Transformer(OwnAdapters(adapters, None))
        self._transformer.set_pgresult(result)
        try:
            return self._transformer.load_rows(0, result.ntuples, tuple)
        except UNREADABLE:
            if not lenient:
                raise
            return rows_one_by_one(self, result)  # type: ignore[arg-type]
        finally:
            # The result may hold megabytes of inputs.
            self._transformer.set_pgresult(None)

    @property
    def idle(self) -> bool:
        """Whether no transaction is open."""
        return self.pgconn.transaction_status == TransactionStatus.IDLE

    @property
    def server_closed(self) -> bool:
        """Whether the server has closed the connection while it was idle. Reads what has arrived, without waiting."""
        if time.monotonic() < self.idle_since + _AT_REST:
            return False
        try:
            # Reads the last message of the server, if there is one, and the end of the stream after it.
            self.pgconn.consume_input()
            self.pgconn.consume_input()
        except OperationalError:
            return True
        return self.pgconn.status == ConnStatus.BAD

    def check_not_held(self, what: str) -> None:
        """Raise ProgrammingError while a block is open, because the block itself commits or rolls back."""
        if self.held:
            raise ProgrammingError(
                f"{what}() inside a block of the attempt, which commits when it ends and rolls back when it raises; "
                "connection.transaction() makes savepoints"
            )


class ConnectFailures:
    """The tries to connect of one pool that have failed. Added to from any thread.

    Attributes:
        snapshot: how many they were, and what the last one's error said.
    """

    def __init__(self) -> None:
        self.snapshot: tuple[int, str] = 0, ""
        self._is_failing = False
        self._lock = threading.Lock()

    def add(self, error: Exception) -> None:
        """One more try has failed. The error itself is not kept: its frames hold the pool."""
        with self._lock:
            number, _ = self.snapshot
            self.snapshot = number + 1, str(error)

    def is_first(self) -> bool:
        """Return whether this is asked for the first time since a try has succeeded."""
        with self._lock:
            is_first, self._is_failing = not self._is_failing, True
        return is_first

    def succeeded(self) -> None:
        """A try has succeeded."""
        self._is_failing = False


class AsyncPooledConnection(ConnectionState, AsyncConnection[Any]):
    """An async psycopg connection whose transaction a handler cannot end while a block is open."""

    @classmethod
    async def connect(  # type: ignore[override]
        cls,
        conninfo: str = "",
        *,
        refusals: ConnectFailures | None = None,
        password: Password | None = None,
        **kwargs: Any,
    ) -> Self:
        """Connect, with what ``password`` returns. The error of a failed attempt is added to ``refusals``, since the
        pool, which calls this, only logs it."""
        try:
            if password is not None:
                kwargs["password"] = await current_password_async(password)
            with forgetting_login():  # The pool logs errors.
                connection = await super().connect(conninfo, **kwargs)
        except (Error, QueuertError) as error:
            if refusals is not None:
                refusals.add(error)
            raise
        if refusals is not None:
            refusals.succeeded()
        return connection

    async def commit(self) -> None:
        self.check_not_held("commit")
        await super().commit()

    async def rollback(self) -> None:
        self.check_not_held("rollback")
        await super().rollback()


class PooledConnection(ConnectionState, Connection[Any]):
    """A sync psycopg connection whose transaction a handler cannot end while a block is open."""

    @classmethod
    def connect(  # type: ignore[override]
        cls,
        conninfo: str = "",
        *,
        refusals: ConnectFailures | None = None,
        password: Password | None = None,
        **kwargs: Any,
    ) -> Self:
        """Connect, with what ``password`` returns. The error of a failed attempt is added to ``refusals``, since the
        pool, which calls this, only logs it."""
        try:
            if password is not None:
                kwargs["password"] = current_password(password)
            with forgetting_login():
                connection = super().connect(conninfo, **kwargs)
        except (Error, QueuertError) as error:
            if refusals is not None:
                refusals.add(error)
            raise
        if refusals is not None:
            refusals.succeeded()
        return connection

    def commit(self) -> None:
        self.check_not_held("commit")
        super().commit()

    def rollback(self) -> None:
        self.check_not_held("rollback")
        super().rollback()


_PLACEHOLDER = re.compile(rb"%\((?P<name>\w+)\)s|%%")

Value: TypeAlias = str | int | float | None
"""The types of parameters. Arrays and JSON are text already."""


class NamedStatement(NamedTuple):
    """A statement in the server's syntax, with ``$1`` for the first parameter, and the names of the parameters in
    order."""

    name: bytes
    text: bytes
    parameters: tuple[str, ...]


class Step(NamedTuple):
    """A statement to execute, with the values of its parameters as text."""

    statement: NamedStatement
    values: Mapping[str, Value]


@lru_cache(512)
def named(name: str, text: bytes) -> NamedStatement:
    """Convert a statement with psycopg's placeholders, and give it a name under which it is prepared.

    The name includes a digest of the text, since a connection of one schema's store may be passed to a client of
    another.
    """
    digest = blake2s(text, digest_size=6).hexdigest()
    return NamedStatement(f"queuert_{name}_{digest}".encode(), *numbered(text))


def unnamed(text: bytes) -> NamedStatement:
    """Return a statement without parameters that is not worth preparing."""
    return NamedStatement(b"", text, ())


@lru_cache(512)  # Each bulk write has statements of its own.
def numbered(text: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Convert psycopg's named placeholders to the server's syntax; return the statement and the names of its
    parameters."""
    names: dict[str, int] = {}

    def number(found: re.Match[bytes]) -> bytes:
        if found["name"] is None:
            return b"%"
        return b"$%d" % names.setdefault(found["name"].decode(), len(names) + 1)

    return _PLACEHOLDER.sub(number, text), tuple(names)


BEGIN = unnamed(b"BEGIN")
COMMIT = unnamed(b"COMMIT")


def begin_with_level(level: str) -> NamedStatement:
    """Return the statement that begins a transaction with an isolation level, as ``current_setting`` names it."""
    return BEGIN if level == "read committed" else unnamed(f"BEGIN ISOLATION LEVEL {level}".encode())


PREPARED_STATE_MISMATCH = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)
"""The server's list of prepared statements differs from ours, which is then corrected. The statement was not
executed."""


async def async_execute_pipeline(
    connection: AsyncPooledConnection, steps: Sequence[Step], *, prepare: bool
) -> list[PGresult]:
    """Run all steps in one round trip. Returns their results, or raises psycopg's error for the first step that
    failed."""
    if psycopg_internals.PLAIN_CURSORS:
        return [await _async_execute_plain(connection, step) for step in steps]
    async with connection.lock:
        with _close_if_interrupted(connection.pgconn):
            return await connection.wait(_exchange(connection.pgconn, connection.prepared, steps, prepare))


def sync_execute_pipeline(connection: PooledConnection, steps: Sequence[Step], *, prepare: bool) -> list[PGresult]:
    """Sync version of :func:`async_execute_pipeline`."""
    if psycopg_internals.PLAIN_CURSORS:
        return [_sync_execute_plain(connection, step) for step in steps]
    with connection.lock, _close_if_interrupted(connection.pgconn):
        return connection.wait(_exchange(connection.pgconn, connection.prepared, steps, prepare))


async def _async_execute_plain(connection: AsyncPooledConnection, step: Step) -> PGresult:
    """Run one step by a cursor of psycopg, which prepares it by its own rules."""
    cursor = AsyncRawCursor(connection)
    await cursor.execute(step.statement.text, _texts(step))
    return _plain_result(cursor.pgresult)


def _sync_execute_plain(connection: PooledConnection, step: Step) -> PGresult:
    """Sync version of :func:`_async_execute_plain`."""
    cursor = RawCursor(connection)
    cursor.execute(step.statement.text, _texts(step))
    return _plain_result(cursor.pgresult)


def _texts(step: Step) -> list[str | None] | None:
    """Return the values of a step as text for a cursor; None without values, since psycopg then sends the text
    unchanged."""
    values = _encoded(*step)
    return [None if value is None else value.decode() for value in values] or None


def _plain_result(result: PGresult | None) -> PGresult:
    assert result is not None, "a statement that was executed has a result"
    return result


async def async_execute_prepared(
    connection: AsyncPooledConnection, statement: NamedStatement, values: Mapping[str, Value]
) -> list[tuple[Any, ...]]:
    """Prepare and run one statement, and return its rows as tuples. Errors are psycopg's."""
    async with connection.lock:
        given = _encoded(statement, values)
        if statement.name in connection.prepared:
            try:
                return connection.read(await connection.wait(_execute_prepared(connection, statement, given)))
            except PREPARED_STATE_MISMATCH:
                if not connection.idle:
                    raise
        try:
            with _close_if_interrupted(connection.pgconn):
                return connection.read(await connection.wait(_prepare_and_execute(connection, statement, values)))
        except PREPARED_STATE_MISMATCH:
            if not connection.idle:
                raise
        return connection.read(await connection.wait(_execute_prepared(connection, statement, given)))


def sync_execute_prepared(
    connection: PooledConnection, statement: NamedStatement, values: Mapping[str, Value]
) -> list[tuple[Any, ...]]:
    """Sync version of :func:`async_execute_prepared`."""
    with connection.lock:
        given = _encoded(statement, values)
        if statement.name in connection.prepared:
            try:
                return connection.read(connection.wait(_execute_prepared(connection, statement, given)))
            except PREPARED_STATE_MISMATCH:
                if not connection.idle:
                    raise
        try:
            with _close_if_interrupted(connection.pgconn):
                return connection.read(connection.wait(_prepare_and_execute(connection, statement, values)))
        except PREPARED_STATE_MISMATCH:
            if not connection.idle:
                raise
        return connection.read(connection.wait(_execute_prepared(connection, statement, given)))


async def async_execute_two(
    connection: AsyncPooledConnection, step: Step, second: Step
) -> tuple[list[tuple[Any, ...]], bool]:
    """Run a prepared statement as :func:`async_execute_prepared`, and another in a transaction of its own behind it, in
    one round trip.

    Returns the rows of the first one, and whether the second one succeeded. It may also have been executed if the
    first one fails.
    """
    async with connection.lock:
        try:
            result, done = await connection.wait(_execute_two(connection, step, second))
            return connection.read(result), done
        except PREPARED_STATE_MISMATCH:
            if not connection.idle:
                raise
        finally:
            close_if_in_pipeline(connection.pgconn)
    return await async_execute_prepared(connection, *step), False


def sync_execute_two(connection: PooledConnection, step: Step, second: Step) -> tuple[list[tuple[Any, ...]], bool]:
    """Sync version of :func:`async_execute_two`."""
    with connection.lock:
        try:
            result, done = connection.wait(_execute_two(connection, step, second))
            return connection.read(result), done
        except PREPARED_STATE_MISMATCH:
            if not connection.idle:
                raise
        finally:
            close_if_in_pipeline(connection.pgconn)
    return sync_execute_prepared(connection, *step), False


async def async_begin_with(
    connection: AsyncPooledConnection, begin: NamedStatement, steps: Sequence[Step], *, prepare: bool
) -> list[PGresult]:
    """Begin a transaction, ``BEGIN`` or what :func:`begin_with_level` returns, with these steps and return their
    results; retry if the prepared statements were not as recorded."""
    for _ in steps:
        try:
            return await _async_begin(connection, begin, steps, prepare)
        except PREPARED_STATE_MISMATCH:
            await connection.rollback()
    return await _async_begin(connection, begin, steps, prepare)


async def _async_begin(
    connection: AsyncPooledConnection, begin: NamedStatement, steps: Sequence[Step], prepare: bool
) -> list[PGresult]:
    if begin is BEGIN:
        return (await async_execute_pipeline(connection, [Step(BEGIN, {}), *steps], prepare=prepare))[1:]
    # A level must be set before anything is prepared, so it takes a round trip of its own.
    await connection.execute(begin.text)
    return await async_execute_pipeline(connection, steps, prepare=prepare)


def sync_begin_with(
    connection: PooledConnection, begin: NamedStatement, steps: Sequence[Step], *, prepare: bool
) -> list[PGresult]:
    """Sync version of :func:`async_begin_with`."""
    for _ in steps:
        try:
            return _sync_begin(connection, begin, steps, prepare)
        except PREPARED_STATE_MISMATCH:
            connection.rollback()
    return _sync_begin(connection, begin, steps, prepare)


def _sync_begin(
    connection: PooledConnection, begin: NamedStatement, steps: Sequence[Step], prepare: bool
) -> list[PGresult]:
    if begin is BEGIN:
        return sync_execute_pipeline(connection, [Step(BEGIN, {}), *steps], prepare=prepare)[1:]
    connection.execute(begin.text)
    return sync_execute_pipeline(connection, steps, prepare=prepare)


@contextmanager
def _close_if_interrupted(pgconn: PGconn) -> Iterator[None]:
    """Close the connection if the exchange is interrupted: it would leave results that the next statement would
    read."""
    try:
        yield
    finally:
        close_if_in_pipeline(pgconn)


def close_if_in_pipeline(pgconn: PGconn) -> None:
    """Close a connection that was left in pipeline mode, as psycopg leaves it if its ``pipeline()`` is interrupted.

    Statements of the next user would wait there without an answer, and would not be committed.
    """
    if pgconn.pipeline_status != PipelineStatus.OFF:
        pgconn.finish()


def text_rows(result: PGresult) -> list[tuple[str | None, ...]]:
    """Return the rows of a result as text."""
    columns = range(result.nfields)
    return [tuple(_text(result.get_value(row, column)) for column in columns) for row in range(result.ntuples)]


def _text(value: Any) -> str | None:
    return None if value is None else bytes(value).decode()


def _exchange(
    pgconn: PGconn, known: set[bytes], steps: Sequence[Step], prepare: bool, format: Format = Format.TEXT
) -> PQGen[list[PGresult]]:
    # Parameters that cannot be sent must fail before the exchange begins; later the connection would have to be closed.
    values = [_encoded(*step) for step in steps]
    new = [step.statement for step in steps if prepare and step.statement.name and step.statement.name not in known]
    pgconn.enter_pipeline_mode()
    _send(pgconn, new, steps, values, prepare, format)
    results = yield from _received(pgconn)
    pgconn.exit_pipeline_mode()
    return _step_results(known, new, steps, results)


def _step_results(
    known: set[bytes], new: Sequence[NamedStatement], steps: Sequence[Step], results: Sequence[PGresult]
) -> list[PGresult]:
    """Return the results of the steps, or raise the error of the first that failed."""
    names = [*(statement.name for statement in new), *(step.statement.name for step in steps)]
    for index, (name, result) in enumerate(zip(names, results, strict=False)):
        if result.status == ExecStatus.FATAL_ERROR:
            raise _record_mismatch(known, name, result)
        if index < len(new):
            # It stays prepared, whatever fails after it.
            known.add(name)
    for result in results[len(names) :]:
        if result.status == ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result)
    return list(results[len(new) : len(names)])


def _record_mismatch(known: set[bytes], name: bytes, result: PGresult) -> Error:
    """Return the error of a statement or of its preparation, and correct the record of prepared names by it."""
    error = errors.error_from_result(result)
    if isinstance(error, errors.InvalidSqlStatementName):
        known.discard(name)
    elif isinstance(error, errors.DuplicatePreparedStatement):
        # The existing statement has the same text, since the name includes a digest of it.
        known.add(name)
    return error


def _execute_prepared(
    connection: ConnectionState, statement: NamedStatement, given: Sequence[bytes | None]
) -> PQGen[PGresult]:
    connection.pgconn.send_query_prepared(statement.name, given, result_format=Format.BINARY)
    result: PGresult = (yield from generators.execute(connection.pgconn))[-1]
    if result.status == ExecStatus.FATAL_ERROR:
        raise _record_mismatch(connection.prepared, statement.name, result)
    return result


def _prepare_and_execute(
    connection: ConnectionState, statement: NamedStatement, values: Mapping[str, Value]
) -> PQGen[PGresult]:
    """Run a statement, and prepare it if necessary, in one round trip."""
    step = Step(statement, values)
    results = yield from _exchange(connection.pgconn, connection.prepared, [step], True, Format.BINARY)
    return results[0]


def _execute_two(connection: ConnectionState, step: Step, second: Step) -> PQGen[tuple[PGresult, bool]]:
    pgconn = connection.pgconn
    # Parameters that cannot be sent must fail before the exchange begins.
    given, second_given = _encoded(*step), _encoded(*second)
    pgconn.enter_pipeline_mode()
    pgconn.send_query_prepared(step.statement.name, given, result_format=Format.BINARY)
    pgconn.pipeline_sync()
    pgconn.send_query_params(second.statement.text, second_given)
    pgconn.pipeline_sync()
    result = (yield from _received(pgconn))[0]
    done = False
    # The first statement is committed, or has failed: whatever happens to the second one changes neither.
    with suppress(Error):
        done = (yield from _received(pgconn))[0].status != ExecStatus.FATAL_ERROR
        pgconn.exit_pipeline_mode()
    if result.status == ExecStatus.FATAL_ERROR:
        raise _record_mismatch(connection.prepared, step.statement.name, result)
    return result, done


def _send(
    pgconn: PGconn,
    new: Sequence[NamedStatement],
    steps: Sequence[Step],
    values: Sequence[Sequence[bytes | None]],
    prepare: bool,
    format: Format,
) -> None:
    for statement in new:
        pgconn.send_prepare(statement.name, statement.text)
    for (statement, _), row in zip(steps, values, strict=True):
        if prepare and statement.name:
            pgconn.send_query_prepared(statement.name, row, result_format=format)
        else:
            pgconn.send_query_params(statement.text, row, result_format=format)
    pgconn.pipeline_sync()


def _encoded(statement: NamedStatement, values: Mapping[str, Value]) -> list[bytes | None]:
    """The values of a statement's parameters, in their order."""
    encoded: list[bytes | None] = []
    for name in statement.parameters:
        value = values[name]
        if value is None:
            encoded.append(None)
            continue
        # ``str()`` of a member of a text enumeration may return its name instead of its value.
        text = (value if isinstance(value, str) else str(value)).encode()
        if b"\0" in text:
            # libpq would end the text there.
            raise DataError("a text for Postgres cannot contain NUL (0x00)")
        encoded.append(text)
    return encoded


def _received(pgconn: PGconn) -> PQGen[list[PGresult]]:
    """Read all results up to the sync that ends a pipeline; after an error the others only repeat that they were
    skipped."""
    results: list[PGresult] = []
    while pgconn.flush():
        # After a cancellation psycopg resumes the generator without any readiness.
        if (ready := (yield Wait.RW)) and ready & Ready.R:
            pgconn.consume_input()
    while True:
        while pgconn.is_busy():
            yield Wait.R
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            if pgconn.status == ConnStatus.BAD:
                raise OperationalError(pgconn.get_error_message() or "the connection was lost")
            continue
        results.append(result)
        if result.status == ExecStatus.PIPELINE_SYNC:
            return results


def is_plain_connection(pgconn: PGconn) -> bool:
    """Whether the connection is not in pipeline mode."""
    return pgconn.pipeline_status == PipelineStatus.OFF
