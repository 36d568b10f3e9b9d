"""Starts on the caller's own connection, whatever its mode, its state and its settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from queuert.deduplication import Deduplicate
from queuert.errors import ChainNotFoundError, JobIdConflictError, UnsupportedConnectionError
from queuert.jobs import JobStatus
from queuert.notify import encoding
from queuert.state import Store
from queuert.state.postgres import PostgresState
from queuert.state.types import NewJob
from tests.support.waiting import WAIT


@pytest.fixture
def store(dsn: str) -> Iterator[Store]:
    store = PostgresState(dsn).sync_store()
    store.open()
    yield store
    store.close()


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn) as connection:
        with_dictionaries(connection)
        yield connection


@pytest.fixture
def autocommit(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def with_dictionaries(connection: Any) -> None:
    connection.row_factory = dict_row


def chosen(id: str, *blockers: str) -> NewJob:
    return NewJob(id, "work", "{}", blockers=blockers, id_chosen=True)


def plain(id: str) -> NewJob:
    return NewJob(id, "work", "{}")


def there(store: Store, *ids: str) -> list[str]:
    return [job.id for job in store.get_jobs(ids) if job]


@pytest.mark.parametrize("job", [plain("a"), chosen("a"), chosen("a", "root")], ids=["plain", "chosen", "blocked"])
@pytest.mark.parametrize("begun", [False, True])
def test_in_the_callers_transaction(
    store: Store, connection: psycopg.Connection[Any], job: NewJob, begun: bool
) -> None:
    """Whether or not the caller ran a statement before, the start belongs to the transaction that the caller ends."""
    store.start_jobs([chosen("root")])
    for end, found in ((connection.rollback, []), (connection.commit, ["a"])):
        if begun:
            connection.execute("SELECT 1")
        store.start_jobs([job], connection=connection)
        assert connection.info.transaction_status is TransactionStatus.INTRANS
        assert there(store, "a") == []
        end()
        assert there(store, "a") == found


@pytest.mark.parametrize("job", [plain("a"), chosen("a"), chosen("a", "root")], ids=["plain", "chosen", "blocked"])
def test_in_autocommit(store: Store, autocommit: psycopg.Connection[Any], job: NewJob) -> None:
    """Without a transaction of the caller's, the start stands at once."""
    store.start_jobs([chosen("root")])
    store.start_jobs([job], connection=autocommit)
    assert autocommit.info.transaction_status is TransactionStatus.IDLE
    assert there(store, "a") == ["a"]


def test_conflict_in_autocommit(store: Store, autocommit: psycopg.Connection[Any]) -> None:
    store.start_jobs([chosen("taken")])
    with pytest.raises(JobIdConflictError):
        store.start_jobs([chosen("a"), chosen("taken")], connection=autocommit)
    assert autocommit.info.transaction_status is TransactionStatus.IDLE
    assert there(store, "a") == []


def test_inside_a_transaction_block(store: Store, autocommit: psycopg.Connection[Any]) -> None:
    with autocommit.transaction(force_rollback=True):
        store.start_jobs([chosen("a")], connection=autocommit)
    assert there(store, "a") == []
    with autocommit.transaction():
        store.start_jobs([chosen("a")], connection=autocommit)
    assert there(store, "a") == ["a"]


def test_inside_a_savepoint_that_rolls_back(store: Store, connection: psycopg.Connection[Any]) -> None:
    store.start_jobs([chosen("before")], connection=connection)
    with connection.transaction(force_rollback=True):
        store.start_jobs([chosen("inside"), chosen("waits", "before")], connection=connection)
    store.start_jobs([chosen("after")], connection=connection)
    connection.commit()
    assert there(store, "before", "inside", "waits", "after") == ["before", "after"]


@pytest.mark.parametrize("refused", [chosen("taken"), chosen("a", "nobody")], ids=["conflict", "unknown blocker"])
def test_refusals_do_not_spoil_the_transaction(
    store: Store, connection: psycopg.Connection[Any], refused: NewJob
) -> None:
    store.start_jobs([chosen("taken")])
    store.start_jobs([plain("mine")], connection=connection)
    with pytest.raises((JobIdConflictError, ChainNotFoundError)):
        store.start_jobs([chosen("beside"), refused], connection=connection)
    assert connection.info.transaction_status is TransactionStatus.INTRANS
    connection.commit()
    assert there(store, "mine", "beside", "a") == ["mine"]


def test_from_a_cursor(store: Store, connection: psycopg.Connection[Any]) -> None:
    with connection.cursor(row_factory=dict_row) as cursor:
        [started] = store.start_jobs([chosen("a")], connection=cursor)
        assert (started.id, started.status) == ("a", JobStatus.READY)
        assert cursor.execute("SELECT count(*) AS n FROM queuert.job").fetchone() == {"n": 1}
    connection.rollback()
    assert there(store, "a") == []


@pytest.mark.parametrize("job", [plain("a"), chosen("a"), chosen("a", "root")], ids=["plain", "chosen", "blocked"])
def test_inside_a_pipeline(store: Store, connection: psycopg.Connection[Any], job: NewJob) -> None:
    store.start_jobs([chosen("root")])
    with connection.pipeline():
        connection.execute("SELECT 1")
        [started] = store.start_jobs([job], connection=connection)
        assert started.id == "a"
    assert there(store, "a") == []
    connection.commit()
    assert there(store, "a") == ["a"]


def test_inside_a_pipeline_of_a_connection_in_autocommit(store: Store, dsn: str) -> None:
    """A start with a key has a transaction of its own there."""
    keyed = NewJob("a", "work", "{}", deduplication=Deduplicate("k"))
    with psycopg.connect(dsn, autocommit=True) as connection, connection.pipeline():
        [started] = store.start_jobs([keyed], connection=connection)
        [again] = store.start_jobs([keyed], connection=connection)
        store.cancel_chains(["a"], reason="for a test", connection=connection)
        store.retry_chains(["a"], connection=connection)
    assert (started.id, again.existing) == ("a", True)
    assert there(store, "a") == ["a"]


def test_nothing_params_touches_nothing(store: Store, connection: psycopg.Connection[Any]) -> None:
    assert store.start_jobs([], connection=connection) == []
    assert connection.info.transaction_status is TransactionStatus.IDLE


async def test_asynchronous_connections(dsn: str) -> None:
    """The other mode: connection, cursor, transaction, rollback and dictionaries."""
    store = PostgresState(dsn).async_store()
    await store.open()
    try:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            with_dictionaries(connection)
            await store.start_jobs([chosen("lost")], connection=connection)
            await connection.rollback()
            async with connection.cursor() as cursor:
                await store.start_jobs([chosen("kept")], connection=cursor)
                await store.start_jobs([chosen("waits", "kept")], connection=cursor)
            with pytest.raises(JobIdConflictError):
                await store.start_jobs([chosen("kept")], connection=connection)
            await connection.commit()
            async with connection.pipeline():
                await store.start_jobs([chosen("piped")], connection=connection)
        found = await store.get_jobs(["lost", "kept", "waits", "piped"])
        assert [job.id for job in found if job] == ["kept", "waits", "piped"]
    finally:
        await store.aclose()


async def test_the_other_mode_is_refused(dsn: str, store: Store, connection: psycopg.Connection[Any]) -> None:
    other = PostgresState(dsn).async_store()
    await other.open()
    try:
        async with await psycopg.AsyncConnection.connect(dsn) as asynchronous:
            for thing in (asynchronous, asynchronous.cursor(), object()):
                with pytest.raises(UnsupportedConnectionError, match="psycopg"):
                    store.start_jobs([plain("a")], connection=thing)
            for thing in (connection, connection.cursor(), dsn):
                with pytest.raises(UnsupportedConnectionError, match="psycopg"):
                    await other.start_jobs([plain("a")], connection=thing)
    finally:
        await other.aclose()
    assert connection.info.transaction_status is TransactionStatus.IDLE


def test_notifications_go_out_with_the_commit_only(store: Store, dsn: str, connection: psycopg.Connection[Any]) -> None:
    """One notification a type and transaction, after the commit; none of what was rolled back."""
    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute("LISTEN queuert_jobs")
        store.start_jobs([NewJob("a", "lost", "{}")], connection=connection)
        connection.rollback()
        store.start_jobs([NewJob(f"b{n}", "kept", "{}") for n in range(3)], connection=connection)
        store.start_jobs([NewJob("c", "kept", "{}"), NewJob("d", "other", "{}")], connection=connection)
        listener.execute("NOTIFY queuert_jobs, 'before the commit'")
        connection.commit()
        listener.execute("NOTIFY queuert_jobs, 'end'")
        notifications = []
        for notification in listener.notifies(timeout=WAIT):
            if notification.payload == "end":
                break
            notifications.append(notification.payload)
    assert notifications[0] == "before the commit"
    assert set().union(*(encoding.decode(notification) or {"anything"} for notification in notifications[1:])) == {
        "kept",
        "other",
    }
