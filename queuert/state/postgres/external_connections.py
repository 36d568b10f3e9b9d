"""The psycopg connection in what a caller gave as ``connection=``, for sync and async.

SQLAlchemy and Django are never imported: their objects are known by the modules that their classes come from.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from queuert.errors import UnsupportedConnectionError
from queuert.state.postgres.bounds import async_bounded, sync_bounded
from queuert.state.postgres.errors import mapped_errors
from queuert.state.postgres.protocol import AsyncPooledConnection, PooledConnection

_SYNC_TAKES = (
    "a psycopg.Connection, its cursor, a psycopg_pool.ConnectionPool, an SQLAlchemy Connection or Session on "
    "postgresql+psycopg, or Django's connection on psycopg 3"
)
_ASYNC_TAKES = (
    "a psycopg.AsyncConnection, its cursor, a psycopg_pool.AsyncConnectionPool, or an SQLAlchemy AsyncConnection or "
    "AsyncSession on postgresql+psycopg"
)


@contextmanager
def sync_callers_connection(given: Any) -> Iterator[Connection[Any]]:
    """The synchronous connection in what a caller gave, in the transaction that the caller's library has begun on it.

    One that is borrowed from a pool is in a transaction that commits when the block ends.

    Raises:
        UnsupportedConnectionError: there is none in it.
        StateUnavailableError: the pool has none to give.
    """
    if isinstance(given, ConnectionPool):
        with mapped_errors(), given.connection() as borrowed, sync_bounded(borrowed):
            yield borrowed
        return
    if _is_asynchronous(given):
        raise UnsupportedConnectionError(
            f"{_kind(given)} is asynchronous: use an AsyncClient with it, or give this Client {_SYNC_TAKES}"
        )
    found = _sync_driver_connection(given)
    if not isinstance(found, Connection):
        raise _refused(given, found, _SYNC_TAKES)
    _tell_block(found)
    yield found


@asynccontextmanager
async def async_callers_connection(given: Any) -> AsyncIterator[AsyncConnection[Any]]:
    """The asynchronous connection in what a caller gave, in the transaction that the caller's library has begun on it.

    One that is borrowed from a pool is in a transaction that commits when the block ends.

    Raises:
        UnsupportedConnectionError: there is none in it.
        StateUnavailableError: the pool has none to give.
    """
    if isinstance(given, AsyncConnectionPool):
        with mapped_errors():
            async with given.connection() as borrowed, async_bounded(borrowed):
                yield borrowed
        return
    if _is_synchronous(given):
        raise UnsupportedConnectionError(
            f"{_kind(given)} is synchronous: use a Client with it, or give this AsyncClient {_ASYNC_TAKES}"
        )
    found = await _async_driver_connection(given)
    if not isinstance(found, AsyncConnection):
        raise _refused(given, found, _ASYNC_TAKES)
    _tell_block(found)
    yield found


def _tell_block(connection: Any) -> None:
    """A block of an attempt whose connection this is must know that more was written than the handler's own rows."""
    if isinstance(connection, AsyncPooledConnection | PooledConnection):
        connection.used_by_client = True


# --- what is inside --------------------------------------------------------------------------------------------------


def _sync_driver_connection(given: Any) -> Any:
    if isinstance(given, Cursor):
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
        # As its first statement would have: its commit() has something to commit then.
        given.begin()
    return given.connection.driver_connection


async def _of_async_sqlalchemy(given: Any) -> Any:
    if hasattr(type(given), "get_bind"):
        given = await given.connection()
    elif not hasattr(type(given), "exec_driver_sql"):
        return None
    elif not given.in_transaction():
        await given.begin()
    return (await given.get_raw_connection()).driver_connection


def _of_django(given: Any) -> Any:
    wrapper = getattr(given, "db", given)  # A cursor's.
    if getattr(wrapper, "vendor", None) != "postgresql":
        return None
    wrapper.ensure_connection()
    # After an error in an atomic block Django allows no statement: what is written would be rolled back in silence.
    wrapper.validate_no_broken_transaction()
    return wrapper.connection


# --- what it is ------------------------------------------------------------------------------------------------------


def _modules(given: Any) -> list[str]:
    return [cls.__module__ for cls in type(given).__mro__]


def _comes_from(given: Any, package: str) -> bool:
    return any(module.partition(".")[0] == package for module in _modules(given))


def _is_asynchronous(given: Any) -> bool:
    known = isinstance(given, AsyncConnection | AsyncCursor | AsyncConnectionPool)
    return known or any(module.startswith("sqlalchemy.ext.asyncio") for module in _modules(given))


def _is_synchronous(given: Any) -> bool:
    if isinstance(given, Connection | Cursor | ConnectionPool) or _comes_from(given, "django"):
        return True
    return _comes_from(given, "sqlalchemy") and not _is_asynchronous(given)


def _kind(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__name__}"


def _refused(given: Any, found: Any, takes: str) -> UnsupportedConnectionError:
    inside = "" if found is given or found is None else f" on {_kind(found)}"
    if isinstance(found, AsyncConnection):
        inside += " (use an AsyncClient with the asynchronous session around it)"
    return UnsupportedConnectionError(
        f"connection= takes {takes}, not {_kind(given)}{inside}: statements are written with psycopg 3"
    )
