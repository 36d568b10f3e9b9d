"""The ways in which a program may hold its transaction: one face for drivers, SQLAlchemy and Django."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
)
from typing import Any, Protocol
from urllib.parse import urlsplit

import asyncpg
import django
import psycopg
import psycopg2
from django.conf import settings
from django.db import connection, connections, transaction
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.ext.asyncio import create_async_engine as async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

INSERT = "insert into mine values ('mine')"


class Caller(Protocol):
    """A program's transaction: what it gives as ``connection=``, and what it does beside."""

    @property
    def given(self) -> Any:
        """The connection."""
        ...

    def write(self) -> object:
        """Write a row of the program's own."""
        ...

    def commit(self) -> object:
        """Commit the transaction."""
        ...

    def rollback(self) -> object:
        """Roll it back."""
        ...

    def undone(self) -> AbstractContextManager[object]:
        """A savepoint that is rolled back at the end of the block."""
        ...


class AsyncCaller(Protocol):
    """The same, asynchronously."""

    @property
    def given(self) -> Any: ...
    async def write(self) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...
    def undone(self) -> AbstractAsyncContextManager[object]: ...


def sqlalchemy_url(dsn: str, driver: str = "postgresql+psycopg") -> str:
    """The address of a database as SQLAlchemy spells it."""
    return urlsplit(dsn)._replace(scheme=driver).geturl()


@contextmanager
def engine(dsn: str, driver: str = "postgresql+psycopg", **options: Any) -> Iterator[Engine]:
    """An engine of SQLAlchemy that lets go of its connections at the end."""
    made = create_engine(sqlalchemy_url(dsn, driver), **options)
    try:
        yield made
    finally:
        made.dispose()


class _Psycopg:
    def __init__(self, connection: psycopg.Connection[Any], given: Any) -> None:
        self.given = given
        self.write = lambda: connection.execute(INSERT)
        self.commit = connection.commit
        self.rollback = connection.rollback
        self.undone = lambda: connection.transaction(force_rollback=True)


@contextmanager
def psycopg_connection(dsn: str) -> Iterator[Caller]:
    """psycopg's connection."""
    with psycopg.connect(dsn) as connection:
        yield _Psycopg(connection, connection)


@contextmanager
def psycopg_cursor(dsn: str) -> Iterator[Caller]:
    """psycopg's cursor."""
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        yield _Psycopg(connection, cursor)


class _Psycopg2:
    def __init__(self, connection: Any, given: Any) -> None:
        self.given = given
        self.commit = connection.commit
        self.rollback = connection.rollback
        self._connection = connection

    def write(self) -> None:
        self._run(INSERT)

    @contextmanager
    def undone(self) -> Iterator[None]:
        self._run("savepoint undone")
        yield
        self._run("rollback to undone")

    def _run(self, statement: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)


@contextmanager
def psycopg2_connection(dsn: str) -> Iterator[Caller]:
    """psycopg2's connection."""
    with closing(psycopg2.connect(dsn)) as connection:
        yield _Psycopg2(connection, connection)


@contextmanager
def psycopg2_cursor(dsn: str) -> Iterator[Caller]:
    """psycopg2's cursor."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        yield _Psycopg2(connection, cursor)


class _SQLAlchemy:
    def __init__(self, given: Connection | Session | scoped_session[Session]) -> None:
        self.given = given
        self.write = lambda: given.execute(text(INSERT))
        self.commit = given.commit
        self.rollback = given.rollback

    @contextmanager
    def undone(self) -> Iterator[None]:
        savepoint = self.given.begin_nested()
        yield
        savepoint.rollback()


@contextmanager
def sqlalchemy_connection(dsn: str) -> Iterator[Caller]:
    """SQLAlchemy's connection."""
    with engine(dsn) as made, made.connect() as connection:
        yield _SQLAlchemy(connection)


@contextmanager
def sqlalchemy_session(dsn: str) -> Iterator[Caller]:
    """SQLAlchemy's session."""
    with engine(dsn) as made, Session(made) as session:
        yield _SQLAlchemy(session)


@contextmanager
def sqlalchemy_connection_on_psycopg2(dsn: str) -> Iterator[Caller]:
    """SQLAlchemy's connection, on psycopg2."""
    with engine(dsn, "postgresql+psycopg2") as made, made.connect() as connection:
        yield _SQLAlchemy(connection)


@contextmanager
def sqlalchemy_session_on_psycopg2(dsn: str) -> Iterator[Caller]:
    """SQLAlchemy's session, on psycopg2."""
    with engine(dsn, "postgresql+psycopg2") as made, Session(made) as session:
        yield _SQLAlchemy(session)


@contextmanager
def sqlalchemy_scoped_session(dsn: str) -> Iterator[Caller]:
    """SQLAlchemy's session of the thread."""
    with engine(dsn) as made:
        session = scoped_session(sessionmaker(made))
        yield _SQLAlchemy(session)
        session.remove()


class _Django:
    """Inside ``atomic``, which is begun anew after each end."""

    def __init__(self, given: Callable[[], Any]) -> None:
        self._given = given
        self._stack = ExitStack()

    @property
    def given(self) -> Any:
        self._begin()
        return self._given()

    def write(self) -> None:
        self._begin()
        with connections["default"].cursor() as cursor:
            cursor.execute(INSERT)

    def commit(self) -> None:
        self._stack.close()

    def rollback(self) -> None:
        if connections["default"].in_atomic_block:
            transaction.set_rollback(True)
        self._stack.close()

    @contextmanager
    def undone(self) -> Iterator[None]:
        self._begin()
        with transaction.atomic():
            yield
            transaction.set_rollback(True)

    def _begin(self) -> None:
        if not connections["default"].in_atomic_block:
            self._stack.enter_context(transaction.atomic())


@contextmanager
def django_database(dsn: str) -> Iterator[Any]:
    """Django's connection to the database, in autocommit as Django has it."""
    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    parts = urlsplit(dsn)
    address = {"HOST": parts.hostname, "PORT": parts.port, "USER": parts.username, "PASSWORD": parts.password or ""}
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], **address}
    connections.settings = connections.configure_settings({"default": database})
    try:
        yield connections["default"]
    finally:
        connections.close_all()
        del connections["default"]


@contextmanager
def django_connection(dsn: str) -> Iterator[Caller]:
    """``connections[alias]`` of Django."""
    with django_database(dsn):
        yield _Django(lambda: connections["default"])


@contextmanager
def django_proxy(dsn: str) -> Iterator[Caller]:
    """``django.db.connection``."""
    with django_database(dsn):
        yield _Django(lambda: connection)


@contextmanager
def django_cursor(dsn: str) -> Iterator[Caller]:
    """Django's cursor."""
    with django_database(dsn):
        yield _Django(lambda: connections["default"].cursor())


CALLERS = (
    psycopg_connection,
    psycopg_cursor,
    psycopg2_connection,
    psycopg2_cursor,
    sqlalchemy_connection,
    sqlalchemy_session,
    sqlalchemy_connection_on_psycopg2,
    sqlalchemy_session_on_psycopg2,
    sqlalchemy_scoped_session,
    django_connection,
    django_proxy,
    django_cursor,
)


class _AsyncPsycopg:
    def __init__(self, connection: psycopg.AsyncConnection[Any], given: Any) -> None:
        self.given = given
        self._connection = connection
        self.commit = connection.commit
        self.rollback = connection.rollback
        self.undone = lambda: connection.transaction(force_rollback=True)

    async def write(self) -> None:
        await self._connection.execute(INSERT)


@asynccontextmanager
async def async_psycopg_connection(dsn: str) -> AsyncIterator[AsyncCaller]:
    """psycopg's connection."""
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        yield _AsyncPsycopg(connection, connection)


@asynccontextmanager
async def async_psycopg_cursor(dsn: str) -> AsyncIterator[AsyncCaller]:
    """psycopg's cursor."""
    async with await psycopg.AsyncConnection.connect(dsn) as connection, connection.cursor() as cursor:
        yield _AsyncPsycopg(connection, cursor)


class _Asyncpg:
    """Inside ``transaction()``, which is begun anew after each end."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._transaction: Any = None

    @property
    def given(self) -> Any:
        return self._connection

    async def begin(self) -> None:
        self._transaction = self._connection.transaction()
        await self._transaction.start()

    async def write(self) -> None:
        await self._connection.execute(INSERT)

    async def commit(self) -> None:
        await self._transaction.commit()
        await self.begin()

    async def rollback(self) -> None:
        await self._transaction.rollback()
        await self.begin()

    @asynccontextmanager
    async def undone(self) -> AsyncIterator[None]:
        savepoint = self._connection.transaction()
        await savepoint.start()
        yield
        await savepoint.rollback()


@asynccontextmanager
async def asyncpg_connection(dsn: str) -> AsyncIterator[AsyncCaller]:
    """asyncpg's connection."""
    connection = await asyncpg.connect(dsn)
    try:
        caller = _Asyncpg(connection)
        await caller.begin()
        yield caller
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_lent_connection(dsn: str) -> AsyncIterator[AsyncCaller]:
    """What asyncpg's pool lends."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        caller = _Asyncpg(connection)
        await caller.begin()
        yield caller
        await caller.rollback()


class _AsyncSQLAlchemy:
    def __init__(self, given: AsyncConnection | AsyncSession | async_scoped_session[AsyncSession]) -> None:
        self.given = given
        self.commit = given.commit
        self.rollback = given.rollback

    async def write(self) -> None:
        await self.given.execute(text(INSERT))

    @asynccontextmanager
    async def undone(self) -> AsyncIterator[None]:
        savepoint = await self.given.begin_nested()
        yield
        await savepoint.rollback()


@asynccontextmanager
async def async_sqlalchemy_connection(dsn: str) -> AsyncIterator[AsyncCaller]:
    """SQLAlchemy's connection."""
    made = async_engine(sqlalchemy_url(dsn))
    async with made.connect() as connection:
        yield _AsyncSQLAlchemy(connection)
    await made.dispose()


@asynccontextmanager
async def async_sqlalchemy_session(dsn: str) -> AsyncIterator[AsyncCaller]:
    """SQLAlchemy's session."""
    made = async_engine(sqlalchemy_url(dsn))
    async with AsyncSession(made) as session:
        yield _AsyncSQLAlchemy(session)
    await made.dispose()


@asynccontextmanager
async def async_sqlalchemy_connection_on_asyncpg(dsn: str) -> AsyncIterator[AsyncCaller]:
    """SQLAlchemy's connection, on asyncpg."""
    made = async_engine(sqlalchemy_url(dsn, "postgresql+asyncpg"))
    async with made.connect() as connection:
        yield _AsyncSQLAlchemy(connection)
    await made.dispose()


@asynccontextmanager
async def async_sqlalchemy_session_on_asyncpg(dsn: str) -> AsyncIterator[AsyncCaller]:
    """SQLAlchemy's session, on asyncpg."""
    made = async_engine(sqlalchemy_url(dsn, "postgresql+asyncpg"))
    async with AsyncSession(made) as session:
        yield _AsyncSQLAlchemy(session)
    await made.dispose()


@asynccontextmanager
async def async_sqlalchemy_scoped_session(dsn: str) -> AsyncIterator[AsyncCaller]:
    """SQLAlchemy's session of the task."""
    made = async_engine(sqlalchemy_url(dsn))
    session = async_scoped_session(async_sessionmaker(made), scopefunc=lambda: 1)
    yield _AsyncSQLAlchemy(session)
    await session.remove()
    await made.dispose()


ASYNC_CALLERS = (
    async_psycopg_connection,
    async_psycopg_cursor,
    asyncpg_connection,
    asyncpg_lent_connection,
    async_sqlalchemy_connection,
    async_sqlalchemy_session,
    async_sqlalchemy_connection_on_asyncpg,
    async_sqlalchemy_session_on_asyncpg,
    async_sqlalchemy_scoped_session,
)
