"""The memory of a connection that was lost: it is free at once, and does not wait for the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from weakref import ref

import psycopg
import pytest

from queuert import PostgresState
from queuert.errors import StateUnavailableError
from queuert.state.postgres.protocol import AsyncPooledConnection, ConnectionState, PooledConnection


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def connections(kind: type[ConnectionState]) -> list[ref[ConnectionState]]:
    """Weak references, as the list of all objects would keep them."""
    return [ref(one) for one in gc.get_objects() if issubclass(type(one), kind)]


def end_sessions(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@pytest.mark.usefixtures("without_collector")
async def test_lost_connections_of_coroutines_are_freed(dsn: str) -> None:
    before = [one() for one in connections(AsyncPooledConnection)]
    store = PostgresState(dsn).async_store(max_connections=1)
    await store.open()
    await store.count_jobs()
    lost = [one for one in connections(AsyncPooledConnection) if one() not in before]
    assert lost
    end_sessions(dsn)
    try:
        await store.count_jobs()
    except StateUnavailableError:
        await store.count_jobs()
    await store.aclose()
    assert [one() for one in lost if one() is not None] == []


@pytest.mark.usefixtures("without_collector")
def test_lost_connections_of_threads_are_freed(dsn: str) -> None:
    before = [one() for one in connections(PooledConnection)]
    store = PostgresState(dsn).sync_store(max_connections=1)
    store.open()
    store.count_jobs()
    lost = [one for one in connections(PooledConnection) if one() not in before]
    assert lost
    end_sessions(dsn)
    try:
        store.count_jobs()
    except StateUnavailableError:
        store.count_jobs()
    store.close()
    assert [one() for one in lost if one() is not None] == []
