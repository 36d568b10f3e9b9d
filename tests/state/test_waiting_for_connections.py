"""Calls that wait for a connection of the pool, above all while the server is away."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
from psycopg_pool.pool import WaitingClient

from queuert.errors import ClosedError, StateUnavailableError
from queuert.state.postgres import pool as pools
from queuert.state.postgres import protocol
from queuert.state.postgres.pool import AsyncConnections, AsyncReconnects, Connections, Reconnects
from queuert.state.postgres.settings import PostgresSettings
from queuert.testing.conformance.builders import eventually
from queuert.testing.fault_proxy import FaultProxy

WAIT = 60.0
CALLS = 3


@pytest.fixture
def proxy(dsn: str) -> Iterator[FaultProxy]:
    with FaultProxy.before(dsn) as proxy:
        yield proxy


class Tries:
    """Counts the tries to connect that have failed."""

    def __init__(self, connections: AsyncConnections | Connections, monkeypatch: pytest.MonkeyPatch) -> None:
        self._number = 0
        self._changed = threading.Condition()
        self._add = connections._failures.add
        monkeypatch.setattr(connections._failures, "add", self.add)

    def add(self, error: psycopg.Error) -> None:
        self._add(error)
        with self._changed:
            self._number += 1
            self._changed.notify_all()

    def wait_for(self, number: int) -> None:
        """Wait until so many have failed since the beginning."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._number >= number, WAIT)

    def wait_for_more(self, number: int) -> None:
        """Wait until so many more have failed."""
        self.wait_for(self._number + number)


def waiting(connections: AsyncConnections | Connections) -> int:
    assert connections.use is not None
    return connections.use.waiting


def queue(connections: AsyncConnections | Connections) -> deque[Any]:
    """The pool's own queue."""
    waiting: deque[Any] = cast(Any, connections)._pool._waiting
    return waiting


# --- async ------------------------------------------------------------------------------------------------------------


async def opened(dsn: str, proxy: FaultProxy, answer_timeout: float) -> AsyncConnections:
    """A pool of one connection."""
    settings = PostgresSettings(proxy.address_in(dsn), "queuert", answer_timeout=answer_timeout)
    connections = AsyncConnections(settings, 1)
    await connections.open()
    async with connections.connection() as connection:
        await connection.execute("SELECT 1")
    return connections


async def cut_off(dsn: str, proxy: FaultProxy, answer_timeout: float) -> AsyncConnections:
    """A pool of one connection, which it has lost and cannot replace."""
    connections = await opened(dsn, proxy, answer_timeout)
    proxy.refuse()
    proxy.reset()
    with pytest.raises(StateUnavailableError):
        async with connections.connection() as connection:
            await connection.execute("SELECT 1")
    return connections


async def begin(connections: AsyncConnections, order: list[int]) -> list[asyncio.Task[None]]:
    """Begin several calls, one after the other, which wait for a connection."""

    async def call(number: int) -> None:
        async with connections.connection() as connection:
            order.append(number)
            await connection.execute("SELECT 1")

    async def are_waiting(number: int) -> bool:
        return waiting(connections) == number

    calls = []
    for number in range(CALLS):
        calls.append(asyncio.create_task(call(number)))
        await eventually(lambda: are_waiting(len(calls)))
    return calls


async def test_calls_that_wait_out_an_outage_keep_their_places(
    dsn: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections, order = await cut_off(dsn, proxy, WAIT), list[int]()
    tries = Tries(connections, monkeypatch)
    calls = await begin(connections, order)
    await asyncio.to_thread(tries.wait_for_more, 6)
    assert waiting(connections) == len(queue(connections)) == CALLS
    proxy.heal()
    await asyncio.gather(*calls)
    assert order == list(range(CALLS))
    assert waiting(connections) == 0
    await connections.aclose()


@pytest.mark.quick
async def test_a_call_learns_at_once_of_an_outage(dsn: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    # The pool fails to replace the dead connection before the call that put it back waits again.
    connections = await opened(dsn, proxy, WAIT)
    tries, pool = Tries(connections, monkeypatch), connections._pool
    assert pool is not None
    put = pool.putconn

    async def put_and_fail(connection: Any) -> None:
        await put(connection)
        await asyncio.to_thread(tries.wait_for, 1)

    monkeypatch.setattr(pool, "putconn", put_and_fail)
    monkeypatch.setattr(protocol, "_AT_REST", 0.0)
    proxy.refuse()
    proxy.reset()

    async def is_dead() -> bool:
        return pool._pool[0].server_closed

    await eventually(is_dead)
    with pytest.raises(StateUnavailableError, match="refuses new ones"):
        async with connections.connection():
            raise AssertionError("there is none")
    await connections.aclose()


async def test_calls_that_are_cancelled_during_an_outage_leave_nothing(dsn: str, proxy: FaultProxy) -> None:
    connections = await cut_off(dsn, proxy, WAIT)
    first, *others = await begin(connections, [])
    for call in others:
        call.cancel()
    await asyncio.wait(others)
    assert waiting(connections) == len(queue(connections)) == 1
    proxy.heal()
    await first
    await connections.aclose()


async def test_calls_that_time_out_during_an_outage_leave_nothing(dsn: str, proxy: FaultProxy) -> None:
    connections = await cut_off(dsn, proxy, 0.1)
    for _ in range(CALLS):
        with pytest.raises(StateUnavailableError, match=r"no connection within 0\.1 s"):
            async with connections.connection():
                raise AssertionError("there is none")
        assert waiting(connections) == len(queue(connections)) == 0
    await connections.aclose()


async def test_calls_that_wait_when_the_store_is_closed(dsn: str, proxy: FaultProxy) -> None:
    connections = await cut_off(dsn, proxy, WAIT)
    calls = await begin(connections, [])
    await connections.aclose()
    for error in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(error, ClosedError)


async def test_a_pool_whose_tasks_somebody_has_cancelled_is_closed(dsn: str) -> None:
    """As ``for task in asyncio.all_tasks(): task.cancel()`` does: the close is not cancelled, and leaves nothing."""
    connections = AsyncConnections(PostgresSettings(dsn, "queuert", answer_timeout=WAIT), 1)
    await connections.open()
    async with connections.connection() as connection:
        await connection.execute("SELECT 1")
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait(others)
    await connections.aclose()
    assert connection.closed


class Checked:
    """Stands for a pool of psycopg's, with calls that wait or have ended."""

    def __init__(self, *waits: BaseException | None) -> None:
        self._waiting = deque(SimpleNamespace(error=error) for error in waits)
        self.checks = 0


class AsyncChecked(Checked):
    async def check(self) -> None:
        self.checks += 1


class SyncChecked(Checked):
    def check(self) -> None:
        self.checks += 1


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_RECONNECT_EVERY", 0.0)


@pytest.mark.usefixtures("at_once")
async def test_a_pool_connects_again_while_calls_wait() -> None:
    for pool, checks in (AsyncChecked(), 0), (AsyncChecked(TimeoutError()), 0), (AsyncChecked(TimeoutError(), None), 1):
        reconnects = AsyncReconnects()
        # Three connections were lost, and each try to replace one has failed.
        await asyncio.gather(*(reconnects.after_failure(cast(Any, pool)) for _ in range(3)))
        assert pool.checks == checks
        await reconnects.after_failure(cast(Any, pool))
        assert pool.checks == 2 * checks


# --- threads ----------------------------------------------------------------------------------------------------------


def opened_in_threads(dsn: str, proxy: FaultProxy, answer_timeout: float) -> Connections:
    settings = PostgresSettings(proxy.address_in(dsn), "queuert", answer_timeout=answer_timeout)
    connections = Connections(settings, 1)
    connections.open()
    with connections.connection() as connection:
        connection.execute("SELECT 1")
    return connections


def cut_off_in_threads(dsn: str, proxy: FaultProxy, answer_timeout: float) -> Connections:
    connections = opened_in_threads(dsn, proxy, answer_timeout)
    proxy.refuse()
    proxy.reset()
    with pytest.raises(StateUnavailableError), connections.connection() as connection:
        connection.execute("SELECT 1")
    return connections


def until(condition: Callable[[], bool]) -> None:
    async def probe() -> bool:
        return condition()

    asyncio.run(eventually(probe))


def test_threads_that_wait_out_an_outage_keep_their_places(
    dsn: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections, order = cut_off_in_threads(dsn, proxy, WAIT), list[int]()
    tries = Tries(connections, monkeypatch)

    def call(number: int) -> None:
        with connections.connection() as connection:
            order.append(number)
            connection.execute("SELECT 1")

    with ThreadPoolExecutor(CALLS) as threads:
        calls = []
        for number in range(CALLS):
            calls.append(threads.submit(call, number))
            until(lambda: waiting(connections) == len(calls))
        tries.wait_for_more(6)
        assert waiting(connections) == len(queue(connections)) == CALLS
        proxy.heal()
        for one in calls:
            one.result(WAIT)
    assert order == list(range(CALLS))
    assert waiting(connections) == 0
    connections.close()


@pytest.mark.quick
def test_a_thread_learns_at_once_of_an_outage(dsn: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    connections = opened_in_threads(dsn, proxy, WAIT)
    tries, pool = Tries(connections, monkeypatch), connections._pool
    assert pool is not None
    put = pool.putconn

    def put_and_fail(connection: Any) -> None:
        put(connection)
        tries.wait_for(1)

    monkeypatch.setattr(pool, "putconn", put_and_fail)
    monkeypatch.setattr(protocol, "_AT_REST", 0.0)
    proxy.refuse()
    proxy.reset()
    until(lambda: pool._pool[0].server_closed)
    with pytest.raises(StateUnavailableError, match="refuses new ones"), connections.connection():
        raise AssertionError("there is none")
    connections.close()


def test_threads_that_time_out_during_an_outage_leave_nothing(dsn: str, proxy: FaultProxy) -> None:
    connections = cut_off_in_threads(dsn, proxy, 0.1)

    def call(_: int) -> None:
        with pytest.raises(StateUnavailableError), connections.connection():
            raise AssertionError("there is none")

    with ThreadPoolExecutor(CALLS) as threads:
        list(threads.map(call, range(3 * CALLS)))
    assert waiting(connections) == len(queue(connections)) == 0
    connections.close()


def interrupt_a_call(connections: Connections) -> None:
    """Begin a call, and interrupt it, as Ctrl-C does, while it waits for a connection."""

    def interrupt() -> None:
        until(lambda: waiting(connections) == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with ThreadPoolExecutor(1) as threads:
        interrupting = threads.submit(interrupt)
        with pytest.raises(KeyboardInterrupt), connections.connection():
            raise AssertionError("there is none")
        interrupting.result(WAIT)
    assert waiting(connections) == len(queue(connections)) == 0


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where a shell has started the tests with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_a_call_that_is_interrupted_during_an_outage_takes_no_connection(dsn: str, proxy: FaultProxy) -> None:
    connections = cut_off_in_threads(dsn, proxy, WAIT)
    for _ in range(2):
        interrupt_a_call(connections)
    proxy.heal()
    with connections.connection() as connection:
        connection.execute("SELECT 1")
    connections.close()


@pytest.mark.usefixtures("ctrl_c")
def test_a_call_that_is_interrupted_while_others_work_takes_no_connection(dsn: str) -> None:
    connections = Connections(PostgresSettings(dsn, "queuert", answer_timeout=WAIT), 1)
    connections.open()
    with connections.connection():
        interrupt_a_call(connections)
    for _ in range(2):
        with connections.connection() as connection:
            connection.execute("SELECT 1")
    connections.close()


def test_a_connection_that_came_as_the_call_was_interrupted_is_put_back(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = Connections(PostgresSettings(dsn, "queuert", answer_timeout=WAIT), 1)
    connections.open()
    held, waits = threading.Event(), WaitingClient.wait

    def wait(one: Any, timeout: float) -> Any:
        waits(one, timeout)
        raise KeyboardInterrupt

    def hold() -> None:
        with connections.connection():
            held.set()
            until(lambda: waiting(connections) == 1)

    with ThreadPoolExecutor(1) as threads, monkeypatch.context() as patched:
        holding = threads.submit(hold)
        assert held.wait(WAIT)
        patched.setattr(WaitingClient, "wait", wait)
        with pytest.raises(KeyboardInterrupt), connections.connection():
            raise AssertionError("it was interrupted")
        holding.result(WAIT)
    with connections.connection() as connection:
        connection.execute("SELECT 1")
    connections.close()


def test_threads_that_wait_when_the_store_is_closed(dsn: str, proxy: FaultProxy) -> None:
    connections = cut_off_in_threads(dsn, proxy, WAIT)

    def call() -> None:
        with pytest.raises(ClosedError), connections.connection():
            raise AssertionError("there is none")

    with ThreadPoolExecutor(1) as threads:
        calling = threads.submit(call)
        until(lambda: waiting(connections) == 1)
        connections.close()
        calling.result(WAIT)


@pytest.mark.usefixtures("at_once")
def test_a_pool_of_threads_connects_again_while_calls_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    for pool, checks in (SyncChecked(), 0), (SyncChecked(TimeoutError()), 0), (SyncChecked(TimeoutError(), None), 1):
        reconnects = Reconnects()

        def others_fail(_: float, reconnects: Reconnects = reconnects, pool: SyncChecked = pool) -> None:
            for _ in range(2):
                reconnects.after_failure(cast(Any, pool))

        with monkeypatch.context() as patched:
            patched.setattr(pools, "time", SimpleNamespace(sleep=others_fail))
            reconnects.after_failure(cast(Any, pool))
        assert pool.checks == checks
        reconnects.after_failure(cast(Any, pool))
        assert pool.checks == 2 * checks


async def test_a_connection_that_cannot_be_watched_is_put_back(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may have no thread left for the watchdog; the pool must not be one connection short then."""

    def refused(connection: object) -> None:
        raise RuntimeError("can't start new thread")

    settings = PostgresSettings(dsn)
    coroutines, threads = AsyncConnections(settings, 1), Connections(settings, 1)
    await coroutines.open()
    threads.open()
    try:
        for one in (coroutines, threads):
            monkeypatch.setattr(one._watchdog, "begin", refused)
        with pytest.raises(RuntimeError):
            async with coroutines.connection():
                pytest.fail("the block has begun")
        with pytest.raises(RuntimeError), threads.connection():
            pytest.fail("the block has begun")
        assert not coroutines._in_use
        assert not threads._in_use
    finally:
        threads.close()
        await coroutines.aclose()
