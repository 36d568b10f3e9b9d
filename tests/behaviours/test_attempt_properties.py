"""What an attempt knows of its job and its worker, on each store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from queuert import Attempt, Client, NewChain, Outcome, RecurringSchedule, after
from queuert.errors import ConfigurationError
from queuert.schedules import Tick, tick_in
from queuert.worker import EarlierJob, EarlierJobs
from tests.support.harness import Harness
from tests.support.job_types import anything, echo, first, last, loop, middle, number, relay, text
from tests.support.waiting import START, WAIT, in_time
from tests.worker import killable


async def test_the_times_of_a_job(harness: Harness) -> None:
    seen: list[Attempt[int, int]] = []

    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        seen.append(attempt)
        return 1

    harness.handles(number, handler)
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1, priority=3, run_at=after(seconds=0.001))
        await chain.result(WAIT)
    job = await harness.job(chain.id)
    [attempt] = seen
    assert (attempt.created_at, attempt.scheduled_at, attempt.priority) == (job.created_at, job.scheduled_at, 3)
    assert attempt.scheduled_at > attempt.created_at
    assert attempt.tick is None


async def test_the_tick_of_a_schedule(harness: Harness) -> None:
    ticks: asyncio.Queue[tuple[Tick | None, str]] = asyncio.Queue()

    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        ticks.put_nowait((attempt.tick, attempt.chain_id))
        return 1

    harness.handles(number, handler)
    async with harness.worker(schedules=[RecurringSchedule("every@second", number, 1, every=1)]):
        tick, chain_id = await in_time(ticks.get())
    assert tick is not None
    assert (tick.schedule, tick.at.tzinfo) == ("every@second", UTC)
    assert chain_id.startswith("every@second@")


def test_only_the_id_of_a_tick_has_one() -> None:
    assert tick_in("nightly@2030-01-31T03:00:00Z") == Tick("nightly", datetime(2030, 1, 31, 3, tzinfo=UTC))
    for id in ("nightly", "nightly@", "a@b", "nightly@2030-01-31", "nightly@2030-01-31T03:00:00", "a@2030-01-31T03Z"):
        assert tick_in(id) is None, id


async def test_the_client_of_the_worker(harness: Harness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        chain = await attempt.client.start_chain(number, 1, id=f"{attempt.job_id}/child", attach=True)
        return await chain.result(WAIT)

    harness.handles(anything, handler)
    harness.handles(number, echo)
    harness.handles(text, lambda attempt: str(attempt.client_sync))
    async with harness.worker(concurrency=2):
        chains = await harness.client.start_chains([NewChain(anything, 1), NewChain(text, "")])
        assert await chains[0].result(WAIT) == 1
        error = (await chains[1].wait(WAIT)).error
    assert error is not None
    assert (error.kind, "make a Client in the lifespan" in error.message) == ("programming", True)


async def test_a_synchronous_client_of_the_worker(harness: Harness) -> None:
    def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        return len(attempt.client_sync.list_chains().items)

    harness.handles(anything, handler)
    harness.handles(text, lambda attempt: str(attempt.client))
    client: Any = Client(harness.state, harness.job_types)
    with client:
        async with harness.worker(client=client):
            chains = await harness.client.start_chains([NewChain(anything, 1), NewChain(text, "")])
            assert await chains[0].result(WAIT) == 2
            error = (await chains[1].wait(WAIT)).error
    assert error is not None
    assert "use attempt.client_sync in a plain function" in error.message


async def test_a_lifespan_on_each_store(harness: Harness) -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[list[str]]:
        steps.append("entered")
        yield steps
        steps.append("left")

    async def handler(attempt: Attempt[int, int, list[str]]) -> Outcome[int]:
        attempt.resources.append("ran")
        return 1

    processors = harness.new_processors(lifespan=lifespan)
    processors.handles(number)(handler)
    async with harness.worker(processors):
        assert await (await harness.client.start_chain(number, 1)).result(WAIT) == 1
    assert steps == ["entered", "ran", "left"]


async def test_what_the_chain_was_started_with_can_be_read_and_inherited(harness: Harness) -> None:
    async def begin(attempt: Attempt[int, int]) -> Outcome[int]:
        options = await attempt.read_start()
        return attempt.continue_with(number, 2, limit_key=options.limit_key)

    def end(attempt: Attempt[int, int]) -> Outcome[int]:
        options = attempt.read_start_sync()
        seen.append((dict(options.attributes), options.limit_key))
        return attempt.input

    seen: list[Any] = []
    harness.handles(relay, begin)
    harness.handles(number, end)
    async with harness.worker():
        chain = await harness.client.start_chain(relay, 1, attributes={"user": 17}, limit_key="ada")
        assert await chain.result(WAIT) == 2
        without = await harness.client.start_chain(number, 1)
        assert await without.result(WAIT) == 1
    assert seen == [({"user": "17"}, "ada"), ({}, None)]


@pytest.mark.timeout(12 * WAIT)
async def test_a_child_process_can_read_it_too(harness: Harness) -> None:
    harness.handles(anything, killable.start_options, executor="process")
    async with harness.worker():
        chain = await harness.client.start_chain(anything, 1, attributes={"user": 17}, limit_key="ada")
        assert await chain.result(START) == [{"user": "17"}, "ada"]


async def test_children_have_the_attributes_that_they_are_started_with(harness: Harness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        if attempt.blockers:
            return len(attempt.blockers)
        options = await attempt.read_start()
        return attempt.wait_for(NewChain(number, 1, attributes=options.attributes), NewChain(number, 2))

    harness.handles(anything, handler)
    harness.handles(number, echo)
    async with harness.worker():
        chain = await harness.client.start_chain(anything, 1, attributes={"user": 17})
        assert await chain.result(WAIT) == 2
    found = await harness.client.list_chains(attributes={"user": 17})
    assert sorted(one.type for one in found.items) == ["anything", "number"]


@pytest.mark.timeout(12 * WAIT)
@pytest.mark.parametrize("mode", ["coroutine", "thread", "process"])
async def test_earlier_jobs_of_the_chain(harness: Harness, mode: str) -> None:
    """A later job reads the inputs and kept outputs of those before it, and nothing of itself; the first has none."""
    found: list[EarlierJobs] = []

    async def begin(attempt: Attempt[int, Any]) -> Outcome[Any]:
        found.append(await attempt.read_earlier_jobs())
        return attempt.continue_with(middle, 2)

    def go_on(attempt: Attempt[int, Any]) -> Outcome[Any]:
        return attempt.continue_with(last, 3, output=20)

    async def end(attempt: Attempt[int, str]) -> Outcome[str]:
        found.append(await attempt.read_earlier_jobs())
        return str([(job.type, job.input, job.output) for job in found[-1]])

    def end_in_thread(attempt: Attempt[int, str]) -> Outcome[str]:
        found.append(attempt.read_earlier_jobs_sync())
        return str([(job.type, job.input, job.output) for job in found[-1]])

    harness.handles(first, begin)
    harness.handles(middle, go_on)
    if mode == "process":
        harness.handles(last, killable.earlier_jobs, executor="process")
    else:
        harness.handles(last, end if mode == "coroutine" else end_in_thread)
    async with harness.worker():
        chain = await harness.client.start_chain(first, 1)
        assert await chain.result(START) == "[('first', 1, None), ('middle', 2, 20)]"
    assert len(found[0]) == 0
    if mode != "process":
        got = found[1].get(middle)
        assert got is not None
        assert (got.input, got.output, got.chain_index) == (2, 20, 1)
        assert found[1].get(first) == EarlierJob(chain.id, 0, 1, None)
        assert found[1].get(last) is None


async def test_the_newest_of_the_earlier_jobs(harness: Harness) -> None:
    """At most so many, the newest ones; all of a type in their order. Limits are those of pages."""
    found: list[EarlierJobs] = []

    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.input < 5:
            return attempt.continue_with(loop, attempt.input + 1, output=attempt.input * 10)
        found.extend([await attempt.read_earlier_jobs(limit=limit) for limit in (2, 1000)])
        for limit in (0, 1001):
            with pytest.raises(ConfigurationError, match="limit"):
                await attempt.read_earlier_jobs(limit=limit)
        return attempt.input

    harness.handles(loop, handler)
    async with harness.worker():
        assert await (await harness.client.start_chain(loop, 0)).result(WAIT) == 5
    assert [[one.input for one in some.get_all(loop)] for some in found] == [[3, 4], [0, 1, 2, 3, 4]]
    newest = found[0].get(loop)
    assert newest is not None
    assert newest.output == 40
