"""What goes on whatever the load, and after however many errors: the reaper, and the pauses of supervised loops."""

from __future__ import annotations

import asyncio

from queuert import Attempt, NewChain
from queuert.errors import StateUnavailableError
from queuert.ids import new_token
from queuert.observability.adapter import Observers
from queuert.observability.events import Event, JobReaped, LoopFailed, LoopRecovered
from queuert.policies import Backoff
from queuert.state.types import ClaimRequest
from queuert.testing.events import EventLog
from queuert.worker.supervisor import SupervisedLoop
from tests.support.harness import PostgresHarness
from tests.support.job_types import SHORT, number, text
from tests.support.waiting import Gate, in_time


async def test_the_dead_are_found_while_every_slot_is_taken(harness: PostgresHarness) -> None:
    """A worker whose only slot is busy, with a backlog behind it, still reaps what another left behind."""
    gate = Gate()

    async def waits(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.input

    harness.handles(number, waits)
    harness.handles(text, waits, lease=SHORT)
    chain = await harness.client.start_chain(text, "left behind")
    dead = harness.state.async_store(max_connections=1)
    await dead.open()
    [left] = await dead.claim(ClaimRequest({"text": 0.2}, 1, "dead", new_token()))
    await dead.aclose()
    assert left.id == chain.id
    await harness.client.start_chains([NewChain(number, value, priority=1) for value in range(20)])
    async with harness.worker(concurrency=1, shutdown_timeout=0.0):
        await gate.next()
        reaped = await harness.log.wait_for(JobReaped, job_id=chain.id)
        assert (reaped.holder, reaped.failed) == ("dead", False)
        gate.open()


async def test_a_loop_that_has_recovered_begins_its_pauses_anew() -> None:
    """Errors long ago do not make the next one cost more."""
    log = EventLog()
    outcomes = iter([False, False, False, True, False, True])
    done = asyncio.Event()

    async def step() -> None:
        if (good := next(outcomes, None)) is None:
            done.set()
            await asyncio.Event().wait()
        if not good:
            raise StateUnavailableError("away")

    quick = Backoff(initial_delay=0.001, max_delay=1000.0)
    loop = SupervisedLoop("loop", step, worker="worker", observers=Observers([log]), backoff=quick)
    loop.start()
    await in_time(done.wait())
    await loop.stop()
    assert [event.failures for event in log.of(LoopFailed)] == [1, 2, 3, 1]
    assert [event.failures for event in log.of(LoopRecovered)] == [3, 1]
    first, _, third, again = (event.retry_in for event in log.of(LoopFailed))
    assert max(first, again) <= 0.001 < third


async def test_a_loop_outlives_a_failure_that_cannot_be_reported() -> None:
    """Not even the event could be made, for want of memory: the step is tried again."""
    done = asyncio.Event()
    steps = 0

    class Mute(Observers):
        def emit(self, event: Event) -> None:
            raise MemoryError

    async def step() -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            done.set()
            await asyncio.Event().wait()
        raise StateUnavailableError("away")

    loop = SupervisedLoop("loop", step, worker="worker", observers=Mute())
    loop.start()
    await in_time(done.wait())
    await loop.stop()


async def test_a_loop_that_somebody_cancels_while_it_pauses_goes_on() -> None:
    """After a failure as well: it tells of the cancellation too, and tries again."""
    log = EventLog()
    done = asyncio.Event()
    steps = 0

    async def step() -> None:
        nonlocal steps
        steps += 1
        if steps == 1:
            raise StateUnavailableError("away")
        done.set()
        await asyncio.Event().wait()

    class LongAtFirst(Backoff):
        def delay(self, failures: int) -> float:
            return 1000.0 if failures == 1 else 0.0

    loop = SupervisedLoop("loop", step, worker="worker", observers=Observers([log]), backoff=LongAtFirst())
    before = asyncio.all_tasks()
    loop.start()
    (task,) = asyncio.all_tasks() - before
    await log.wait_for(LoopFailed)
    task.cancel()
    await in_time(done.wait())
    await loop.stop()
    away, cancelled = log.of(LoopFailed)
    assert "away" in away.error
    assert "cancelled by somebody else" in cancelled.error
