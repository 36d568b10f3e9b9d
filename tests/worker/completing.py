"""What the tests of `attempt.complete()` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from queuert import Attempt, JobStatus, RetryPolicy
from queuert.observability.events import FinishFailed, LoopFailed
from tests.support.harness import PostgresHarness
from tests.support.job_types import number
from tests.support.waiting import WAIT

WRITE = "insert into effect values (%s, %s)"

Effects = Callable[[], list[tuple[str, int]]]
Handler = Callable[[Attempt[Any, Any]], Any]


def effects_of(harness: PostgresHarness) -> Effects:
    """Make a table for the handlers' own writes; what is in it."""
    harness.rows("create table effect (job text, attempt int)")
    return lambda: [(row[0], row[1]) for row in harness.rows("select job, attempt from effect order by 1, 2")]


async def closed(harness: PostgresHarness, handler: Handler, **settings: Any) -> tuple[JobStatus, str]:
    """Run one job of this handler to its end: its status and error."""
    harness.handles(number, handler, **{"retry": RetryPolicy(max_attempts=1), **settings})
    async with harness.worker():
        chain = await (await harness.client.start_chain(number, 5, id="one")).wait(WAIT)
    assert harness.log.of(FinishFailed) + harness.log.of(LoopFailed) == []
    return (await harness.job("one")).status, str(chain.error)
