"""Stores that are closed, or whose callers are cancelled, while something is under way: nothing stays open."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest
import redis.asyncio

from queuert.state.postgres import PostgresState
from queuert.state.postgres.pool import AsyncConnections, Connections
from queuert.state.postgres.protocol import AsyncPooledConnection
from queuert.state.postgres.settings import PostgresSettings
from queuert.state.redis import RedisState
from queuert.state.sync_store import Store
from queuert.state.threaded import threaded
from queuert.testing.conformance.builders import started_and_claimed, stolen

WAIT = 20.0


async def in_time(event: asyncio.Event) -> None:
    async with asyncio.timeout(WAIT):
        await event.wait()


# --- Postgres ---------------------------------------------------------------------------------------------------------


async def test_who_is_cancelled_while_a_block_is_refused_gives_the_connection_back(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    roll_back, rolling_back = AsyncPooledConnection.rollback, asyncio.Event()

    async def slowly(connection: AsyncPooledConnection) -> None:
        if not rolling_back.is_set():
            rolling_back.set()
            await asyncio.Future()
        await roll_back(connection)

    store = PostgresState(dsn).async_store(max_connections=1)
    await store.open()
    [claimed] = await started_and_claimed(store)
    monkeypatch.setattr(AsyncPooledConnection, "rollback", slowly)

    async def enter() -> None:
        async with store.transaction(stolen(claimed)):
            raise AssertionError("it has no lease")

    entering = asyncio.create_task(enter())
    await in_time(rolling_back)
    entering.cancel()
    # The error is kept, and with it all that it came through.
    [refused] = await asyncio.gather(entering, return_exceptions=True)
    async with asyncio.timeout(WAIT):
        await started_and_claimed(store)
    await store.aclose()
    assert isinstance(refused, asyncio.CancelledError)


async def test_a_connection_goes_back_to_the_pool_that_it_is_from(dsn: str) -> None:
    connections = AsyncConnections(PostgresSettings(dsn, "queuert"), 1)
    await connections.open()
    async with connections.raw_connection() as connection:
        await connections.aclose()
        await connections.open()
    assert connection.closed
    async with connections.connection() as another:
        await another.execute("SELECT 1")
    await connections.aclose()


async def test_who_is_cancelled_while_giving_a_connection_back_does_so(dsn: str) -> None:
    connections = AsyncConnections(PostgresSettings(dsn, "queuert"), 1)
    await connections.open()
    taken, leave = asyncio.Event(), asyncio.Event()

    async def use() -> None:
        async with connections.raw_connection():
            taken.set()
            await leave.wait()

    using = asyncio.create_task(use())
    await in_time(taken)
    lock: Any = cast(Any, connections)._pool._lock
    async with lock:
        leave.set()
        async with asyncio.timeout(WAIT):
            while not lock._waiters:  # noqa: ASYNC110
                await asyncio.sleep(0)
        using.cancel()
        await asyncio.sleep(0)
    [left] = await asyncio.gather(using, return_exceptions=True)
    assert isinstance(left, asyncio.CancelledError)
    async with asyncio.timeout(WAIT), connections.connection() as connection:
        await connection.execute("SELECT 1")
    await connections.aclose()


def test_a_synchronous_connection_goes_back_to_the_pool_that_it_is_from(dsn: str) -> None:
    connections = Connections(PostgresSettings(dsn, "queuert"), 1)
    connections.open()
    with connections.raw_connection() as connection:
        connections.close()
        connections.open()
    assert connection.closed
    with connections.connection() as another:
        another.execute("SELECT 1")
    connections.close()


# --- Redis ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[redis.asyncio.Connection]:
    """The connections that are made."""
    made: list[redis.asyncio.Connection] = []
    connect: Any = redis.asyncio.Connection._connect

    async def note(connection: redis.asyncio.Connection) -> None:
        made.append(connection)
        await connect(connection)

    monkeypatch.setattr(redis.asyncio.Connection, "_connect", note)
    return made


async def test_what_connects_while_the_store_is_closed_is_closed_too(
    redis_url: str, made: list[redis.asyncio.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RedisState(redis_url).async_store(max_connections=2)
    await store.open()
    connect: Any = redis.asyncio.Connection._connect
    connecting, closed = asyncio.Event(), asyncio.Event()

    async def slowly(connection: redis.asyncio.Connection) -> None:
        connecting.set()
        await in_time(closed)
        await connect(connection)

    monkeypatch.setattr(redis.asyncio.Connection, "_connect", slowly)
    calls = [asyncio.create_task(store.count_jobs(["work"])) for _ in range(2)]  # One connection is there already.
    await in_time(connecting)
    await store.aclose()
    closed.set()
    await asyncio.gather(*calls, return_exceptions=True)
    assert len(made) > 1
    assert not [one for one in made if one.is_connected]


async def test_who_is_cancelled_while_closing_leaves_no_connection(
    redis_url: str, made: list[redis.asyncio.Connection]
) -> None:
    store = RedisState(redis_url).async_store(max_connections=2)
    await store.open()
    closing = asyncio.create_task(store.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert made
    assert not [one for one in made if one.is_connected]


# --- stores on threads ------------------------------------------------------------------------------------------------


class Slow:
    """A store that opens when it is told to."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.reported = threading.Event()
        self.is_open = False

    def open(self) -> None:
        self.wait()
        self.is_open = True

    def wait(self) -> None:
        self.begun.set()
        self.reported.wait(WAIT)

    def close(self) -> None:
        self.is_open = False


async def test_who_is_cancelled_while_a_file_is_opened_leaves_it_closed() -> None:
    slow = Slow()
    store = threaded(cast("Store", slow), threads=2)
    opening = asyncio.create_task(store.open())
    await asyncio.to_thread(slow.begun.wait, WAIT)
    opening.cancel()
    await asyncio.sleep(0)
    slow.reported.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    for thread in threading.enumerate():
        if thread.name.startswith("queuert-store"):
            await asyncio.to_thread(thread.join, WAIT)
    assert not slow.is_open


async def test_who_is_cancelled_while_a_file_is_closed_leaves_it_closed() -> None:
    slow = Slow()
    slow.is_open = True
    store: Any = threaded(cast("Store", slow), threads=1)
    waiting = asyncio.create_task(store.wait())
    await asyncio.to_thread(slow.begun.wait, WAIT)
    closing = asyncio.create_task(store.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.sleep(0)
    slow.reported.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await waiting
    assert not slow.is_open
