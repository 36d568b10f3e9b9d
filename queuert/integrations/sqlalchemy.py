"""SQLAlchemy: a session in the transaction of ``attempt.complete()``, and Alembic that leaves Queuert's tables alone.

It needs ``queuert[sqlalchemy]``. A handler writes by a session, in the commit that completes its job::

    with attempt.complete() as tx:
        with session_on(tx.connection) as session:
            session.add(Invoice(number=attempt.input))
        return tx.finish(attempt.input)

A coroutine does so with ``async with async_session_on(tx.connection) as session``. In ``env.py`` of Alembic::

    context.configure(..., include_schemas=True, include_name=include_name())

To start chains in the transaction of a session, pass it to the client as ``connection=``: that needs nothing from here.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from queuert.errors import UnsupportedConnectionError
from queuert.optional_packages import needing_extras
from queuert.schema_names import DEFAULT_SCHEMA, check_schema_name

with needing_extras():
    from sqlalchemy import Engine, create_engine
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
    from sqlalchemy.orm import Session
    from sqlalchemy.pool import NullPool


@contextmanager
def session_on(connection: Any, make: Callable[..., Session] = Session) -> Iterator[Session]:
    """Wraps a session that works on the connection of a block of a handler, inside its transaction.

    The session is inside a savepoint: ``session.commit()`` flushes and releases it, ``session.rollback()`` undoes what
    the session has written. If the ``with`` block ends well, the session is committed. What is written becomes durable
    with the block of the attempt, and is rolled back if that raises.

    Args:
        connection: ``tx.connection`` of ``attempt.complete()``, ``prepare()`` or ``transaction()``, in a handler that
            is a plain function, on Postgres.
        make: what makes the session: a ``sessionmaker`` of yours, or a subclass of ``Session``.

    Raises:
        UnsupportedConnectionError: it is no synchronous connection of psycopg.
    """
    _check(connection, asynchronous=False)
    token = _connection.set(connection)
    try:
        with (
            _engine().begin() as outer,
            make(bind=outer, join_transaction_mode="create_savepoint") as session,
        ):
            yield session
            session.commit()
    finally:
        _connection.reset(token)


@asynccontextmanager
async def async_session_on(
    connection: Any, make: Callable[..., AsyncSession] = AsyncSession
) -> AsyncIterator[AsyncSession]:
    """The same as :func:`session_on` for a handler that is a coroutine.

    Args:
        connection: ``tx.connection`` in a handler that is a coroutine, on Postgres.
        make: what makes the session: an ``async_sessionmaker`` of yours, or a subclass of ``AsyncSession``.

    Raises:
        UnsupportedConnectionError: it is no asynchronous connection of psycopg.
    """
    _check(connection, asynchronous=True)
    token = _connection.set(connection)
    try:
        async with (
            _async_engine().begin() as outer,
            make(bind=outer, join_transaction_mode="create_savepoint") as session,
        ):
            yield session
            await session.commit()
    finally:
        _connection.reset(token)


def include_name(schema: str = DEFAULT_SCHEMA) -> Callable[[str | None, str, Any], bool]:
    """Return an ``include_name`` for Alembic's ``context.configure``: autogenerate does not look into a schema.

    With ``include_schemas=True`` it would otherwise propose to drop Queuert's tables, as no model of yours declares
    them. ``queuert migrate`` alone creates and changes them. (``include_object`` is no help: Alembic reads all tables
    before it calls that, and SQLAlchemy warns of types that it does not know.)

    Args:
        schema: the schema of Queuert's tables.

    Raises:
        ConfigurationError: the name of the schema is not allowed.

    Example:
        >>> include_name()("queuert", "schema", {}), include_name()("public", "schema", {})
        (False, True)
    """
    check_schema_name(schema)

    def included(name: str | None, type_: str, parent_names: Any) -> bool:
        return not (type_ == "schema" and name == schema)

    return included


# --- the connection of a block ----------------------------------------------------------------------------------------


class _Held:
    """A connection of psycopg that is a block's to commit and to release."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def add_notice_handler(self, callback: object) -> None:
        """Not added: an engine adds one to each new connection, and this one is new to it in each block."""

    def commit(self) -> None:
        """Left to the block, as are the next two."""

    rollback = close = commit


class _AsyncHeld(_Held):
    async def commit(self) -> None:  # type: ignore[override]
        """Left to the block, as are the next two."""

    rollback = close = commit  # type: ignore[assignment]


_connection: ContextVar[Any] = ContextVar("queuert_sqlalchemy_connection")
"""The connection that the engine gets next: an engine is made once, as its first connection is asked for the server's
version."""


def _held() -> Any:
    return _Held(_connection.get())


async def _async_held() -> Any:
    return _AsyncHeld(_connection.get())


@cache
def _engine() -> Engine:
    # With native hstore each engine would look for the type.
    return create_engine("postgresql+psycopg://", creator=_held, poolclass=NullPool, use_native_hstore=False)


@cache
def _async_engine() -> AsyncEngine:
    return create_async_engine(
        "postgresql+psycopg://", async_creator=_async_held, poolclass=NullPool, use_native_hstore=False
    )


def _check(connection: Any, *, asynchronous: bool) -> None:
    execute = getattr(type(connection), "execute", None)
    if hasattr(connection, "pgconn") and inspect.iscoroutinefunction(execute) is asynchronous:
        return
    kind = f"{type(connection).__module__}.{type(connection).__name__}"
    wanted = "psycopg.AsyncConnection" if asynchronous else "psycopg.Connection"
    other = "session_on in a plain function" if asynchronous else "async_session_on in a coroutine"
    raise UnsupportedConnectionError(
        f"the connection must be tx.connection of a block of the attempt, a {wanted}, got {kind}: use {other}"
        if hasattr(connection, "pgconn")
        else f"the connection must be tx.connection of a block of the attempt on Postgres, got {kind}"
    )
