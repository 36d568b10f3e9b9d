"""Finds the driver's connection in what a caller passed as ``connection=``, for sync and async.

SQLAlchemy, Django, asyncpg and psycopg2 are never imported. Their objects are recognized by the modules of their
classes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, NamedTuple
from weakref import WeakSet

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from queuert.errors import UnsupportedConnectionError
from queuert.state.postgres.bounds import async_bounded, sync_bounded
from queuert.state.postgres.errors import mapped_errors
from queuert.state.postgres.other_drivers import (
    AnyConnection,
    AsyncAnyConnection,
    AsyncpgConnection,
    Psycopg2Connection,
    asyncpg_pool_connection,
    psycopg2_pool_connection,
)
from queuert.state.postgres.protocol import AsyncPooledConnection, PooledConnection

_SYNC_TAKES = (
    "a connection or cursor of psycopg 3 or psycopg2, one of their pools, an SQLAlchemy Connection or Session on "
    "postgresql+psycopg or postgresql+psycopg2, or Django's connection"
)
_ASYNC_TAKES = (
    "psycopg's AsyncConnection or its cursor, asyncpg's Connection, one of their pools, or an SQLAlchemy "
    "AsyncConnection or AsyncSession on postgresql+psycopg or postgresql+asyncpg"
)


@contextmanager
def sync_callers_connection(given: Any) -> Iterator[AnyConnection]:
    """Yield the sync connection of the caller's object, in the transaction that the caller's library has begun on it.

    If it is borrowed from a pool, it is in a transaction that commits when the block ends.

    Raises:
        UnsupportedConnectionError: the object has no sync connection of psycopg or psycopg2.
        StateUnavailableError: the pool had no connection in time.
    """
    if isinstance(given, Connection):
        _tell_block(given)
        yield given
        return
    if isinstance(given, ConnectionPool):
        with mapped_errors(), given.connection() as borrowed, sync_bounded(borrowed):
            yield borrowed
        return
    if _has(given, "psycopg2", "getconn"):
        with mapped_errors(), psycopg2_pool_connection(given) as lent, sync_bounded(lent):
            yield lent
        return
    if _is_asynchronous(given):
        raise UnsupportedConnectionError(
            f"{_kind(given)} is asynchronous: use an AsyncClient with it, or give this Client {_SYNC_TAKES}"
        )
    found = _sync_driver_connection(given)
    if _is_psycopg2(found) and not found.async_:
        yield Psycopg2Connection(found)
        return
    if not isinstance(found, Connection):
        raise _refused(given, found, _SYNC_TAKES)
    _tell_block(found)
    yield found


@asynccontextmanager
async def async_callers_connection(given: Any) -> AsyncIterator[AsyncAnyConnection]:
    """Yield the async connection of the caller's object, in the transaction that the caller's library has begun on it.

    If it is borrowed from a pool, it is in a transaction that commits when the block ends.

    Raises:
        UnsupportedConnectionError: the object has no async connection of psycopg or asyncpg.
        StateUnavailableError: the pool had no connection in time.
    """
    if isinstance(given, AsyncConnection):
        _tell_block(given)
        yield given
        return
    if isinstance(given, AsyncConnectionPool):
        with mapped_errors():
            async with given.connection() as borrowed, async_bounded(borrowed):
                yield borrowed
        return
    if _has(given, "asyncpg", "acquire"):
        with mapped_errors():
            async with asyncpg_pool_connection(given) as lent, async_bounded(lent):
                yield lent
        return
    if _is_synchronous(given):
        raise UnsupportedConnectionError(
            f"{_kind(given)} is synchronous: use a Client with it, or give this AsyncClient {_ASYNC_TAKES}"
        )
    found = await _async_driver_connection(given)
    if _is_asyncpg(found):
        yield AsyncpgConnection(found)
        return
    if not isinstance(found, AsyncConnection):
        raise _refused(given, found, _ASYNC_TAKES)
    _tell_block(found)
    yield found


# --- another database -------------------------------------------------------------------------------------------------


class Database(NamedTuple):
    """The row of ``database``: which one it is, and for people its name and address."""

    oid: int
    server_started: str
    name: str


class OwnDatabase:
    """The database of a store, with which callers' connections are compared once.

    Attributes:
        address: where the store is connected to, as :func:`address` returns it.
        row: what the server said in answer to the statement ``database``; None if it was not asked yet.
    """

    def __init__(self) -> None:
        self.address: tuple[str, int, str] | None = None
        self.row: Database | None = None
        self._known: WeakSet[Any] = WeakSet()

    def is_known(self, connection: AsyncAnyConnection | AnyConnection) -> bool:
        """Whether a connection is one to this database, as far as is known without asking a server."""
        if _identity(connection) in self._known:
            return True
        theirs = address(connection)
        if theirs is None or theirs != self.address:
            return False
        self.add(connection)
        return True

    def add(self, connection: AsyncAnyConnection | AnyConnection) -> None:
        """Remember a connection that is one to this database, for as long as it lives."""
        # One that cannot be referred to weakly is compared each time.
        with suppress(TypeError):
            self._known.add(_identity(connection))

    def is_same(self, row: Database) -> bool:
        """Whether a server's answer is that of this database's server."""
        own = self.row
        return own is not None and (own.oid, own.server_started) == (row.oid, row.server_started)

    def refused(self, row: Database) -> UnsupportedConnectionError:
        """Return the error for a connection to another database."""
        own = "" if self.row is None else f" {self.row.name!r}"
        return UnsupportedConnectionError(
            f"connection= must be one to the database of this client,{own}, and is one to {row.name!r}: nothing was "
            "written. Use a client of that database, or a connection to this one"
        )


def address(connection: AsyncAnyConnection | AnyConnection) -> tuple[str, int, str] | None:
    """Return host, port and name of the database that a connection is one to; None if its driver does not tell."""
    if isinstance(connection, AsyncpgConnection | Psycopg2Connection):
        return connection.address
    return connection.info.host, connection.info.port, connection.info.dbname


def _identity(connection: AsyncAnyConnection | AnyConnection) -> Any:
    if isinstance(connection, AsyncpgConnection | Psycopg2Connection):
        return connection.identity
    return connection


def _tell_block(connection: Any) -> None:
    """If the connection belongs to a block of an attempt, record that a client has written in its transaction."""
    if isinstance(connection, AsyncPooledConnection | PooledConnection):
        connection.used_by_client = True


# --- unwrapping -------------------------------------------------------------------------------------------------------


def _sync_driver_connection(given: Any) -> Any:
    if isinstance(given, Cursor) or _has(given, "psycopg2", "fetchall"):
        return given.connection
    if _comes_from(given, "sqlalchemy"):
        return _of_sqlalchemy(given)
    if _comes_from(given, "django"):
        return _of_django(given)
    return given


async def _async_driver_connection(given: Any) -> Any:
    if isinstance(given, AsyncCursor):
        return given.connection
    if _comes_from(given, "sqlalchemy"):
        return await _of_async_sqlalchemy(given)
    return given


def _of_sqlalchemy(given: Any) -> Any:
    if hasattr(type(given), "get_bind"):  # A session; it begins a transaction if there is none.
        given = given.connection()
    elif not hasattr(type(given), "exec_driver_sql"):
        return None
    elif not given.in_transaction():
        # The session's first statement would begin it. Without it, its commit() would commit nothing.
        given.begin()
    return given.connection.driver_connection


async def _of_async_sqlalchemy(given: Any) -> Any:
    if hasattr(type(given), "get_bind"):
        given = await given.connection()
    elif not hasattr(type(given), "exec_driver_sql"):
        return None
    elif not given.in_transaction():
        await given.begin()
    found = (await given.get_raw_connection()).driver_connection
    if _is_asyncpg(found) and not found.is_in_transaction():
        # SQLAlchemy begins asyncpg's transaction with the first statement that it runs itself; in autocommit never.
        await given.exec_driver_sql("SELECT 1")
    return found


def _of_django(given: Any) -> Any:
    wrapper = getattr(given, "db", given)  # A cursor's.
    if getattr(wrapper, "vendor", None) != "postgresql":
        return None
    wrapper.ensure_connection()
    # After an error in an atomic block Django refuses statements. Ours would be accepted and rolled back silently.
    wrapper.validate_no_broken_transaction()
    return wrapper.connection


# --- recognizing ------------------------------------------------------------------------------------------------------


def _modules(given: Any) -> list[str]:
    return [cls.__module__ for cls in type(given).__mro__]


def _comes_from(given: Any, package: str) -> bool:
    return any(module.partition(".")[0] == package for module in _modules(given))


def _has(given: Any, package: str, method: str) -> bool:
    """Whether the object is of a class of this package that has this method."""
    return _comes_from(given, package) and hasattr(type(given), method)


def _is_asyncpg(given: Any) -> bool:
    """Whether it is a connection of asyncpg, or the proxy of one that a pool has lent."""
    return _has(given, "asyncpg", "is_in_transaction")


def _is_psycopg2(given: Any) -> bool:
    return _has(given, "psycopg2", "get_transaction_status")


def _is_asynchronous(given: Any) -> bool:
    known = isinstance(given, AsyncConnection | AsyncCursor | AsyncConnectionPool) or _comes_from(given, "asyncpg")
    return known or any(module.startswith("sqlalchemy.ext.asyncio") for module in _modules(given))


def _is_synchronous(given: Any) -> bool:
    if isinstance(given, Connection | Cursor | ConnectionPool):
        return True
    if _comes_from(given, "django") or _comes_from(given, "psycopg2"):
        return True
    return _comes_from(given, "sqlalchemy") and not _is_asynchronous(given)


def _kind(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__name__}"


def _refused(given: Any, found: Any, takes: str) -> UnsupportedConnectionError:
    inside = "" if found is given or found is None else f" on {_kind(found)}"
    if isinstance(found, AsyncConnection) or _is_asyncpg(found):
        inside += " (use an AsyncClient with the asynchronous session around it)"
    return UnsupportedConnectionError(
        f"connection= takes {takes}, not {_kind(given)}{inside}: write in the transaction of one of these drivers"
    )
