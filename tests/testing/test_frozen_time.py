"""Tests of users in which the time stands still, by the two libraries that are used for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from freezegun import freeze_time

from queuert import Attempt, JobType, JobTypes, Outcome, Processors, RetryPolicy, after
from queuert.errors import ConfigurationError
from queuert.state.adapter import StateAdapter
from queuert.testing import AsyncJobQueue, JobQueue, run_inline, run_inline_sync

stamp = JobType("stamp", input=int, output=str)
processors = Processors(JobTypes(stamp), retry=RetryPolicy(initial_delay=60.0, max_delay=60.0, jitter=0.0))

MOMENT = datetime(2031, 3, 1, tzinfo=UTC)
Frozen = Callable[[datetime], AbstractContextManager[Any]]


@processors.handles(stamp)
async def stamped(attempt: Attempt[int, str]) -> Outcome[str]:
    if attempt.number == 1:
        return attempt.retry()
    await attempt.sleep("pause", timedelta(hours=attempt.input))
    return datetime.now(UTC).isoformat()


def _with_freezegun(moment: datetime) -> AbstractContextManager[Any]:
    return freeze_time(moment, real_asyncio=True)


def _with_time_machine(moment: datetime) -> AbstractContextManager[Any]:
    return time_machine.travel(moment, tick=False)


frozen_by = pytest.mark.parametrize("frozen", [_with_freezegun, _with_time_machine])
moments = pytest.mark.parametrize("moment", [MOMENT, MOMENT - timedelta(days=20 * 365)], ids=["later", "earlier"])


@frozen_by
@moments
async def test_handlers_read_it_and_time_can_be_moved(state: StateAdapter, frozen: Frozen, moment: datetime) -> None:
    with frozen(moment):
        async with AsyncJobQueue(state, JobTypes(stamp)) as queue:
            chain = await queue.client.start_chain(stamp, 2, run_at=after(hours=1))
            assert await queue.run_until_idle(processors) == []
            await queue.advance(hours=1)
            for outcome, delay in (("retried", timedelta(minutes=1)), ("snoozed", timedelta(hours=2))):
                [ran] = await queue.run_until_idle(processors, allow_failures=True)
                assert ran.outcome == outcome
                assert await queue.run_until_idle(processors) == []
                await queue.advance(delay)
            assert len(await queue.run_until_idle(processors)) == 1
            assert await chain.result(timeout=0) == moment.isoformat()


@frozen_by
@moments
def test_inline(frozen: Frozen, moment: datetime) -> None:
    with frozen(moment):
        assert run_inline_sync(processors, stamp, 2, allow_failures=True) == moment.isoformat()


@pytest.mark.parametrize("tick", [False, True])
async def test_a_frozen_loop_is_refused(state: StateAdapter, tick: bool) -> None:
    with freeze_time(MOMENT, tick=tick), pytest.raises(ConfigurationError, match="real_asyncio=True"):
        await run_inline(processors, stamp, 0)


def test_a_frozen_loop_is_refused_in_synchronous_tests(state: StateAdapter) -> None:
    with freeze_time(MOMENT):
        with pytest.raises(ConfigurationError, match="real_asyncio=True"):
            run_inline_sync(processors, stamp, 0)
        with JobQueue(state, JobTypes(stamp)) as queue:
            queue.client.start_chain(stamp, 0)
            with pytest.raises(ConfigurationError, match="real_asyncio=True"):
                queue.run_until_idle(processors)
