"""The life of a client: what it is made of, and closing it while its first call is still connecting."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import pytest

from queuert import AsyncClient, Client, JobType, JobTypes, PostgresState
from queuert.errors import ClosedError, ConfigurationError, DefinitionError, StateUnavailableError
from queuert.notify import InProcessNotify
from queuert.notify.adapter import Notification, Topic
from queuert.notify.postgres import PostgresNotify
from queuert.state.postgres.async_store import AsyncPostgresStore
from queuert.state.postgres.sync_store import PostgresStore
from queuert.state.sqlite import SQLiteState
from tests.support.waiting import WAIT, until


@pytest.mark.parametrize("client", [AsyncClient, Client])
def test_what_is_no_store_or_no_job_types_is_refused_at_once(client: Any) -> None:
    resize = JobType("resize", input=int, output=int)
    with pytest.raises(ConfigurationError, match="from_url"):
        client("postgresql://nobody@localhost/none", JobTypes(resize))
    for wrong in (resize, [resize], None):
        with pytest.raises(DefinitionError, match=r"JobTypes\(resize, publish"):
            client(PostgresState("postgresql://nobody@localhost/none"), wrong)


async def test_a_client_that_is_entered_by_the_wrong_with_says_what_to_write() -> None:
    in_coroutines: Any = AsyncClient(SQLiteState(), JobTypes())
    in_functions: Any = Client(SQLiteState(), JobTypes())
    with (
        pytest.raises(DefinitionError, match=r"write async with AsyncClient\(\.\.\.\), got with; .* use Client$"),
        in_coroutines,
    ):
        pass
    with pytest.raises(DefinitionError, match=r"write with Client\(\.\.\.\), got async with; .* use AsyncClient$"):
        async with in_functions:
            pass
    # Who asks how to enter it is not told that both forms are right.
    assert isinstance(in_coroutines, AbstractAsyncContextManager)
    assert not isinstance(in_coroutines, AbstractContextManager)
    assert not hasattr(in_coroutines, "__enter__")
    assert isinstance(in_functions, AbstractContextManager)
    assert not isinstance(in_functions, AbstractAsyncContextManager)
    assert not hasattr(in_functions, "__aenter__")


async def test_what_was_connected_meanwhile_is_closed(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connected, go_on, stores = asyncio.Event(), asyncio.Event(), list[Any]()
    connect = AsyncPostgresStore.open

    async def slowly(store: AsyncPostgresStore) -> None:
        await connect(store)
        stores.append(store)
        connected.set()
        await go_on.wait()

    monkeypatch.setattr(AsyncPostgresStore, "open", slowly)
    client = AsyncClient(PostgresState(dsn), JobTypes(), notify=InProcessNotify())
    opening = asyncio.create_task(client.open())
    await connected.wait()
    await client.aclose()
    go_on.set()
    with pytest.raises(ClosedError):
        await opening
    with pytest.raises(ClosedError):
        await stores[0].get_jobs(["any"])


@pytest.mark.parametrize("broken", ["feed", "store"])
async def test_the_rest_is_closed_if_one_part_cannot_be(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    notify = InProcessNotify()
    client = AsyncClient(SQLiteState(), JobTypes(), notify=notify)
    async with client.follow_events():
        store, feed = await client._open_store(), client._event_feed()
    assert notify.healthy
    closed: list[str] = []

    def refuse() -> None:
        closed.append(broken)
        raise RuntimeError("cannot be closed")

    async def note() -> None:
        closed.append("store")
        if broken == "store":
            raise RuntimeError("cannot be closed")

    monkeypatch.setattr(store, "aclose", note)
    with monkeypatch.context() as patch:
        if broken == "feed":
            patch.setattr(feed, "close", refuse)
        with pytest.raises(RuntimeError, match="cannot be closed"):
            await client.aclose()
    feed.close()
    assert closed == [*(["feed"] if broken == "feed" else []), "store"]
    assert not notify.healthy


def test_threads_that_open_it_at_the_same_time_open_it_once(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connect, own_id = PostgresStore.open, os.getpid
    here, both, stores = threading.local(), threading.Barrier(2), list[Any]()

    def note(store: PostgresStore) -> None:
        connect(store)
        stores.append(store)
        here.connected = True

    def together() -> int:
        # Each has connected, and looks whether the other one was faster.
        if getattr(here, "connected", False):
            here.connected = False
            both.wait(20)
        return own_id()

    monkeypatch.setattr(PostgresStore, "open", note)
    monkeypatch.setattr("queuert.client.sync_base.os.getpid", together)
    notify = InProcessNotify()
    client = Client(PostgresState(dsn), JobTypes(), notify=notify)
    threads = [threading.Thread(target=client.open) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    assert len(stores) == 2
    assert not notify.healthy
    for store in stores:
        with pytest.raises(ClosedError):
            store.get_jobs(["any"])


async def test_a_close_that_is_cancelled_closes_the_notifications_as_well(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, closing = AsyncPostgresStore.aclose, asyncio.Event()

    async def slowly(store: AsyncPostgresStore) -> None:
        await close(store)
        closing.set()
        await asyncio.Future()

    monkeypatch.setattr(AsyncPostgresStore, "aclose", slowly)
    notify = InProcessNotify()
    client = AsyncClient(PostgresState(dsn), JobTypes(), notify=notify)
    await client.open()
    finish = asyncio.create_task(client.aclose())
    await closing.wait()
    finish.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finish
    assert not notify.healthy


@pytest.mark.parametrize("left", [StateUnavailableError("the answer was lost"), asyncio.CancelledError()], ids=repr)
async def test_workers_hear_of_starts_whose_outcome_is_unknown(
    dsn: str, monkeypatch: pytest.MonkeyPatch, left: BaseException
) -> None:
    start, heard = AsyncPostgresStore.start_jobs, asyncio.Event()

    async def unanswered(store: AsyncPostgresStore, jobs: Any, **how: Any) -> Any:
        await start(store, jobs, **how)
        raise left

    monkeypatch.setattr(AsyncPostgresStore, "start_jobs", unanswered)
    resize, notify, loop = JobType("resize", input=int, output=int), InProcessNotify(), asyncio.get_running_loop()

    def hear(notification: Notification) -> None:
        loop.call_soon_threadsafe(heard.set)

    notify.subscribe(Topic.JOBS, hear)
    async with AsyncClient(PostgresState(dsn), JobTypes(resize), notify=notify) as client:
        with pytest.raises(type(left)):
            await client.start_chain(resize, 1, id="one")
        async with asyncio.timeout(20):
            await heard.wait()
        assert (await client.get_chain("one")).type == "resize"


async def test_a_call_after_one_without_a_thread_for_notifications_has_them(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client would never announce what it starts, and nobody would know."""
    notify, start, failures = PostgresNotify(dsn), threading.Thread.start, [RuntimeError("can't start new thread")]

    def no_thread(thread: threading.Thread) -> None:
        if failures and thread.name == "queuert-notify":
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    client = AsyncClient(PostgresState(dsn), JobTypes(), notify=notify)
    with pytest.raises(RuntimeError, match="new thread"):
        await client.open()
    heard = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hear(one: Notification) -> None:
        if one.keys is not None and "mine" in one.keys:
            loop.call_soon_threadsafe(heard.set)

    notify.subscribe(Topic.JOBS, hear)
    async with client:
        await until(lambda: notify.healthy, "it listens")
        notify.publish(Topic.JOBS, ["mine"])
        async with asyncio.timeout(WAIT):
            await heard.wait()
