"""Several queues: of one store by their types, and apart by their places."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuert import Attempt, ChainStatus, Deduplicate, Limits, NewChain, RetryPolicy
from queuert.errors import ChainNotFoundError
from queuert.limits import Rate
from queuert.notify.in_process import InProcessNotify
from queuert.observability.events import AttemptCompleted, AttemptStarted
from tests.behaviours.conftest import NewHarness
from tests.support.harness import Harness
from tests.support.job_types import BRIEF, echo, number, text
from tests.support.waiting import WAIT, Gate, in_time, until


async def test_queues_of_two_schemas_or_namespaces_share_nothing(new_harness: NewHarness) -> None:
    """P71, D04, P70: ids, keys, results, notifications and statuses; each worker runs its own."""
    harness, other = new_harness(), new_harness(name="another")

    async def doubled(attempt: Attempt[int, int]) -> int:
        return attempt.input * 2

    harness.handles(number, echo)
    other.handles(number, doubled)
    places = (harness, other)
    for place in places:
        chain = await place.client.start_chain(number, 5, id="same", deduplication=Deduplicate("same"))
        assert not chain.deduplicated
    assert await harness.client.cancel_chain("same")
    assert (await other.client.get_chain("same")).status is ChainStatus.OPEN
    async with harness.worker(), other.worker():
        assert await (await other.client.get_chain("same")).result(WAIT) == 10
        requested = [place.client.start_and_wait(number, value) for value in range(5) for place in places]
        assert await in_time(asyncio.gather(*requested)) == [0, 0, 1, 2, 2, 4, 3, 6, 4, 8]
        assert {event.worker for event in harness.log.of(AttemptStarted)}.isdisjoint(
            event.worker for event in other.log.of(AttemptStarted)
        )
    await other.client.start_chain(number, 1, id="only there")
    with pytest.raises(ChainNotFoundError):
        await harness.client.get_chain("only there")
    assert len(await harness.client.list_workers()) == 0


async def test_an_expired_lease_is_reaped_by_workers_of_its_own_schema_or_namespace(new_harness: NewHarness) -> None:
    """P67: workers of the other one let it be."""
    harness, other = new_harness(), new_harness(name="another")
    for place in (harness, other):
        place.handles(number, echo, lease=BRIEF)
        await place.client.start_chain(number, 1, id="lost")
        await place.claim_and_die(number)
    async with other.worker():
        await (await other.client.get_chain("lost")).wait(WAIT)
    assert (await harness.client.get_chain("lost")).status is ChainStatus.OPEN
    async with harness.worker():
        await (await harness.client.get_chain("lost")).wait(WAIT)


async def test_job_types_are_queues_of_one_place(harness: Harness) -> None:
    """P71, B01: a worker takes what it has handlers for; the rest waits for others."""
    numbers, texts = harness.new_processors(), harness.new_processors()
    numbers.handles(number)(echo)
    texts.handles(text)(echo)
    first, second = await harness.client.start_chain(number, 1), await harness.client.start_chain(text, "a")
    async with harness.worker(numbers):
        assert await first.result(WAIT) == 1
    assert (await second.refresh()).status is ChainStatus.OPEN
    async with harness.worker(texts):
        assert await second.result(WAIT) == "a"


async def test_a_queue_that_is_busy_does_not_hold_up_another(harness: Harness) -> None:
    """D03, B07: workers of their own, or limits within one: how many run is counted for each type."""
    gate = Gate()
    harness.handles(number, gate.pass_through, limits=Limits(concurrency=2))
    harness.handles(text, echo)
    await harness.client.start_chains([NewChain(number, value) for value in range(5)])
    async with harness.worker(concurrency=5) as worker:
        for _ in range(2):
            await gate.next()
        for _ in range(3):
            assert await harness.client.start_and_wait(text, "beside") == "beside"
        # Its result can be had a moment before its attempt is over.
        await until(lambda: worker.running == 2, "the two that wait are left")
        assert gate.arrived.empty()
        await worker.stop(shutdown_timeout=0)


async def test_best_first(harness: Harness) -> None:
    """G35, P81: by priority, then by age."""
    order: list[int] = []

    async def handler(attempt: Attempt[int, int]) -> int:
        order.append(attempt.input)
        return attempt.input

    harness.handles(number, handler)
    chains = [
        await harness.client.start_chain(number, value, priority=priority)
        for value, priority in enumerate([0, 5, -1, 5, 0])
    ]
    async with harness.worker():
        await harness.client.wait(chains, timeout=WAIT)
    assert order == [1, 3, 0, 4, 2]


async def test_no_more_of_a_key_at_once(harness: Harness) -> None:
    """G33, P81: jobs of other keys go past those that are held back."""
    gate = Gate()
    harness.handles(number, gate.pass_through, limits=Limits(per_key=1))
    keys = ["a", "a", "a", "b", "b", None]
    await harness.client.start_chains([NewChain(number, 1, limit_key=key) for key in keys])
    async with harness.worker(concurrency=4), harness.worker(concurrency=4):
        arrived = [(await gate.next()).job_id for _ in range(3)]
        jobs = [await harness.client.get_job(id) for id in arrived]
        assert sorted(str(job.limit_key) for job in jobs) == ["None", "a", "b"]
        assert gate.arrived.empty()
        gate.open()
        await harness.log.wait_for(AttemptStarted, times=6)


async def test_no_more_of_a_key_in_a_time(harness: Harness) -> None:
    """G33, P81: those over the rate wait for its window to move on; a worker without that limit need not."""
    limited, unlimited = harness.new_processors(), harness.new_processors()
    limited.handles(text, limits=Limits(rate=Rate(2, per=3600)))(echo)
    limited.handles(number)(echo)
    unlimited.handles(text)(echo)
    chains = [await harness.client.start_chain(text, key, limit_key=key) for key in "aaabbb"]
    async with harness.worker(limited, concurrency=6):
        await harness.log.wait_for(AttemptCompleted, type=text.name, times=4)
        assert await harness.client.start_and_wait(number, 1) == 1
        waiting = [chain.input for chain in await harness.client.list_chains(job_types=[text], statuses=["open"])]
        assert sorted(waiting) == ["a", "b"]
    async with harness.worker(unlimited):
        await harness.client.wait(chains, timeout=WAIT)


async def test_a_paused_queue_is_left_alone(harness: Harness) -> None:
    """P81: until it is resumed; others go on."""
    harness.handles(number, echo)
    harness.handles(text, echo)
    await harness.client.pause_job_types([number])
    chain = await harness.client.start_chain(number, 1)
    async with harness.worker():
        assert await harness.client.start_and_wait(text, "a") == "a"
        assert (await chain.refresh()).status is ChainStatus.OPEN
        await harness.client.resume_job_types([number])
        assert await chain.result(WAIT) == 1


async def test_retries_are_of_the_type(harness: Harness) -> None:
    """P15, P39, G16: how many, and their pauses; the handler knows which one it is."""
    attempts: list[tuple[str, int]] = []

    async def fails(attempt: Attempt[Any, Any]) -> Any:
        attempts.append((attempt.type, attempt.number))
        raise ValueError("no good")

    processors = harness.new_processors(retry=RetryPolicy(max_attempts=1))
    processors.handles(number)(fails)
    processors.handles(text, retry=RetryPolicy(max_attempts=3, initial_delay=0, jitter=0))(fails)
    chains = [await harness.client.start_chain(number, 1), await harness.client.start_chain(text, "a")]
    async with harness.worker(processors):
        await harness.client.wait(chains, timeout=WAIT)
    assert sorted(attempts) == [("number", 1), ("text", 1), ("text", 2), ("text", 3)]
    assert RetryPolicy().max_attempts == 25


async def test_notifications_within_one_process(harness: Harness) -> None:
    """P75: a store may be used with another carrier of notifications."""
    notify = InProcessNotify()
    harness.handles(number, echo)
    client = harness.new_client(notify=notify)
    async with harness.worker(client=client):
        assert await in_time(client.start_and_wait(number, 5)) == 5
