"""Blocks and waiting of handlers that run in a process of their own."""

from __future__ import annotations

from typing import Any

import pytest

from queuert import JobStatus, RetryPolicy
from queuert.observability.events import AttemptRetried
from tests.worker import staged
from tests.worker.completing import Effects, effects_of
from tests.worker.support import AT_ONCE, SPAWN, Stage, anything, echo, number

pytestmark = pytest.mark.timeout(2 * SPAWN)


@pytest.fixture
def effects(stage: Stage) -> Effects:
    """A table for the handlers' own writes, and what is in it."""
    return effects_of(stage)


async def run(stage: Stage, handler: Any, input: Any = None, **settings: Any) -> tuple[JobStatus, Any, str]:
    stage.handles(anything, handler, executor="process", **{"retry": AT_ONCE, **settings})
    async with stage.worker(concurrency=2):
        chain = await (await stage.client.start_chain(anything, input)).wait(SPAWN)
    job = await stage.job(chain.id)
    return job.status, job.output, str(chain.error)


async def test_one_of_each(stage: Stage, effects: Effects) -> None:
    status, pid, _ = await run(stage, staged.in_stages)
    assert status is JobStatus.COMPLETED
    assert effects() == [("complete", pid), ("prepare", pid), ("transaction", pid)]


async def test_a_poisoned_one(stage: Stage, effects: Effects) -> None:
    assert (await run(stage, staged.poisoned))[:2] == (JobStatus.COMPLETED, 2)
    assert effects() == [("prepare", 2)]


async def test_one_inside_another(stage: Stage) -> None:
    status, _, error = await run(stage, staged.nested, retry=RetryPolicy(max_attempts=1))
    assert status is JobStatus.FAILED
    assert "CompletionMisuseError" in error


async def test_a_process_that_dies_in_one(stage: Stage, effects: Effects) -> None:
    assert (await run(stage, staged.dies_in_prepare))[:2] == (JobStatus.COMPLETED, 2)
    assert effects() == [("prepare", 2)]
    assert [event.error.kind for event in stage.log.of(AttemptRetried)] == ["crashed"]


@pytest.mark.parametrize("how", ["returned", "finished"])
async def test_waiting_for_chains(stage: Stage, how: str) -> None:
    stage.handles(number, echo)
    assert (await run(stage, staged.joins, how))[:2] == (JobStatus.COMPLETED, 3)
