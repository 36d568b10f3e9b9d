"""Blocks and waiting of handlers that run in a process of their own."""

from __future__ import annotations

from typing import Any

import pytest

from queuert import JobStatus, RetryPolicy
from queuert.observability.events import AttemptRetried, AttemptSnoozed
from tests.support.harness import PostgresHarness
from tests.support.job_types import AT_ONCE, anything, echo, number
from tests.support.waiting import START
from tests.worker import staged
from tests.worker.completing import Effects, effects_of

pytestmark = pytest.mark.timeout(2 * START)


@pytest.fixture
def effects(harness: PostgresHarness) -> Effects:
    """A table for the handlers' own writes, and what is in it."""
    return effects_of(harness)


async def run(harness: PostgresHarness, handler: Any, input: Any = None, **settings: Any) -> tuple[JobStatus, Any, str]:
    harness.handles(anything, handler, executor="process", **{"retry": AT_ONCE, **settings})
    async with harness.worker(concurrency=2):
        chain = await (await harness.client.start_chain(anything, input)).wait(START)
    job = await harness.job(chain.id)
    return job.status, job.output, str(chain.error)


async def test_one_of_each(harness: PostgresHarness, effects: Effects) -> None:
    status, pid, _ = await run(harness, staged.in_stages)
    assert status is JobStatus.COMPLETED
    assert effects() == [("complete", pid), ("prepare", pid), ("transaction", pid)]


async def test_a_poisoned_one(harness: PostgresHarness, effects: Effects) -> None:
    assert (await run(harness, staged.poisoned))[:2] == (JobStatus.COMPLETED, 2)
    assert effects() == [("prepare", 2)]


async def test_one_inside_another(harness: PostgresHarness) -> None:
    status, _, error = await run(harness, staged.nested, retry=RetryPolicy(max_attempts=1))
    assert status is JobStatus.FAILED
    assert "CompletionMisuseError" in error


async def test_a_process_that_dies_in_one(harness: PostgresHarness, effects: Effects) -> None:
    assert (await run(harness, staged.dies_in_prepare))[:2] == (JobStatus.COMPLETED, 2)
    assert effects() == [("prepare", 2)]
    assert [event.error.kind for event in harness.log.of(AttemptRetried)] == ["crashed"]


@pytest.mark.parametrize("how", ["returned", "finished"])
async def test_waiting_for_chains(harness: PostgresHarness, how: str) -> None:
    harness.handles(number, echo)
    assert (await run(harness, staged.joins, how))[:2] == (JobStatus.COMPLETED, 3)


async def test_steps_of_a_process_that_dies(harness: PostgresHarness, effects: Effects) -> None:
    status, output, _ = await run(harness, staged.in_steps, retry=RetryPolicy(max_attempts=2, initial_delay=0.0))
    assert (status, output) == (JobStatus.COMPLETED, [1, 1])
    assert effects() == [("written", 1)]


async def test_a_process_that_dies_in_a_step(harness: PostgresHarness, effects: Effects) -> None:
    assert (await run(harness, staged.dies_in_a_step))[:2] == (JobStatus.COMPLETED, 2)
    assert effects() == [("step", 2)]


async def test_a_process_that_waits_for_an_event(harness: PostgresHarness) -> None:
    harness.handles(anything, staged.waits_for_an_event, executor="process", retry=AT_ONCE)
    async with harness.worker(concurrency=2):
        chain = await harness.client.start_chain(anything, None)
        await harness.log.wait_for(AttemptSnoozed)
        await harness.client.send_event(chain, "number", 7)
        assert await chain.result(START) == 7
