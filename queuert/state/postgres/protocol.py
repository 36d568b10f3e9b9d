"""Statements past psycopg's cursors: one, or a few in one round trip, for what every start, claim and finish does.

They run on the pool's connections, which know more of themselves than psycopg's: what is prepared, whether a block of
an attempt holds them, whether the server has left them.

A cursor looks at each parameter, and decides anew whether to prepare: a seventh of the time of a start. psycopg's own
pipeline mode saves the same round trips as ours, and costs a worker twice the processor time that they cost. Here the
statements are prepared under names of their own, parameters are text, and results are read as they come.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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

from queuert.state.postgres import psycopg_internals
from queuert.state.postgres.bounds import Bounds
from queuert.state.postgres.psycopg_internals import DeallocationHook, Ready, Transformer, Wait, generators
from queuert.state.postgres.rows import UNREADABLE, rows_one_by_one

if TYPE_CHECKING:
    from psycopg import abc
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGconn, PGresult

_AT_REST = 0.1
"""Seconds after which a connection that is taken from the pool is looked at first: two system calls."""


class ConnectionState(DeallocationHook):
    """What our connections know beside what psycopg's do.

    Attributes:
        prepared: names of the statements that the server knows on this connection.
        planner_configured: the server was told to make one plan of each statement.
        held: a block's transaction is open, which the handler may not end.
        used_by_client: calls of a client have written on this connection within the open block.
        idle_since: when its last user gave it back (monotonic).
        bounds: how long the server lets a transaction of ours stand still.
    """

    pgconn: PGconn
    prepared: set[bytes]
    planner_configured: bool
    held: bool
    used_by_client: bool
    idle_since: float
    bounds: Bounds

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prepared = set()
        self.planner_configured = False
        self.held = False
        self.used_by_client = False
        self.idle_since = 0.0
        self.bounds = Bounds()
        self._transformer: abc.Transformer | None = None

    def on_deallocate_all(self) -> None:
        """Forget what is prepared: after a rollback, even to a savepoint, psycopg deallocates all, ours among it."""
        self.prepared.clear()

    def read(self, result: PGresult) -> list[tuple[Any, ...]]:
        """The rows of a result that came in binary form."""
        if self._transformer is None:
            self._transformer = Transformer(self)  # type: ignore[arg-type]
        self._transformer.set_pgresult(result)
        try:
            return self._transformer.load_rows(0, result.ntuples, tuple)
        except UNREADABLE:
            return rows_one_by_one(self, result)  # type: ignore[arg-type]
        finally:
            # It may be megabytes of inputs.
            self._transformer.set_pgresult(None)

    @property
    def idle(self) -> bool:
        """No transaction is open."""
        return self.pgconn.transaction_status == TransactionStatus.IDLE

    @property
    def server_closed(self) -> bool:
        """Whether the server has hung up while nobody used it: its good-bye is there to be read, without a wait."""
        if time.monotonic() < self.idle_since + _AT_REST:
            return False
        try:
            # What the server said before it hung up, if it did, and the end that comes after.
            self.pgconn.consume_input()
            self.pgconn.consume_input()
        except OperationalError:
            return True
        return self.pgconn.status == ConnStatus.BAD

    def check_not_held(self, what: str) -> None:
        """Raise ProgrammingError while a block is open: it commits or rolls back by itself."""
        if self.held:
            raise ProgrammingError(
                f"{what}() inside a block of the attempt, which commits when it ends and rolls back when it raises; "
                "connection.transaction() makes savepoints"
            )


class ConnectFailures:
    """The tries to connect of one pool that have failed. Added to from any thread.

    Attributes:
        reported: how many they were, and what the last one's error said.
    """

    def __init__(self) -> None:
        self.reported: tuple[int, str] = 0, ""
        self._lock = threading.Lock()

    def add(self, error: Error) -> None:
        """One more try has failed. The error itself is not kept: its frames hold the pool."""
        with self._lock:
            self.reported = self.reported[0] + 1, str(error)


class AsyncPooledConnection(ConnectionState, AsyncConnection[Any]):
    """psycopg's asynchronous connection, whose transaction a handler cannot end."""

    @classmethod
    async def connect(  # type: ignore[override]
        cls, conninfo: str = "", *, refusals: ConnectFailures | None = None, **kwargs: Any
    ) -> Self:
        """Connect. If that fails the error is added to ``refusals``: the pool, which calls this, only logs it."""
        try:
            return await super().connect(conninfo, **kwargs)
        except Error as error:
            if refusals is not None:
                refusals.add(error)
            raise

    async def commit(self) -> None:
        self.check_not_held("commit")
        await super().commit()

    async def rollback(self) -> None:
        self.check_not_held("rollback")
        await super().rollback()


class PooledConnection(ConnectionState, Connection[Any]):
    """psycopg's synchronous connection, whose transaction a handler cannot end."""

    @classmethod
    def connect(  # type: ignore[override]
        cls, conninfo: str = "", *, refusals: ConnectFailures | None = None, **kwargs: Any
    ) -> Self:
        """Connect. If that fails the error is added to ``refusals``: the pool, which calls this, only logs it."""
        try:
            return super().connect(conninfo, **kwargs)
        except Error as error:
            if refusals is not None:
                refusals.add(error)
            raise

    def commit(self) -> None:
        self.check_not_held("commit")
        super().commit()

    def rollback(self) -> None:
        self.check_not_held("rollback")
        super().rollback()


_PLACEHOLDER = re.compile(rb"%\((\w+)\)s|%%")

Value: TypeAlias = str | int | float | None
"""What a parameter can be: arrays and JSON are text already."""


class NamedStatement(NamedTuple):
    """A statement as the server has it: ``$1`` for each parameter, and which one that is."""

    name: bytes
    text: bytes
    parameters: tuple[str, ...]


class Step(NamedTuple):
    """A statement to run, with its values as text."""

    statement: NamedStatement
    values: Mapping[str, Value]


@lru_cache(512)
def named(name: str, text: bytes) -> NamedStatement:
    """A statement with psycopg's named placeholders, under a name for the server.

    The name tells texts apart: a connection of one schema's store may be given to a client of another.
    """
    digest = blake2s(text, digest_size=6).hexdigest()
    return NamedStatement(f"queuert_{name}_{digest}".encode(), *numbered(text))


def unnamed(text: bytes) -> NamedStatement:
    """A statement without parameters that is not worth preparing."""
    return NamedStatement(b"", text, ())


@lru_cache(512)  # Of bulk writes each has statements of its own.
def numbered(text: bytes) -> tuple[bytes, tuple[str, ...]]:
    """A statement with psycopg's named placeholders as the server takes it, and the names of its parameters."""
    names: dict[str, int] = {}

    def number(found: re.Match[bytes]) -> bytes:
        if found[1] is None:
            return b"%"
        return b"$%d" % names.setdefault(found[1].decode(), len(names) + 1)

    return _PLACEHOLDER.sub(number, text), tuple(names)


BEGIN = unnamed(b"BEGIN")
COMMIT = unnamed(b"COMMIT")

PREPARED_STATE_MISMATCH = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)
"""A statement of ours was deallocated, or stands that we took for gone: from now on we know. Nothing was done."""


async def async_execute_pipeline(
    connection: AsyncPooledConnection, steps: Sequence[Step], *, prepare: bool
) -> list[PGresult]:
    """Run all steps in one round trip; the result of each, or the error of the first that failed, as psycopg has it."""
    if psycopg_internals.PLAIN_CURSORS:
        return [await _async_execute_plain(connection, step) for step in steps]
    async with connection.lock:
        with _close_if_interrupted(connection.pgconn):
            return await connection.wait(_exchange(connection.pgconn, connection.prepared, steps, prepare))


def sync_execute_pipeline(connection: PooledConnection, steps: Sequence[Step], *, prepare: bool) -> list[PGresult]:
    """The same, for a synchronous connection."""
    if psycopg_internals.PLAIN_CURSORS:
        return [_sync_execute_plain(connection, step) for step in steps]
    with connection.lock, _close_if_interrupted(connection.pgconn):
        return connection.wait(_exchange(connection.pgconn, connection.prepared, steps, prepare))


async def _async_execute_plain(connection: AsyncPooledConnection, step: Step) -> PGresult:
    """Run one step by a cursor of psycopg's, which prepares it as its own rules say."""
    cursor = AsyncRawCursor(connection)
    await cursor.execute(step.statement.text, _texts(step))
    return _plain_result(cursor.pgresult)


def _sync_execute_plain(connection: PooledConnection, step: Step) -> PGresult:
    """The same, for a synchronous connection."""
    cursor = RawCursor(connection)
    cursor.execute(step.statement.text, _texts(step))
    return _plain_result(cursor.pgresult)


def _texts(step: Step) -> list[str | None] | None:
    """The values of a step as a cursor takes them; None where it has none, for such texts psycopg sends as they are."""
    values = _encoded(*step)
    return [None if value is None else value.decode() for value in values] or None


def _plain_result(result: PGresult | None) -> PGresult:
    assert result is not None, "a statement that was executed has a result"
    return result


async def async_execute_prepared(
    connection: AsyncPooledConnection, statement: NamedStatement, values: Mapping[str, Value]
) -> list[tuple[Any, ...]]:
    """Run one statement, prepared, and return its rows as tuples; the error is psycopg's own."""
    async with connection.lock:
        given = _encoded(statement, values)
        if statement.name in connection.prepared:
            try:
                return connection.read(await connection.wait(_params(connection, statement, given)))
            except PREPARED_STATE_MISMATCH:
                if not connection.idle:
                    raise
        try:
            with _close_if_interrupted(connection.pgconn):
                return connection.read(await connection.wait(_first_params(connection, statement, values)))
        except PREPARED_STATE_MISMATCH:
            if not connection.idle:
                raise
        return connection.read(await connection.wait(_params(connection, statement, given)))


def sync_execute_prepared(
    connection: PooledConnection, statement: NamedStatement, values: Mapping[str, Value]
) -> list[tuple[Any, ...]]:
    """The same, for a synchronous connection."""
    with connection.lock:
        given = _encoded(statement, values)
        if statement.name in connection.prepared:
            try:
                return connection.read(connection.wait(_params(connection, statement, given)))
            except PREPARED_STATE_MISMATCH:
                if not connection.idle:
                    raise
        try:
            with _close_if_interrupted(connection.pgconn):
                return connection.read(connection.wait(_first_params(connection, statement, values)))
        except PREPARED_STATE_MISMATCH:
            if not connection.idle:
                raise
        return connection.read(connection.wait(_params(connection, statement, given)))


async def async_begin_with(
    connection: AsyncPooledConnection, steps: Sequence[Step], *, prepare: bool
) -> list[PGresult]:
    """Begin a transaction with these steps; anew, if what is prepared was not as we knew it. Answers to the steps."""
    for _ in steps:
        try:
            return (await async_execute_pipeline(connection, [Step(BEGIN, {}), *steps], prepare=prepare))[1:]
        except PREPARED_STATE_MISMATCH:
            await connection.rollback()
    return (await async_execute_pipeline(connection, [Step(BEGIN, {}), *steps], prepare=prepare))[1:]


def sync_begin_with(connection: PooledConnection, steps: Sequence[Step], *, prepare: bool) -> list[PGresult]:
    """The same, for a synchronous connection."""
    for _ in steps:
        try:
            return sync_execute_pipeline(connection, [Step(BEGIN, {}), *steps], prepare=prepare)[1:]
        except PREPARED_STATE_MISMATCH:
            connection.rollback()
    return sync_execute_pipeline(connection, [Step(BEGIN, {}), *steps], prepare=prepare)[1:]


@contextmanager
def _close_if_interrupted(pgconn: PGconn) -> Iterator[None]:
    """An exchange that was left in its middle leaves answers behind that nobody asked for: the connection is closed."""
    try:
        yield
    finally:
        close_if_in_pipeline(pgconn)


def close_if_in_pipeline(pgconn: PGconn) -> None:
    """Close a connection that was left in pipeline mode, as psycopg leaves it where its ``pipeline()`` is interrupted.

    What the next user sends would wait there unanswered, and not be committed.
    """
    if pgconn.pipeline_status != PipelineStatus.OFF:
        pgconn.finish()


def text_rows(result: PGresult) -> list[tuple[str | None, ...]]:
    """The rows of a result, as text."""
    columns = range(result.nfields)
    return [tuple(_text(result.get_value(row, column)) for column in columns) for row in range(result.ntuples)]


def _text(value: Any) -> str | None:
    return None if value is None else bytes(value).decode()


def _exchange(
    pgconn: PGconn, known: set[bytes], steps: Sequence[Step], prepare: bool, format: Format = Format.TEXT
) -> PQGen[list[PGresult]]:
    # What cannot be sent fails before the connection is in a state that it would have to be closed for.
    given = [_encoded(*step) for step in steps]
    new = [step.statement for step in steps if prepare and step.statement.name and step.statement.name not in known]
    pgconn.enter_pipeline_mode()
    _send(pgconn, new, steps, given, prepare, format)
    results = yield from _received(pgconn)
    pgconn.exit_pipeline_mode()
    return _answers(known, new, steps, results)


def _answers(
    known: set[bytes], new: Sequence[NamedStatement], steps: Sequence[Step], results: Sequence[PGresult]
) -> list[PGresult]:
    """Of what was received: the results of the steps, or the error of the first that failed."""
    about = [*(statement.name for statement in new), *(step.statement.name for step in steps)]
    for place, (name, result) in enumerate(zip(about, results, strict=False)):
        if result.status == ExecStatus.FATAL_ERROR:
            raise _record_mismatch(known, name, result)
        if place < len(new):
            # It stands, whatever fails after it.
            known.add(name)
    for result in results[len(about) :]:
        if result.status == ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result)
    return list(results[len(new) : len(about)])


def _record_mismatch(known: set[bytes], name: bytes, result: PGresult) -> Error:
    """The error of a statement, or of its preparation, after what it tells about the name."""
    error = errors.error_from_result(result)
    if isinstance(error, errors.InvalidSqlStatementName):
        known.discard(name)
    elif isinstance(error, errors.DuplicatePreparedStatement):
        # Of the same text: the name has a digest of it.
        known.add(name)
    return error


def _params(connection: ConnectionState, statement: NamedStatement, given: Sequence[bytes | None]) -> PQGen[PGresult]:
    connection.pgconn.send_query_prepared(statement.name, given, result_format=Format.BINARY)
    result: PGresult = (yield from generators.execute(connection.pgconn))[-1]
    if result.status == ExecStatus.FATAL_ERROR:
        raise _record_mismatch(connection.prepared, statement.name, result)
    return result


def _first_params(
    connection: ConnectionState, statement: NamedStatement, values: Mapping[str, Value]
) -> PQGen[PGresult]:
    """With its preparation, in one round trip."""
    step = Step(statement, values)
    results = yield from _exchange(connection.pgconn, connection.prepared, [step], True, Format.BINARY)
    return results[0]


def _send(
    pgconn: PGconn,
    new: Sequence[NamedStatement],
    steps: Sequence[Step],
    given: Sequence[Sequence[bytes | None]],
    prepare: bool,
    format: Format,
) -> None:
    for statement in new:
        pgconn.send_prepare(statement.name, statement.text)
    for (statement, _), values in zip(steps, given, strict=True):
        if prepare and statement.name:
            pgconn.send_query_prepared(statement.name, values, result_format=format)
        else:
            pgconn.send_query_params(statement.text, values, result_format=format)
    pgconn.pipeline_sync()


def _encoded(statement: NamedStatement, values: Mapping[str, Value]) -> list[bytes | None]:
    """The values of a statement's parameters, in their order."""
    encoded: list[bytes | None] = []
    for name in statement.parameters:
        value = values[name]
        if value is None:
            encoded.append(None)
            continue
        # Of a member of an enumeration of texts, str() would make its name.
        text = (value if isinstance(value, str) else str(value)).encode()
        if b"\0" in text:
            # The library below would end it there.
            raise DataError("a text for Postgres cannot contain NUL (0x00)")
        encoded.append(text)
    return encoded


def _received(pgconn: PGconn) -> PQGen[list[PGresult]]:
    """All results up to the mark that ends a pipeline; an error is followed by results that say no more than that."""
    results: list[PGresult] = []
    while pgconn.flush():
        # Nothing comes with a look after a cancellation.
        if (ready := (yield Wait.RW)) and ready & Ready.R:
            pgconn.consume_input()
    while True:
        while pgconn.is_busy():
            yield Wait.R
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            if pgconn.status == ConnStatus.BAD:
                raise OperationalError(pgconn.get_error_message() or "the connection is lost")
            continue
        results.append(result)
        if result.status == ExecStatus.PIPELINE_SYNC:
            return results


def is_plain_connection(pgconn: PGconn) -> bool:
    """Whether nobody has left it in pipeline mode."""
    return pgconn.pipeline_status == PipelineStatus.OFF
