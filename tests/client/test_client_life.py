"""The life of a client: what it is made of, and closing it while its first call is still connecting."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuert import AsyncClient, Client, JobType, JobTypes, PostgresState
from queuert.errors import ClosedError, ConfigurationError, DefinitionError, StateUnavailableError
from queuert.notify import InProcessNotify
from queuert.notify.adapter import Hint, Topic
from queuert.state.postgres.async_store import AsyncPostgresStore


@pytest.mark.parametrize("client", [AsyncClient, Client])
def test_what_is_no_store_or_no_job_types_is_refused_at_once(client: Any) -> None:
    resize = JobType("resize", input=int, output=int)
    with pytest.raises(ConfigurationError, match="from_url"):
        client("postgresql://nobody@localhost/none", JobTypes(resize))
    for wrong in (resize, [resize], None):
        with pytest.raises(DefinitionError, match=r"JobTypes\(resize, publish"):
            client(PostgresState("postgresql://nobody@localhost/none"), wrong)


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


async def test_workers_hear_of_starts_whose_outcome_is_unknown(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start, heard = AsyncPostgresStore.start_jobs, asyncio.Event()

    async def unanswered(store: AsyncPostgresStore, jobs: Any, *, connection: Any = None) -> Any:
        await start(store, jobs, connection=connection)
        raise StateUnavailableError("the answer was lost")

    monkeypatch.setattr(AsyncPostgresStore, "start_jobs", unanswered)
    resize, notify, loop = JobType("resize", input=int, output=int), InProcessNotify(), asyncio.get_running_loop()

    def hear(hint: Hint) -> None:
        loop.call_soon_threadsafe(heard.set)

    notify.subscribe(Topic.JOBS, hear)
    async with AsyncClient(PostgresState(dsn), JobTypes(resize), notify=notify) as client:
        with pytest.raises(StateUnavailableError):
            await client.start_chain(resize, 1, id="one")
        async with asyncio.timeout(20):
            await heard.wait()
        assert (await client.get_chain("one")).type == "resize"
