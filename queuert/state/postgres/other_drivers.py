"""Runs the store's statements on callers' connections of asyncpg and psycopg2, with psycopg's errors.

Neither is imported: what a caller passed has imported it. Every parameter is sent as text and cast by the statement,
and results are read by the driver's own decoders, so that no codec or adapter that the caller registered has a part in
it. ``docs/design/external-connections.md`` has the reasons.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeAlias

import psycopg
from psycopg import AsyncConnection, Connection, errors
from psycopg.pq import DiagnosticField

from queuert.state.postgres.parameters import text_array
from queuert.state.postgres.rows import Row

_SAVEPOINT = "SAVEPOINT queuert"
_RELEASE = "RELEASE SAVEPOINT queuert"
_UNDO = f"ROLLBACK TO {_SAVEPOINT}; {_RELEASE}"
_IDLE = 0
"""libpq's status of a connection without a transaction."""

_NUMBER = re.compile(r"\$(\d+)")


class AsyncpgConnection:
    """A caller's connection of asyncpg.

    Attributes:
        driver: the connection itself, or the proxy that a pool has lent.
        autocommit: True: a transaction is open only if the caller has begun one.
    """

    autocommit = True

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    @property
    def idle(self) -> bool:
        """Whether no transaction is open."""
        return not self.driver.is_in_transaction()

    @property
    def address(self) -> None:
        """asyncpg does not tell it."""
        return

    @property
    def identity(self) -> Any:
        """The connection for as long as it lives: a pool lends a new proxy each time, which has no weak references."""
        return getattr(self.driver, "_con", None) or self.driver

    async def fetch(self, text: bytes, given: Sequence[Any]) -> list[Row]:
        """Run one statement, whose parameters are ``$1`` and so on, and return its rows."""
        statement, texts = _with_texts(text), [_text(value) for value in given]
        connection = self.identity
        with _asyncpg_errors():
            if _can_ignore_codecs(getattr(type(connection), "_execute", None)) and not connection.is_closed():
                rows = await connection._execute(statement, texts, 0, None, ignore_custom_codec=True)
            else:
                rows = await self.driver.fetch(statement, *texts)
        return [tuple(row) for row in rows]

    async def execute(self, text: str) -> None:
        """Run statements without parameters."""
        with _asyncpg_errors():
            await self.driver.execute(text)

    @asynccontextmanager
    async def transaction(self, begin: str) -> AsyncIterator[None]:
        """Open a transaction by these statements, or a savepoint if one is open."""
        idle = self.idle
        await self.execute(begin if idle else _SAVEPOINT)
        try:
            yield
        except BaseException:
            with suppress(psycopg.Error):
                await self.execute("ROLLBACK" if idle else _UNDO)
            raise
        await self.execute("COMMIT" if idle else _RELEASE)


class Psycopg2Connection:
    """A caller's connection of psycopg2.

    Attributes:
        driver: the connection itself.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    @property
    def autocommit(self) -> bool:
        """Whether each statement outside a transaction is committed at once."""
        return bool(self.driver.autocommit)

    @property
    def idle(self) -> bool:
        """Whether no transaction is open."""
        return bool(self.driver.get_transaction_status() == _IDLE)

    @property
    def address(self) -> tuple[str, int, str]:
        """Host, port and name of the database."""
        info = self.driver.info
        return info.host, info.port, info.dbname

    @property
    def identity(self) -> Any:
        """The connection for as long as it lives."""
        return self.driver

    def fetch(self, text: bytes, given: Sequence[Any]) -> list[Row]:
        """Run one statement, whose parameters are ``$1`` and so on, and return its rows."""
        values = {str(place): _text(value) for place, value in enumerate(given, 1)}
        # psycopg2 looks for placeholders only if there are values.
        statement = _with_names(text) if values else text.decode()
        return self._run(statement, values or None)

    def execute(self, text: str) -> None:
        """Run statements without parameters."""
        self._run(text, None)

    def _run(self, text: str, values: dict[str, str | None] | None) -> list[Row]:
        extensions = sys.modules["psycopg2.extensions"]
        with _psycopg2_errors(), self.driver.cursor(cursor_factory=extensions.cursor) as cursor:
            # Programs replace the decoder of times for all their connections.
            extensions.register_type(extensions.PYDATETIMETZ, cursor)
            cursor.execute(text, values)
            return [] if cursor.description is None else list(map(_in_utc, cursor.fetchall()))

    @contextmanager
    def transaction(self, begin: str) -> Iterator[None]:
        """Open a transaction by these statements, or a savepoint if one is open."""
        idle = self.idle
        if idle and not self.autocommit:
            # The first statement makes the driver begin a transaction, which it also has to end.
            begin = begin.removeprefix("BEGIN; ")
        self.execute(begin if idle else _SAVEPOINT)
        try:
            yield
        except BaseException:
            with suppress(psycopg.Error):
                if idle:
                    self._end("ROLLBACK")
                else:
                    self.execute(_UNDO)
            raise
        if idle:
            self._end("COMMIT")
        else:
            self.execute(_RELEASE)

    def _end(self, how: str) -> None:
        if self.autocommit:
            self.execute(how)
            return
        with _psycopg2_errors():
            if how == "COMMIT":
                self.driver.commit()
            else:
                self.driver.rollback()


AsyncAnyConnection: TypeAlias = AsyncConnection[Any] | AsyncpgConnection
"""A connection on which the statements of a call may run: the store's own or a caller's."""

AnyConnection: TypeAlias = Connection[Any] | Psycopg2Connection
"""The same for sync calls."""


@asynccontextmanager
async def asyncpg_pool_connection(pool: Any) -> AsyncIterator[AsyncpgConnection]:
    """Borrow a connection from asyncpg's pool."""
    with _asyncpg_errors():
        driver = await pool.acquire()
    try:
        yield AsyncpgConnection(driver)
    finally:
        with _asyncpg_errors():
            await pool.release(driver)


@contextmanager
def psycopg2_pool_connection(pool: Any) -> Iterator[Psycopg2Connection]:
    """Borrow a connection from psycopg2's pool."""
    with _psycopg2_errors():
        driver = pool.getconn()
    try:
        yield Psycopg2Connection(driver)
    finally:
        pool.putconn(driver)


# --- statements and parameters ----------------------------------------------------------------------------------------


@lru_cache(64)
def _can_ignore_codecs(method: Any) -> bool:
    """Whether this method of asyncpg's connection runs statements without the codecs that the caller has set.

    asyncpg asks its own questions about types so. No public method can, and what a codec makes of a time cannot be read
    back. Without such a method the codecs have an effect.
    """
    names = () if method is None else inspect.signature(method).parameters.values()
    # Tools that trace statements replace it by a function that passes everything on.
    return any(one.name == "ignore_custom_codec" or one.kind is one.VAR_KEYWORD for one in names)


def _in_utc(row: Row) -> Row:
    """Return a row with its times in UTC: psycopg2 gives them the time zone of the session."""
    return tuple(value.astimezone(UTC) if isinstance(value, datetime) else value for value in row)


@lru_cache(512)
def _with_texts(text: bytes) -> str:
    """Return a statement for asyncpg, which asks the server for the type of each parameter: text for all."""
    return _NUMBER.sub(r"$\1::text", text.decode())


@lru_cache(512)
def _with_names(text: bytes) -> str:
    """Return a statement with psycopg2's placeholders."""
    return _NUMBER.sub(r"%(\1)s", text.decode().replace("%", "%%"))


def _text(value: Any) -> str | None:
    """Return a parameter as text that Postgres reads as the type to which the statement casts it."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return text_array([_text(one) or "" for one in value])
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)


# --- errors -----------------------------------------------------------------------------------------------------------


@contextmanager
def _asyncpg_errors() -> Iterator[None]:
    """Raise errors of asyncpg inside the block as psycopg's."""
    try:
        yield
    except Exception as error:
        sqlstate = getattr(error, "sqlstate", None)
        if isinstance(sqlstate, str):
            raise _server_error(
                sqlstate, str(error), getattr(error, "detail", None), getattr(error, "constraint_name", None)
            ) from error
        if type(error).__module__.startswith("asyncpg."):
            raise psycopg.InterfaceError(str(error)) from error
        if isinstance(error, OSError):  # TimeoutError is one.
            raise psycopg.OperationalError(str(error) or type(error).__name__) from error
        raise


@contextmanager
def _psycopg2_errors() -> Iterator[None]:
    """Raise errors of psycopg2 inside the block as psycopg's."""
    try:
        yield
    except sys.modules["psycopg2"].Error as error:
        if error.pgcode is not None:
            diagnostics = error.diag
            message = diagnostics.message_primary or str(error)
            raise _server_error(
                error.pgcode, message, diagnostics.message_detail, diagnostics.constraint_name
            ) from error
        # The names of the classes are those of PEP 249 in both; a pool's own error says that it is exhausted.
        name = next((cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _BY_NAME), "OperationalError")
        raise _BY_NAME[name](str(error).strip() or type(error).__name__) from error


_BY_NAME: dict[str, type[psycopg.Error]] = {
    cls.__name__: cls
    for cls in (
        psycopg.InterfaceError, psycopg.OperationalError, psycopg.DataError, psycopg.IntegrityError,
        psycopg.InternalError, psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.DatabaseError,
    )
}  # fmt: skip


def _server_error(sqlstate: str, message: str, detail: str | None, constraint: str | None) -> psycopg.Error:
    """Return psycopg's error for one that the server reported."""
    try:
        kind = errors.lookup(sqlstate)
    except KeyError:
        kind = psycopg.OperationalError if sqlstate[:2] in ("08", "53", "57", "58") else psycopg.DatabaseError
    fields = {
        DiagnosticField.SQLSTATE: sqlstate,
        DiagnosticField.MESSAGE_PRIMARY: message,
        DiagnosticField.MESSAGE_DETAIL: detail,
        DiagnosticField.CONSTRAINT_NAME: constraint,
    }
    return kind(message, info={int(field): text.encode() for field, text in fields.items() if text is not None})
