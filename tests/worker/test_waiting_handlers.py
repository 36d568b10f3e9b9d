"""Handlers that wait, in their slot, for jobs that their own worker is to run: said once, on each store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from queuert import AsyncClient, Attempt, Client, Outcome, PostgresState
from queuert.errors import WaitTimeoutError
from queuert.jobs import ChainState
from queuert.notify import InProcessNotify
from queuert.observability.context import current_attempt
from queuert.observability.events import HandlerWaits
from queuert.state.adapter import StateAdapter
from tests.support.harness import Harness, PostgresHarness
from tests.support.job_types import JOB_TYPES, anything, echo, number, relay
from tests.support.waiting import START, WAIT, Gate, in_time
from tests.worker.killable import fork_that_waits, waits


@pytest.fixture
async def stored(state: StateAdapter) -> AsyncIterator[Harness]:
    """A client and workers on each store."""
    harness = Harness(state, notify=InProcessNotify())
    yield harness
    await harness.close()


async def by_result(client: AsyncClient, child: str) -> object:
    """Wait for the output of a chain."""
    return await (await client.get_chain(child)).result(WAIT)


async def by_waiting(client: AsyncClient, child: str) -> object:
    """Wait for several chains."""
    return await client.wait([await client.get_chain(child)], timeout=WAIT)


async def by_watching(client: AsyncClient, child: str) -> object:
    """Wait state by state."""
    return [state.status async for state in client.watch_chain(child, timeout=WAIT)]


async def by_request(client: AsyncClient, child: str) -> object:
    """Start a chain and wait for it."""
    return await client.start_and_wait(number, 1, id=child, timeout=WAIT)


@pytest.mark.parametrize("wait", [by_result, by_waiting, by_watching, by_request])
async def test_a_handler_in_the_only_slot(stored: Harness, wait: Callable[[AsyncClient, str], Any]) -> None:
    await stored.client.start_chain(number, 1, id="child", priority=-10)
    parents = [await stored.client.start_chain(anything, name) for name in ("one", "two")]

    async def parent(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        await wait(stored.client, "child")
        return None

    stored.handles(anything, parent)
    stored.handles(number, echo)
    others = stored.new_processors()
    others.handles(number)(echo)
    async with stored.worker(concurrency=1):
        said = await in_time(stored.log.wait_for(HandlerWaits))
        assert (said.type, said.waits_for, said.slots) == ("anything", "number", 1)
        assert said.job_id in {chain.id for chain in parents}
        assert said.own_level == "warning"
        async with stored.worker(others):
            await stored.client.wait(parents, timeout=WAIT)
    assert len(stored.log.of(HandlerWaits)) == 1


async def test_each_pair_of_types_once(harness: PostgresHarness) -> None:
    async def waiting(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        own = current_attempt.get()
        assert own is not None
        own.waits_for({"number", "anything", "text"})
        return attempt.input

    harness.handles(anything, waiting)
    harness.handles(number, waiting)
    async with harness.worker():
        for job_type in (anything, number, anything, number):
            await harness.client.start_and_wait(job_type, 1, timeout=WAIT)
    assert sorted((one.type, one.waits_for) for one in harness.log.of(HandlerWaits)) == [
        ("anything", "anything"),
        ("anything", "number"),
        ("number", "anything"),
        ("number", "number"),
    ]


async def test_a_chain_that_has_come_to_such_a_job(harness: PostgresHarness) -> None:
    """Its first job is run by another worker, and its second is of a type of the handler's worker."""
    gate = Gate()
    seen: asyncio.Queue[ChainState] = asyncio.Queue()
    watched = asyncio.Event()

    async def parent(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        chain = await harness.client.get_chain("relay")
        async for state in chain.watch(interval=0.01, timeout=WAIT):
            seen.put_nowait(state)
        return None

    async def first(attempt: Attempt[int, int]) -> Outcome[int]:
        await watched.wait()
        attempt.record_progress(1)
        await gate.pass_through(attempt)
        return attempt.continue_with(number, 1)

    harness.handles(anything, parent)
    harness.handles(number, echo)
    others = harness.new_processors()
    others.handles(relay)(first)
    await harness.client.start_chain(relay, 1, id="relay")
    async with harness.worker(concurrency=1), harness.worker(others):
        waiting = await harness.client.start_chain(anything, None)
        await in_time(seen.get())
        watched.set()
        # The second state is read after the first was looked at.
        while (await in_time(seen.get())).progress is None:
            pass
        assert harness.log.of(HandlerWaits) == []
        gate.open()
        assert (await in_time(harness.log.wait_for(HandlerWaits))).waits_for == "number"
        async with harness.worker(types=[number]):
            await waiting.wait(WAIT)


async def test_nothing_is_said_of_other_waits(harness: PostgresHarness) -> None:
    """For the type of another worker; with a timeout of 0."""

    async def parent(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        with pytest.raises(WaitTimeoutError):
            await (await harness.client.get_chain("parent")).result(0)
        return await harness.client.start_and_wait(number, 1, timeout=WAIT)

    harness.handles(anything, parent)
    others = harness.new_processors()
    others.handles(number)(echo)
    async with harness.worker(concurrency=1), harness.worker(others):
        parent_chain = await harness.client.start_chain(anything, None, id="parent")
        assert await parent_chain.result(WAIT) == 1
    assert harness.log.of(HandlerWaits) == []


async def test_a_task_that_outlives_its_handler_holds_no_slot(harness: PostgresHarness) -> None:
    tasks = []
    done = asyncio.Event()

    async def outlive() -> None:
        await done.wait()
        await harness.client.start_and_wait(anything, "child", timeout=WAIT)

    async def parent(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        if attempt.input != "child":
            tasks.append(asyncio.create_task(outlive()))
        return None

    harness.handles(anything, parent)
    async with harness.worker(concurrency=1):
        await harness.client.start_and_wait(anything, None, timeout=WAIT)
        done.set()
        await in_time(asyncio.gather(*tasks))
    assert harness.log.of(HandlerWaits) == []


async def test_in_a_thread(harness: PostgresHarness) -> None:
    client = Client(PostgresState(harness.dsn), JOB_TYPES)

    def parent(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        return client.start_and_wait(number, 1, timeout=WAIT)

    await check_plain_handler(harness, parent)
    client.close()


@pytest.mark.timeout(2 * START)
async def test_in_a_process(harness: PostgresHarness) -> None:
    await check_plain_handler(harness, waits, executor="process")


@pytest.mark.timeout(2 * START)
async def test_a_process_that_a_handler_has_forked_says_nothing(harness: PostgresHarness) -> None:
    """Its parent reads what it writes to the socket as well."""
    harness.handles(anything, fork_that_waits, executor="process")
    harness.handles(number, echo)
    async with harness.worker(concurrency=1):
        assert await harness.client.start_and_wait(anything, None, timeout=START) == 0
    assert harness.log.of(HandlerWaits) == []


async def check_plain_handler(
    harness: PostgresHarness, handler: Callable[[Attempt[Any, Any]], Any], **settings: Any
) -> None:
    """Let it wait for a job of the type ``number`` in the only slot of a worker, which another one runs then."""
    harness.handles(anything, handler, **settings)
    harness.handles(number, echo)
    others = harness.new_processors()
    others.handles(number)(echo)
    async with harness.worker(concurrency=1):
        chain = await harness.client.start_chain(anything, harness.dsn)
        said = await in_time(harness.log.wait_for(HandlerWaits, timeout=START))
        assert (said.job_id, said.waits_for) == (chain.id, "number")
        async with harness.worker(others):
            assert await chain.result(WAIT) == 1
