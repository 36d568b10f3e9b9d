"""Which jobs a worker takes, when, and how many at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queuert import Attempt, JobStatus, NewChain, Outcome, Processors, after, at
from queuert.observability.events import AttemptCompleted, AttemptReleased, AttemptStarted
from queuert.state.postgres.async_store import AsyncPostgresStore
from queuert.worker import claimer
from queuert.worker.leases import lease_time
from tests.worker.support import JOB_TYPES, WAIT, Gate, Stage, echo, in_time, number, relay, text, until


async def test_no_more_at_once_than_slots(stage: Stage) -> None:
    running, most, all_taken = 0, 0, asyncio.Event()

    @stage.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 7:
            all_taken.set()
        # However slowly they begin, nobody ends before all slots are taken; others might begin beyond them then.
        await in_time(all_taken.wait())
        await asyncio.sleep(0.001)
        running -= 1
        return attempt.input

    chains = await stage.client.start_chains([NewChain(number, one) for one in range(60)])
    async with stage.worker(concurrency=7) as worker:
        await stage.client.wait(chains, timeout=WAIT)
        await until(lambda: worker.running == 0, "all attempts are over")
    assert most == 7


async def test_what_was_claimed_begins_before_the_look_for_what_is_next(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    next_due = AsyncPostgresStore.next_due

    async def noted(store: AsyncPostgresStore, types: Sequence[str]) -> float | None:
        order.append("looked")
        return await next_due(store, types)

    @stage.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        order.append("began")
        return attempt.input

    monkeypatch.setattr(AsyncPostgresStore, "next_due", noted)
    chain = await stage.client.start_chain(number, 1)
    async with stage.worker(concurrency=2):
        await chain.wait(timeout=WAIT)
        await until(lambda: "looked" in order, "it has looked for what is next")
    assert order[0] == "began"


async def test_a_claim_that_was_answered_after_its_lease_is_given_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job does not begin, waits for no reaper, and the attempt does not count."""
    requested = iter([lease_time() - 3_600])

    @stage.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.input

    # When the claim was sent is the first time that the claimer asks for.
    monkeypatch.setattr(claimer, "lease_time", lambda: next(requested, None) or lease_time())
    chain = await stage.client.start_chain(number, 1)
    async with stage.worker():
        assert await chain.result(timeout=WAIT) == 1
    job = await stage.job(chain.id)
    assert (job.attempt, job.uncounted, job.lease_expirations) == (2, 1, 0)
    assert len(stage.log.of(AttemptReleased)) == 1


async def test_no_more_threads_at_once_than_slots(stage: Stage) -> None:
    lock, barrier = threading.Lock(), threading.Barrier(3)
    counts = {"now": 0, "most": 0}

    @stage.processors.handles(number)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with lock:
            counts["now"] += 1
            counts["most"] = max(counts["most"], counts["now"])
        barrier.wait(WAIT)
        with lock:
            counts["now"] -= 1
        return attempt.input

    chains = await stage.client.start_chains([NewChain(number, one) for one in range(30)])
    async with stage.worker(concurrency=3):
        await stage.client.wait(chains, timeout=WAIT)
    assert counts == {"now": 0, "most": 3}


async def test_a_slot_is_refilled_while_another_is_held(stage: Stage) -> None:
    gate = Gate()

    @stage.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.input == 0:
            await gate.pass_through(attempt)
        return attempt.input

    held = await stage.client.start_chain(number, 0)
    async with stage.worker(concurrency=2):
        await gate.next()
        others = await stage.client.start_chains([NewChain(number, one) for one in range(1, 30)])
        await stage.client.wait(others, timeout=WAIT)
        gate.open()
        await held.result(WAIT)


async def test_jobs_of_unknown_types_are_let_be(stage: Stage) -> None:
    stage.handles(number, echo)
    await stage.client.start_chain(text, "nobody handles it", id="unhandled", priority=100)
    stage.insert("unheard-of", "1", id="unheard")
    before = stage.rows("select * from queuert.job order by id")
    async with stage.worker():
        assert await (await stage.client.start_chain(number, 1)).result(WAIT) == 1
    assert stage.rows("select * from queuert.job where id like 'unh%%' order by id") == before


async def test_the_highest_priority_goes_first_and_then_the_oldest(stage: Stage) -> None:
    order: list[int] = []

    @stage.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        order.append(attempt.input)
        return attempt.input

    chains = []
    for value, priority in ((1, 0), (2, 5), (3, -5), (4, 5), (5, 0)):
        chains.append(await stage.client.start_chain(number, value, priority=priority))
    async with stage.worker():
        await stage.client.wait(chains, timeout=WAIT)
    assert order == [2, 4, 1, 5, 3]


async def test_a_continuation_inherits_the_priority(stage: Stage) -> None:
    stage.handles(relay, lambda attempt: attempt.continue_with(number, 1))
    async with stage.worker():
        await stage.client.start_chain(relay, 1, priority=7)
        await stage.log.wait_for(AttemptStarted)
    assert stage.rows("select distinct priority from queuert.job") == [(7,)]


async def test_a_scheduled_job_runs_when_it_is_due_and_not_before(stage: Stage) -> None:
    seen: list[bool] = []

    @stage.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        seen.append(
            stage.one("select scheduled_at <= clock_timestamp() from queuert.job where id = %s", attempt.job_id)
        )
        return attempt.input

    async with stage.worker(poll_interval=3600.0):
        soon = await stage.client.start_chain(number, 1, run_at=after(seconds=0.3))
        moment = await stage.client.start_chain(number, 2, run_at=at(datetime.now(UTC) + timedelta(seconds=0.2)))
        past = await stage.client.start_chain(number, 3, run_at=at(datetime(2001, 1, 1, tzinfo=UTC)))
        later = await stage.client.start_chain(number, 4, run_at=after(hours=1))
        await stage.client.wait([soon, moment, past], timeout=WAIT)
        assert (await stage.job(later.id)).status is JobStatus.SCHEDULED
    assert seen == [True] * 3


async def test_a_retry_runs_when_it_is_due_without_a_poll(stage: Stage) -> None:
    @stage.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.retry(after=0.2) if attempt.number == 1 else attempt.input

    async with stage.worker(poll_interval=3600.0):
        chain = await stage.client.start_chain(number, 1)
        assert await chain.result(WAIT) == 1


async def test_several_groups_share_the_slots(stage: Stage) -> None:
    other = Processors(JOB_TYPES)
    stage.handles(number, echo)
    other.handles(text)(echo)
    chains: list[Any] = await stage.client.start_chains([NewChain(number, one) for one in range(10)])
    chains += await stage.client.start_chains([NewChain(text, "x") for _ in range(10)])
    async with stage.worker([stage.processors, other], concurrency=3):
        await stage.client.wait(chains, timeout=WAIT)
    assert len(stage.log.of(AttemptCompleted)) == 20


async def test_a_notification_wakes_an_idle_worker(stage: Stage) -> None:
    stage.handles(number, echo)
    async with stage.worker(poll_interval=3600.0):
        for value in range(20):
            chain = await stage.client.start_chain(number, value)
            assert await chain.result(WAIT) == value


async def test_a_job_inserted_by_hand_is_found_by_polling(stage: Stage) -> None:
    stage.handles(number, echo)
    async with stage.worker(poll_interval=0.05):
        assert await (await stage.client.start_chain(number, 0)).result(WAIT) == 0
        stage.insert("number", "5", id="silent")
        await stage.log.wait_for(AttemptCompleted, job_id="silent")


@pytest.mark.parametrize("workers", [1, 4])
async def test_every_job_is_run_once_by_many_workers(stage: Stage, workers: int) -> None:
    stage.handles(number, echo)
    chains = await stage.client.start_chains([NewChain(number, one) for one in range(400)])
    for _ in range(workers):
        await stage.worker(concurrency=10).start()
    await stage.client.wait(chains, timeout=WAIT)
    started = [event.job_id for event in stage.log.of(AttemptStarted)]
    assert len(started) == len(set(started)) == 400
