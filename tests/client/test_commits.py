"""What is told of starts in transactions of callers: nothing that is rolled back counts as started."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from psycopg_pool import ConnectionPool
from sqlalchemy.orm import Session

from queuert import AsyncClient, Client, JobType, JobTypes, PostgresState
from queuert.observability import ObservabilityAdapter
from queuert.observability.events import ChainClosed, ChainsDeleted, ChainStarted
from queuert.observability.otel import OTelObservability
from queuert.state.sqlite import SQLiteState
from queuert.testing.events import EventLog
from tests.client import callers
from tests.client.callers import ASYNC_CALLERS, CALLERS, AsyncCaller, Caller

work = JobType("work", input=int, output=int)
JOB_TYPES = JobTypes(work)
TELL_OF_COMMITS = {"sqlalchemy_session", "sqlalchemy_scoped_session", "async_sqlalchemy_session"} | {
    "async_sqlalchemy_scoped_session", "django_connection", "django_proxy", "django_cursor",
    "sqlalchemy_session_on_psycopg2", "async_sqlalchemy_session_on_asyncpg",
}  # fmt: skip


class Reported:
    """What a client told of starts: the log, and the metrics."""

    def __init__(self) -> None:
        self.log = EventLog()
        self._reader = InMemoryMetricReader()
        self.observers: list[ObservabilityAdapter] = [self.log, OTelObservability(MeterProvider([self._reader]))]

    def starts(self) -> list[tuple[str, bool]]:
        """The chains, and whether they are committed."""
        return [(event.chain_id, event.committed) for event in self.log.of(ChainStarted)]

    def counted(self, name: str = "queuert.chain.started") -> int:
        """A counter of the metrics."""
        data = self._reader.get_metrics_data()
        resources = data.resource_metrics if data else []
        metrics = [metric for one in resources for scope in one.scope_metrics for metric in scope.metrics]
        found: list[Any] = [point for metric in metrics if metric.name == name for point in metric.data.data_points]
        return sum(point.value for point in found)


@pytest.fixture
def reported() -> Reported:
    return Reported()


@pytest.fixture
def client(dsn: str, reported: Reported) -> Iterator[Client]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table mine (name text)")
    with Client(PostgresState(dsn), JOB_TYPES, observability=reported.observers) as client:
        yield client


@pytest.fixture
async def async_client(dsn: str, reported: Reported) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(PostgresState(dsn), JOB_TYPES, observability=reported.observers) as client:
        yield client


@pytest.fixture(params=CALLERS, ids=lambda make: make.__name__)
def made(request: pytest.FixtureRequest, dsn: str) -> Iterator[tuple[str, Caller]]:
    make: Callable[[str], AbstractContextManager[Caller]] = request.param
    with make(dsn) as caller:
        yield request.param.__name__, caller


@pytest.fixture(params=ASYNC_CALLERS, ids=lambda make: make.__name__)
async def async_made(request: pytest.FixtureRequest, dsn: str) -> AsyncIterator[tuple[str, AsyncCaller]]:
    make: Callable[[str], AbstractAsyncContextManager[AsyncCaller]] = request.param
    async with make(dsn) as caller:
        yield request.param.__name__, caller


def test_a_start_that_is_rolled_back_is_not_counted_as_started(
    client: Client, made: tuple[str, Caller], reported: Reported
) -> None:
    """Who knows when a transaction commits is told then, anybody else at once that it has not."""
    name, caller = made
    client.start_chain(work, 1, id="undone", connection=caller.given)
    at_once = [] if name in TELL_OF_COMMITS else [("undone", False)]
    assert reported.starts() == at_once
    caller.rollback()
    assert (reported.starts(), reported.counted()) == (at_once, 0)
    client.start_chain(work, 1, id="done", connection=caller.given)
    caller.commit()
    committed = name in TELL_OF_COMMITS
    assert reported.starts() == [*at_once, ("done", committed)]
    assert (reported.counted(), reported.counted("queuert.chain.start_pending")) == ((1, 0) if committed else (0, 2))


def test_a_start_in_a_savepoint_that_is_rolled_back_is_not_reported_of(
    client: Client, made: tuple[str, Caller], reported: Reported
) -> None:
    """Though the transaction around it commits."""
    name, caller = made
    client.start_chain(work, 1, id="before", connection=caller.given)
    with caller.undone():
        client.start_chain(work, 1, id="undone", connection=caller.given)
    client.start_chain(work, 1, id="after", connection=caller.given)
    caller.commit()
    ids = ["before", "after"] if name in TELL_OF_COMMITS else []
    assert [id for id, committed in reported.starts() if committed] == ids


async def test_an_asynchronous_start_that_is_rolled_back_is_not_counted_as_started(
    async_client: AsyncClient, async_made: tuple[str, AsyncCaller], reported: Reported
) -> None:
    """Both modes tell the same."""
    name, caller = async_made
    await async_client.start_chain(work, 1, id="undone", connection=caller.given)
    await caller.rollback()
    assert reported.counted() == 0
    await async_client.start_chain(work, 1, id="done", connection=caller.given)
    await caller.commit()
    committed = name in TELL_OF_COMMITS
    assert [id for id, known in reported.starts() if known] == (["done"] if committed else [])
    assert reported.counted() == committed


def test_what_commits_by_itself_is_reported_at_once(client: Client, reported: Reported, dsn: str) -> None:
    """A connection of the client's own, one in autocommit, a pool's, Django's outside of ``atomic``."""
    client.start_chain(work, 1, id="a")
    with psycopg.connect(dsn, autocommit=True) as connection:
        client.start_chain(work, 1, id="b", connection=connection)
        client.start_chain(work, 1, id="c", connection=connection.cursor())
    with ConnectionPool(dsn, min_size=1, max_size=1, open=True) as pool:
        client.start_chain(work, 1, id="d", connection=pool)
    with callers.engine(dsn, isolation_level="AUTOCOMMIT") as engine, engine.connect() as core:
        client.start_chain(work, 1, id="e", connection=core)
    with callers.django_database(dsn) as django:
        client.start_chain(work, 1, id="f", connection=django)
    assert reported.starts() == [(id, True) for id in "abcdef"]
    assert reported.counted() == 6


def test_a_session_that_is_closed_without_a_commit_tells_nothing(client: Client, reported: Reported, dsn: str) -> None:
    """Neither then, nor at the commit of its next transaction."""
    with callers.engine(dsn) as engine, Session(engine) as session:
        client.start_chain(work, 1, id="undone", connection=session)
        session.close()
        client.start_chain(work, 1, id="done", connection=session)
        session.commit()
        session.commit()
    assert reported.starts() == [("done", True)]


def test_a_start_in_a_savepoint_within_one_that_is_rolled_back(client: Client, reported: Reported, dsn: str) -> None:
    """It was released, but what is around it was undone."""
    with callers.engine(dsn) as engine, Session(engine) as session:
        outer = session.begin_nested()
        with session.begin_nested():
            client.start_chain(work, 1, id="undone", connection=session)
        outer.rollback()
        session.commit()
    assert reported.starts() == []


def test_what_clients_do_to_chains_is_reported_after_the_commit_too(
    client: Client, reported: Reported, dsn: str
) -> None:
    """Cancelled and deleted ones as well."""
    client.start_chain(work, 1, id="a")
    with callers.engine(dsn) as engine, Session(engine) as session:
        client.cancel_chain("a", connection=session)
        session.rollback()
        assert (reported.log.of(ChainClosed), reported.counted("queuert.chain.closed")) == ([], 0)
        client.cancel_chain("a", connection=session)
        client.delete_chain("a", connection=session)
        session.commit()
    assert [event.committed for event in reported.log.of(ChainClosed)] == [True]
    assert [event.committed for event in reported.log.of(ChainsDeleted)] == [True]
    assert reported.counted("queuert.chain.closed") == 1


def test_a_start_on_sqlite_within_a_transaction_is_not_counted_as_started(reported: Reported, tmp_path: Path) -> None:
    """``sqlite3`` says nothing of a commit; in autocommit there is nothing to wait for."""
    path = tmp_path / "queue.db"
    with Client(SQLiteState(path), JOB_TYPES, observability=reported.observers) as client:
        client.open()
        with closing(sqlite3.connect(path)) as connection:
            client.start_chain(work, 1, id="undone", connection=connection)
            connection.rollback()
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            client.start_chain(work, 1, id="done", connection=connection.cursor())
    assert reported.starts() == [("undone", False), ("done", True)]
