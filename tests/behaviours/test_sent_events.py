"""Events that clients send to chains, and handlers that wait for them, on each store."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from pydantic import BaseModel

from queuert import Attempt, Deduplicate, JobStatus, Outcome, RetryPolicy
from queuert.errors import (
    ChainAlreadyClosedError,
    ChainNotFoundError,
    ConfigurationError,
    EventTimeoutError,
    PayloadError,
)
from queuert.observability.events import AttemptSnoozed, EventSent, JobsTriggered
from tests.support.harness import Harness
from tests.support.job_types import anything
from tests.support.waiting import WAIT

ONCE = RetryPolicy(max_attempts=1)
DAY = 86_400.0


class Answer(BaseModel):
    """The payload of the event."""

    by: str
    level: int = 1


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_a_handler_waits_until_the_event_is_sent(harness: Harness, mode: str) -> None:
    async def in_loop(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        answer = await attempt.wait_for_event("approved", Answer, DAY)
        return [answer.by, answer.level, await attempt.wait_for_event("approved", int, DAY, key=2)]

    def in_thread(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        answer = attempt.wait_for_event_sync("approved", Answer, DAY)
        return [answer.by, answer.level, attempt.wait_for_event_sync("approved", int, DAY, key=2)]

    harness.handles(anything, in_loop if mode == "coroutine" else in_thread, retry=ONCE)
    async with harness.worker():
        chain = await harness.client.start_chain(anything, None)
        snoozed = await harness.log.wait_for(AttemptSnoozed)
        assert snoozed.awaited_event == "approved"
        assert 0 < snoozed.due_in <= DAY
        assert "waits for the event 'approved' until " in str(await harness.client.explain(chain))
        assert await harness.client.send_event(chain, "approved", Answer(by="ada"), id="17")
        assert not await harness.client.send_event(chain, "approved", {"by": "eve"}, id="17")
        assert await harness.client.send_event(chain.id, "other", 3)
        assert await harness.client.send_event(chain, "approved", 2)
        assert await chain.result(WAIT) == ["ada", 1, 2]
    steps = await harness.client.get_steps(chain.id)
    assert [(one.name, one.event, one.result) for one in steps] == [
        ("approved", "approved", {"by": "ada", "level": 1}),
        ("approved[2]", "approved", 2),
    ]
    assert all(one.answered_at is not None for one in steps)
    job = await harness.job(chain.id)
    assert (job.attempt - job.uncounted, job.failures) == (1, ())
    assert [one.name for one in harness.log.of(EventSent)] == ["approved", "other", "approved"]
    assert harness.log.of(JobsTriggered) == []
    with pytest.raises(ChainAlreadyClosedError, match="already completed"):
        await harness.client.send_event(chain, "approved", 1)


async def test_a_timeout_is_the_same_in_later_attempts(harness: Harness) -> None:
    seen: list[str] = []

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        try:
            seen.append(await attempt.wait_for_event("approved", str, 0.001))
        except EventTimeoutError as error:
            seen.append(error.event)
        if len(seen) == 1:
            await harness.client.send_event(attempt.chain_id, "approved", "late")
            raise ValueError("once")
        return await attempt.wait_for_event("approved", str, 0.001, key="late")

    harness.handles(anything, handler, retry=RetryPolicy(max_attempts=2, initial_delay=0.0))
    async with harness.worker():
        chain = await harness.client.start_chain(anything, None)
        assert await chain.result(WAIT) == "late"
    assert seen == ["approved", "approved"]


async def test_a_payload_that_is_not_valid_is_refused_by_each_attempt(harness: Harness) -> None:
    refused: list[int] = []

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        try:
            await attempt.wait_for_event("approved", Answer, DAY)
        except PayloadError:
            refused.append(attempt.number)
        if len(refused) == 1:
            raise ValueError("once")
        return (await attempt.wait_for_event("approved", Answer, DAY, key=2)).by

    harness.handles(anything, handler, retry=RetryPolicy(max_attempts=2, initial_delay=0.0))
    chain = await harness.client.start_chain(anything, None)
    await harness.client.send_event(chain, "approved", {"level": "none"})
    await harness.client.send_event(chain, "approved", {"by": "ada"})
    async with harness.worker():
        assert await chain.result(WAIT) == "ada"
    assert refused == [1, 2]


async def test_a_caught_end_lets_no_other_step_pass(harness: Harness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        with suppress(BaseException):
            return await attempt.wait_for_event("approved", Answer, DAY)
        await attempt.sleep("other", 1)
        return "awake"

    harness.handles(anything, handler, retry=ONCE)
    async with harness.worker():
        chain = await (await harness.client.start_chain(anything, None)).wait(WAIT)
    assert "step 'approved' raised, and its error was caught" in str(chain.error)


async def test_an_event_for_a_deduplication_key(harness: Harness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        return await attempt.wait_for_event("approved", str, DAY)

    harness.handles(anything, handler, retry=ONCE)
    with pytest.raises(ChainNotFoundError):
        await harness.client.send_event_to_key(anything, "order-17", "approved", "yes")
    chain = await harness.client.start_chain(anything, None, deduplication=Deduplicate("order-17"))
    assert await harness.client.send_event_to_key(anything, "order-17", "approved", "yes", id="1")
    assert not await harness.client.send_event_to_key("anything", "order-17", "approved", "no", id="1")
    async with harness.worker():
        assert await chain.result(WAIT) == "yes"


async def test_what_cannot_be_sent(harness: Harness) -> None:
    chain = await harness.client.start_chain(anything, None)
    with pytest.raises(ChainNotFoundError):
        await harness.client.send_event("unknown", "approved")
    with pytest.raises(ConfigurationError, match="the name of an event must be 1 to 128 characters"):
        await harness.client.send_event(chain, "no name")
    with pytest.raises(PayloadError):
        await harness.client.send_event(chain, "approved", object())
    assert (await harness.job(chain.id)).status is JobStatus.READY


async def test_a_timeout_that_cannot_be(harness: Harness) -> None:
    refused: list[str] = []

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        for timeout in (0, -1, float("nan"), 1e12):
            try:
                await attempt.wait_for_event("approved", str, timeout)
            except ConfigurationError as error:
                refused.append(str(error))
        return len(refused)

    harness.handles(anything, handler, retry=ONCE)
    async with harness.worker():
        assert await (await harness.client.start_chain(anything, None)).result(WAIT) == 4
    assert all("timeout must be" in one for one in refused)
