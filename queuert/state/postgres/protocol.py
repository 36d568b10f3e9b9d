"""Sends statements without psycopg's cursors, one or several in one round trip: used by every start, claim and finish.

A cursor examines each parameter and decides at each execution whether to prepare, which takes a seventh of the time of
a start. psycopg's pipeline mode saves the same round trips, but costs a worker twice as much processor time. Here
statements are prepared under names of their own, parameters are text, and results are read as they arrive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2s
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from psycopg import AsyncRawCursor, DataError, Error, OperationalError, RawCursor, errors
from psycopg.pq import ConnStatus, ExecStatus, Format, PipelineStatus

from queuert.state.postgres import psycopg_internals
from queuert.state.postgres.pooled_connection import AsyncPooledConnection, ConnectionState, PooledConnection
from queuert.state.postgres.psycopg_internals import Ready, Wait, generators

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGconn, PGresult

_PLACEHOLDER = re.compile(rb"%\((\w+)\)s|%%")

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
        if found[1] is None:
            return b"%"
        return b"$%d" % names.setdefault(found[1].decode(), len(names) + 1)

    return _PLACEHOLDER.sub(number, text), tuple(names)


BEGIN = unnamed(b"BEGIN")
COMMIT = unnamed(b"COMMIT")

_TRIES = 3
"""A statement can first turn out not to be prepared, and then to be prepared after all; so two retries are enough."""

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
    values = _bound_values(*step)
    return [None if value is None else value.decode() for value in values] or None


def _plain_result(result: PGresult | None) -> PGresult:
    assert result is not None, "a statement that was executed has a result"
    return result


async def async_execute_prepared(
    connection: AsyncPooledConnection, statement: NamedStatement, values: Mapping[str, Value]
) -> list[tuple[Any, ...]]:
    """Prepare and run one statement, and return its rows as tuples. Errors are psycopg's."""
    async with connection.lock:
        given = _bound_values(statement, values)
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
        given = _bound_values(statement, values)
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


async def async_execute_pair(
    connection: AsyncPooledConnection, first: Step, second: Step
) -> tuple[list[tuple[Any, ...]], bool]:
    """Run a statement, and after it another in a transaction of its own, in one round trip. Returns the rows of the
    first, whose errors are psycopg's, and whether the second succeeded."""
    async with connection.lock:
        for left in reversed(range(_TRIES)):
            try:
                with _close_if_interrupted(connection.pgconn):
                    result, done = await connection.wait(_run_pair(connection, first, second))
                    return connection.read(result), done
            except PREPARED_STATE_MISMATCH:
                if not left:
                    raise
    raise AssertionError("the last try returns or raises")


def sync_execute_pair(connection: PooledConnection, first: Step, second: Step) -> tuple[list[tuple[Any, ...]], bool]:
    """Sync version of :func:`async_execute_pair`."""
    with connection.lock:
        for left in reversed(range(_TRIES)):
            try:
                with _close_if_interrupted(connection.pgconn):
                    result, done = connection.wait(_run_pair(connection, first, second))
                    return connection.read(result), done
            except PREPARED_STATE_MISMATCH:
                if not left:
                    raise
    raise AssertionError("the last try returns or raises")


async def async_begin_with(
    connection: AsyncPooledConnection, steps: Sequence[Step], *, prepare: bool
) -> list[PGresult]:
    """Begin a transaction with these steps and return their results; retry if the prepared statements were not as
    recorded."""
    for _ in steps:
        try:
            return (await async_execute_pipeline(connection, [Step(BEGIN, {}), *steps], prepare=prepare))[1:]
        except PREPARED_STATE_MISMATCH:
            await connection.rollback()
    return (await async_execute_pipeline(connection, [Step(BEGIN, {}), *steps], prepare=prepare))[1:]


def sync_begin_with(connection: PooledConnection, steps: Sequence[Step], *, prepare: bool) -> list[PGresult]:
    """Sync version of :func:`async_begin_with`."""
    for _ in steps:
        try:
            return sync_execute_pipeline(connection, [Step(BEGIN, {}), *steps], prepare=prepare)[1:]
        except PREPARED_STATE_MISMATCH:
            connection.rollback()
    return sync_execute_pipeline(connection, [Step(BEGIN, {}), *steps], prepare=prepare)[1:]


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
    if not is_plain_connection(pgconn):
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
    values = [_bound_values(*step) for step in steps]
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


def _run_pair(connection: ConnectionState, first: Step, second: Step) -> PQGen[tuple[PGresult, bool]]:
    """Run two transactions in one round trip, and prepare their statements if necessary."""
    pgconn, known = connection.pgconn, connection.prepared
    values = [_bound_values(*first), _bound_values(*second)]
    new = [[] if step.statement.name in known else [step.statement] for step in (first, second)]
    pgconn.enter_pipeline_mode()
    for step, missing, row in zip((first, second), new, values, strict=True):
        _send(pgconn, missing, [step], [row], True, Format.BINARY)
    first_results = yield from _received(pgconn)
    try:
        second_results = yield from _received(pgconn)
    except OperationalError:
        # The connection was lost after the first answer and is still in pipeline mode, so that it will be closed.
        second_results = None
    else:
        pgconn.exit_pipeline_mode()
    [result] = _step_results(known, new[0], [first], first_results)
    return result, second_results is not None and _has_succeeded(known, new[1], second, second_results)


def _has_succeeded(known: set[bytes], new: Sequence[NamedStatement], step: Step, results: Sequence[PGresult]) -> bool:
    try:
        _step_results(known, new, [step], results)
    except Error:
        return False
    return True


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


def _bound_values(statement: NamedStatement, values: Mapping[str, Value]) -> list[bytes | None]:
    return [_bytes(values[name]) for name in statement.parameters]


def _bytes(value: Value) -> bytes | None:
    if value is None:
        return None
    # ``str()`` of a member of a text enumeration may return its name instead of its value.
    text = (value if isinstance(value, str) else str(value)).encode()
    if b"\0" in text:
        # libpq would end the text there.
        raise DataError("a text for Postgres cannot contain NUL (0x00)")
    return text


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


def goes_past_cursors(connection: ConnectionState) -> bool:
    """Whether statements can be sent without psycopg's cursors: outside its pipeline, and with its private parts
    present."""
    return not psycopg_internals.PLAIN_CURSORS and is_plain_connection(connection.pgconn)
