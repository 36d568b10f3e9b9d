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
from tests.acceptance.support import BRIEF, WAIT, Gate, Ground, echo, in_time, number, text, until


async def test_queues_of_different_places_have_nothing_in_common(ground: Ground) -> None:
    """P71, D04, P70: ids, keys, results, notifications and statuses; each worker runs its own."""
    other = ground.other("another")

    async def doubled(attempt: Attempt[int, int]) -> int:
        return attempt.input * 2

    ground.handles(number, echo)
    other.handles(number, doubled)
    places = (ground, other)
    for place in places:
        chain = await place.client.start_chain(number, 5, id="same", deduplication=Deduplicate("same"))
        assert not chain.deduplicated
    assert await ground.client.cancel_chain("same")
    assert (await other.client.get_chain("same")).status is ChainStatus.OPEN
    async with ground.worker(), other.worker():
        assert await (await other.client.get_chain("same")).result(WAIT) == 10
        requested = [place.client.start_and_wait(number, value) for value in range(5) for place in places]
        assert await in_time(asyncio.gather(*requested)) == [0, 0, 1, 2, 2, 4, 3, 6, 4, 8]
        assert {event.worker for event in ground.log.of(AttemptStarted)}.isdisjoint(
            event.worker for event in other.log.of(AttemptStarted)
        )
    await other.client.start_chain(number, 1, id="only there")
    with pytest.raises(ChainNotFoundError):
        await ground.client.get_chain("only there")
    assert len(await ground.client.list_workers()) == 0


async def test_what_the_dead_had_is_found_by_its_own_place(ground: Ground) -> None:
    """P67: workers of the other one let it be."""
    other = ground.other("another")
    for place in (ground, other):
        place.handles(number, echo, lease=BRIEF)
        await place.client.start_chain(number, 1, id="lost")
        await place.claimed_by_the_dead(number)
    async with other.worker():
        await (await other.client.get_chain("lost")).wait(WAIT)
    assert (await ground.client.get_chain("lost")).status is ChainStatus.OPEN
    async with ground.worker():
        await (await ground.client.get_chain("lost")).wait(WAIT)


async def test_job_types_are_queues_of_one_place(ground: Ground) -> None:
    """P71, B01: a worker takes what it has handlers for; the rest waits for others."""
    numbers, texts = ground.group(), ground.group()
    numbers.handles(number)(echo)
    texts.handles(text)(echo)
    first, second = await ground.client.start_chain(number, 1), await ground.client.start_chain(text, "a")
    async with ground.worker(numbers):
        assert await first.result(WAIT) == 1
    assert (await second.refresh()).status is ChainStatus.OPEN
    async with ground.worker(texts):
        assert await second.result(WAIT) == "a"


async def test_a_queue_that_is_busy_does_not_hold_up_another(ground: Ground) -> None:
    """D03, B07: workers of their own, or limits within one: how many run is counted for each type."""
    gate = Gate()
    ground.handles(number, gate.pass_through, limits=Limits(concurrency=2))
    ground.handles(text, echo)
    await ground.client.start_chains([NewChain(number, value) for value in range(5)])
    async with ground.worker(concurrency=5) as worker:
        for _ in range(2):
            await gate.next()
        for _ in range(3):
            assert await ground.client.start_and_wait(text, "beside") == "beside"
        # Its result can be had a moment before its attempt is over.
        await until(lambda: worker.running == 2, "the two that wait are left")
        assert gate.arrived.empty()
        await worker.stop(shutdown_timeout=0)


async def test_best_first(ground: Ground) -> None:
    """G35, P81: by priority, then by age."""
    order: list[int] = []

    async def handler(attempt: Attempt[int, int]) -> int:
        order.append(attempt.input)
        return attempt.input

    ground.handles(number, handler)
    chains = [
        await ground.client.start_chain(number, value, priority=priority)
        for value, priority in enumerate([0, 5, -1, 5, 0])
    ]
    async with ground.worker():
        await ground.client.wait(chains, timeout=WAIT)
    assert order == [1, 3, 0, 4, 2]


async def test_no_more_of_a_key_at_once(ground: Ground) -> None:
    """G33, P81: jobs of other keys go past those that are held back."""
    gate = Gate()
    ground.handles(number, gate.pass_through, limits=Limits(per_key=1))
    keys = ["a", "a", "a", "b", "b", None]
    await ground.client.start_chains([NewChain(number, 1, limit_key=key) for key in keys])
    async with ground.worker(concurrency=4), ground.worker(concurrency=4):
        arrived = [(await gate.next()).job_id for _ in range(3)]
        jobs = [await ground.client.get_job(id) for id in arrived]
        assert sorted(str(job.limit_key) for job in jobs) == ["None", "a", "b"]
        assert gate.arrived.empty()
        gate.open()
        await ground.log.wait_for(AttemptStarted, times=6)


async def test_no_more_of_a_key_in_a_time(ground: Ground) -> None:
    """G33, P81: those over the rate wait for its window to move on; a worker without that limit need not."""
    limited, unlimited = ground.group(), ground.group()
    limited.handles(text, limits=Limits(rate=Rate(2, per=3600)))(echo)
    limited.handles(number)(echo)
    unlimited.handles(text)(echo)
    chains = [await ground.client.start_chain(text, key, limit_key=key) for key in "aaabbb"]
    async with ground.worker(limited, concurrency=6):
        await ground.log.wait_for(AttemptCompleted, type=text.name, times=4)
        assert await ground.client.start_and_wait(number, 1) == 1
        waiting = [chain.input for chain in await ground.client.list_chains(job_types=[text], statuses=["open"])]
        assert sorted(waiting) == ["a", "b"]
    async with ground.worker(unlimited):
        await ground.client.wait(chains, timeout=WAIT)


async def test_a_paused_queue_is_left_alone(ground: Ground) -> None:
    """P81: until it is resumed; others go on."""
    ground.handles(number, echo)
    ground.handles(text, echo)
    await ground.client.pause_job_types([number])
    chain = await ground.client.start_chain(number, 1)
    async with ground.worker():
        assert await ground.client.start_and_wait(text, "a") == "a"
        assert (await chain.refresh()).status is ChainStatus.OPEN
        await ground.client.resume_job_types([number])
        assert await chain.result(WAIT) == 1


async def test_retries_are_of_the_type(ground: Ground) -> None:
    """P15, P39, G16: how many, and their pauses; the handler knows which one it is."""
    attempts: list[tuple[str, int]] = []

    async def fails(attempt: Attempt[Any, Any]) -> Any:
        attempts.append((attempt.type, attempt.number))
        raise ValueError("no good")

    processors = ground.group(retry=RetryPolicy(max_attempts=1))
    processors.handles(number)(fails)
    processors.handles(text, retry=RetryPolicy(max_attempts=3, initial_delay=0, jitter=0))(fails)
    chains = [await ground.client.start_chain(number, 1), await ground.client.start_chain(text, "a")]
    async with ground.worker(processors):
        await ground.client.wait(chains, timeout=WAIT)
    assert sorted(attempts) == [("number", 1), ("text", 1), ("text", 2), ("text", 3)]
    assert RetryPolicy().max_attempts == 25


async def test_notifications_within_one_process(ground: Ground) -> None:
    """P75: a store may be used with another carrier of notifications."""
    notify = InProcessNotify()
    ground.handles(number, echo)
    client = ground.new_client(notify=notify)
    async with ground.worker(client=client):
        assert await in_time(client.start_and_wait(number, 5)) == 5
