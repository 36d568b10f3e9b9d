"""What the tests of `attempt.complete()` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from queuert import Attempt, JobStatus, RetryPolicy
from queuert.observability.events import FinishFailed, LoopFailed
from tests.worker.support import WAIT, Stage, number

WRITE = "insert into effect values (%s, %s)"

Effects = Callable[[], list[tuple[str, int]]]
Handler = Callable[[Attempt[Any, Any]], Any]


def effects_of(stage: Stage) -> Effects:
    """Make a table for the handlers' own writes; what is in it."""
    stage.rows("create table effect (job text, attempt int)")
    return lambda: [(row[0], row[1]) for row in stage.rows("select job, attempt from effect order by 1, 2")]


async def closed(stage: Stage, handler: Handler, **settings: Any) -> tuple[JobStatus, str]:
    """Run one job of this handler to its end: its status and error."""
    stage.handles(number, handler, **{"retry": RetryPolicy(max_attempts=1), **settings})
    async with stage.worker():
        chain = await (await stage.client.start_chain(number, 5, id="one")).wait(WAIT)
    assert stage.log.of(FinishFailed) + stage.log.of(LoopFailed) == []
    return (await stage.job("one")).status, str(chain.error)
