"""Starts in the caller's own transaction, whoever holds it: a driver, SQLAlchemy or Django."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import psycopg
import pytest
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.ext.asyncio import create_async_engine as async_engine
from sqlalchemy.orm import Session

from queuert import AsyncClient, ChainStatus, Client, JobType, JobTypes, NewChain, PostgresState
from queuert.errors import JobIdConflictError, StateUnavailableError, UnsupportedConnectionError
from queuert.notify.in_process import InProcessNotify
from tests.client import callers
from tests.client.callers import ASYNC_CALLERS, CALLERS, AsyncCaller, Caller

work = JobType("work", input=int, output=int)
JOB_TYPES = JobTypes(work)


class Database:
    """What is committed, as another session sees it."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._session = psycopg.connect(dsn, autocommit=True)
        self._session.execute("create table mine (name text)")

    def committed(self) -> list[str]:
        """The ids of all chains, and a word for each of the caller's own rows."""
        found = self._session.execute("select id from queuert.job union all select name from mine order by 1")
        return [row[0] for row in found]

    def close(self) -> None:
        """Leave."""
        self._session.close()


@pytest.fixture
def database(dsn: str) -> Iterator[Database]:
    database = Database(dsn)
    yield database
    database.close()


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
        client.start_chain(work, 0, id="a-taken")
        yield client


@pytest.fixture
async def async_client(dsn: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
        await client.start_chain(work, 0, id="a-taken")
        yield client


@pytest.fixture(params=CALLERS, ids=lambda make: make.__name__)
def caller(request: pytest.FixtureRequest, database: Database) -> Iterator[Caller]:
    make: Callable[[str], AbstractContextManager[Caller]] = request.param
    with make(database.dsn) as caller:
        yield caller


@pytest.fixture(params=ASYNC_CALLERS, ids=lambda make: make.__name__)
async def async_caller(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[AsyncCaller]:
    make: Callable[[str], AbstractAsyncContextManager[AsyncCaller]] = request.param
    async with make(database.dsn) as caller:
        yield caller


# --- synchronous -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write_first", [False, True], ids=["start first", "write first"])
@pytest.mark.parametrize("id", [None, "b-chosen"], ids=["plain", "chosen"])
def test_commit_and_rollback(
    client: Client, caller: Caller, database: Database, write_first: bool, id: str | None
) -> None:
    """The start and the caller's row stand together or not at all, whichever is written first."""
    for end, left in ((caller.rollback, 1), (caller.commit, 3)):
        if write_first:
            caller.write()
        client.start_chain(work, 1, id=id, connection=caller.given)
        if not write_first:
            caller.write()
        assert database.committed() == ["a-taken"]
        end()
        assert len(database.committed()) == left


def test_only_a_start(client: Client, caller: Caller, database: Database) -> None:
    """A start is enough for the caller's commit to have something to commit."""
    client.start_chain(work, 1, id="b", connection=caller.given)
    assert database.committed() == ["a-taken"]
    caller.commit()
    assert database.committed() == ["a-taken", "b"]


def test_a_conflict_does_not_spoil_the_transaction(client: Client, caller: Caller, database: Database) -> None:
    caller.write()
    with pytest.raises(JobIdConflictError):
        client.start_chains([NewChain(work, 1, id="b"), NewChain(work, 1, id="a-taken")], connection=caller.given)
    client.start_chain(work, 1, id="c", connection=caller.given)
    caller.write()
    caller.commit()
    assert database.committed() == ["a-taken", "c", "mine", "mine"]


def test_a_savepoint_that_is_rolled_back(client: Client, caller: Caller, database: Database) -> None:
    client.start_chain(work, 1, id="b", connection=caller.given)
    with caller.undone():
        client.start_chain(work, 1, id="c", connection=caller.given)
        caller.write()
    client.start_chain(work, 1, id="d", connection=caller.given)
    caller.commit()
    assert database.committed() == ["a-taken", "b", "d"]


def test_other_writes_join_the_transaction_too(client: Client, caller: Caller) -> None:
    for end, left in ((caller.rollback, ChainStatus.OPEN), (caller.commit, ChainStatus.CANCELLED)):
        client.cancel_chains(["a-taken"], reason="not wanted", connection=caller.given)
        assert client.get_chain("a-taken").status is ChainStatus.OPEN
        end()
        assert client.get_chain("a-taken").status is left


# --- asynchronous ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write_first", [False, True], ids=["start first", "write first"])
@pytest.mark.parametrize("id", [None, "b-chosen"], ids=["plain", "chosen"])
async def test_async_commit_and_rollback(
    async_client: AsyncClient, async_caller: AsyncCaller, database: Database, write_first: bool, id: str | None
) -> None:
    for end, left in ((async_caller.rollback, 1), (async_caller.commit, 3)):
        if write_first:
            await async_caller.write()
        await async_client.start_chain(work, 1, id=id, connection=async_caller.given)
        if not write_first:
            await async_caller.write()
        assert database.committed() == ["a-taken"]
        await end()
        assert len(database.committed()) == left


async def test_async_only_a_start(async_client: AsyncClient, async_caller: AsyncCaller, database: Database) -> None:
    await async_client.start_chain(work, 1, id="b", connection=async_caller.given)
    assert database.committed() == ["a-taken"]
    await async_caller.commit()
    assert database.committed() == ["a-taken", "b"]


async def test_an_async_conflict_does_not_spoil_the_transaction(
    async_client: AsyncClient, async_caller: AsyncCaller, database: Database
) -> None:
    await async_caller.write()
    with pytest.raises(JobIdConflictError):
        await async_client.start_chain(work, 1, id="a-taken", connection=async_caller.given)
    await async_client.start_chain(work, 1, id="c", connection=async_caller.given)
    await async_caller.write()
    await async_caller.commit()
    assert database.committed() == ["a-taken", "c", "mine", "mine"]


async def test_an_async_savepoint_that_is_rolled_back(
    async_client: AsyncClient, async_caller: AsyncCaller, database: Database
) -> None:
    await async_client.start_chain(work, 1, id="b", connection=async_caller.given)
    async with async_caller.undone():
        await async_client.start_chain(work, 1, id="c", connection=async_caller.given)
        await async_caller.write()
    await async_client.start_chain(work, 1, id="d", connection=async_caller.given)
    await async_caller.commit()
    assert database.committed() == ["a-taken", "b", "d"]


async def test_other_async_writes_join_the_transaction_too(
    async_client: AsyncClient, async_caller: AsyncCaller
) -> None:
    for end, left in ((async_caller.rollback, ChainStatus.OPEN), (async_caller.commit, ChainStatus.CANCELLED)):
        await async_client.cancel_chains(["a-taken"], reason="not wanted", connection=async_caller.given)
        assert (await async_client.get_chain("a-taken")).status is ChainStatus.OPEN
        await end()
        assert (await async_client.get_chain("a-taken")).status is left


# --- autocommit and pools --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", [None, "b"], ids=["plain", "chosen"])
def test_in_autocommit_a_start_stands_at_once(client: Client, database: Database, id: str | None) -> None:
    with callers.engine(database.dsn, isolation_level="AUTOCOMMIT") as engine, engine.connect() as connection:
        client.start_chain(work, 1, id=id, connection=connection)
        assert len(database.committed()) == 2
        with Session(engine) as session:
            client.start_chain(work, 1, connection=session)
            assert len(database.committed()) == 3
    with callers.django_database(database.dsn) as django:
        client.start_chain(work, 1, connection=django)
        assert len(database.committed()) == 4


def test_a_pool_lends_a_connection(client: Client, database: Database) -> None:
    """The start commits by itself, all or nothing, and the connection goes back as it was."""
    with ConnectionPool(database.dsn, min_size=1, max_size=1, open=True) as pool:
        client.start_chain(work, 1, connection=pool)
        client.start_chain(work, 1, id="b", connection=pool)
        assert len(database.committed()) == 3
        with pytest.raises(JobIdConflictError):
            client.start_chains([NewChain(work, 1, id="c"), NewChain(work, 1, id="b")], connection=pool)
        assert len(database.committed()) == 3
        with pool.connection(timeout=10) as connection:
            assert connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE


async def test_an_async_pool_lends_a_connection(async_client: AsyncClient, database: Database) -> None:
    async with AsyncConnectionPool(database.dsn, min_size=1, max_size=1, open=False) as pool:
        await async_client.start_chain(work, 1, id="b", connection=pool)
        with pytest.raises(JobIdConflictError):
            await async_client.start_chain(work, 1, id="b", connection=pool)
        assert database.committed() == ["a-taken", "b"]


def test_a_pool_with_nothing_to_lend(client: Client, database: Database) -> None:
    with (
        ConnectionPool(database.dsn, min_size=1, max_size=1, timeout=0.01, open=True) as pool,
        pool.connection(timeout=10),
        pytest.raises(StateUnavailableError),
    ):
        client.start_chain(work, 1, connection=pool)


# --- what the caller's library keeps an eye on -----------------------------------------------------------------------


def test_a_broken_atomic_block_is_refused(client: Client, database: Database) -> None:
    """Django allows no statement after an error in ``atomic``, and neither does a start: it would be rolled back."""
    with callers.django_database(database.dsn), transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic(savepoint=False):
            raise ZeroDivisionError
        with pytest.raises(TransactionManagementError):
            client.start_chain(work, 1, id="b", connection=connections["default"])
    assert database.committed() == ["a-taken"]


def test_on_commit_of_django_sees_the_chain(client: Client, database: Database) -> None:
    seen: list[list[str]] = []
    with callers.django_database(database.dsn), transaction.atomic():
        transaction.on_commit(lambda: seen.append(database.committed()))
        client.start_chain(work, 1, id="b", connection=connections["default"])
        seen.append(database.committed())
    assert seen == [["a-taken"], ["a-taken", "b"]]


# --- what is refused -------------------------------------------------------------------------------------------------


def test_the_other_mode(client: Client, database: Database) -> None:
    """The error says which client to take."""
    made = async_engine(callers.sqlalchemy_url(database.dsn))
    on_asyncpg = async_engine(callers.sqlalchemy_url(database.dsn, "postgresql+asyncpg"))
    pool = AsyncConnectionPool(database.dsn, open=False)
    for given in (AsyncSession(made), made.connect(), AsyncSession(on_asyncpg), pool):
        with pytest.raises(UnsupportedConnectionError, match="use an AsyncClient with it"):
            client.start_chain(work, 1, connection=given)  # type: ignore[arg-type]


async def test_the_other_async_mode(async_client: AsyncClient, database: Database) -> None:
    pool = ConnectionPool(database.dsn, open=False)
    with (
        callers.engine(database.dsn) as engine,
        Session(engine) as session,
        engine.connect() as connection,
    ):
        for given in (session, connection, pool):
            with pytest.raises(UnsupportedConnectionError, match="use a Client with it"):
                await async_client.start_chain(work, 1, connection=given)  # type: ignore[arg-type]
        assert not session.in_transaction()


def test_django_is_synchronous(database: Database) -> None:
    async def start(given: Any) -> None:
        async with AsyncClient(PostgresState(database.dsn), JOB_TYPES) as client:
            await client.start_chain(work, 1, connection=given)

    with callers.django_database(database.dsn) as django:
        with pytest.raises(UnsupportedConnectionError, match="use a Client with it"):
            asyncio.run(start(django))
        assert django.connection is None, "it was not even connected"


async def test_a_synchronous_session_inside_an_asynchronous_one(client: Client, database: Database) -> None:
    made = async_engine(callers.sqlalchemy_url(database.dsn))
    async with AsyncSession(made) as session:
        with pytest.raises(UnsupportedConnectionError, match=r"AsyncConnection \(use an AsyncClient"):
            await session.run_sync(lambda inner: client.start_chain(work, 1, connection=inner))
    await made.dispose()


@pytest.mark.parametrize("given", [object(), "postgresql://", 5], ids=["object", "text", "number"])
def test_something_else(client: Client, given: Any) -> None:
    with pytest.raises(UnsupportedConnectionError, match=r"takes a connection or cursor of psycopg 3 or psycopg2"):
        client.start_chain(work, 1, connection=given)


def test_other_databases_and_drivers(client: Client, database: Database) -> None:
    sqlite = create_engine("sqlite://")
    with sqlite.connect() as connection, pytest.raises(UnsupportedConnectionError, match=r"on sqlite3\.Connection"):
        client.start_chain(work, 1, connection=connection)
    with pytest.raises(UnsupportedConnectionError, match="Engine"):
        client.start_chain(work, 1, connection=sqlite)  # type: ignore[arg-type]
    sqlite.dispose()
    assert database.committed() == ["a-taken"]
