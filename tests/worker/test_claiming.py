"""Which jobs a worker takes, when, and how many at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

import pytest

from queuert import Attempt, InProcessWorker, JobStatus, NewChain, Outcome, Processors, after, at
from queuert.errors import StateUnavailableError
from queuert.notify.adapter import Notification, Topic
from queuert.observability.events import AttemptCompleted, AttemptInterrupted, AttemptStarted
from queuert.policies import Backoff
from queuert.state.postgres.async_store import AsyncPostgresStore
from queuert.state.types import ClaimedJob, ClaimRequest
from queuert.worker.runner import AttemptRunner
from queuert.worker.runtime import WorkerRuntime
from tests.support.harness import PostgresHarness
from tests.support.job_types import JOB_TYPES, echo, number, relay, text
from tests.support.waiting import WAIT, Gate, in_time, until


async def test_no_more_at_once_than_slots(harness: PostgresHarness) -> None:
    running, most, all_taken = 0, 0, asyncio.Event()

    @harness.processors.handles(number)
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

    chains = await harness.client.start_chains([NewChain(number, one) for one in range(60)])
    async with harness.worker(concurrency=7) as worker:
        await harness.client.wait(chains, timeout=WAIT)
        await until(lambda: worker.running == 0, "all attempts are over")
    assert most == 7


async def test_what_was_claimed_begins_before_the_look_for_what_is_next(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    next_due = AsyncPostgresStore.next_due

    async def noted(store: AsyncPostgresStore, types: Sequence[str]) -> float | None:
        order.append("looked")
        return await next_due(store, types)

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        order.append("began")
        return attempt.input

    monkeypatch.setattr(AsyncPostgresStore, "next_due", noted)
    chain = await harness.client.start_chain(number, 1)
    async with harness.worker(concurrency=2):
        await chain.wait(timeout=WAIT)
        await until(lambda: "looked" in order, "it has looked for what is next")
    assert order[0] == "began"


class Claims:
    """The requests that workers send, and when nothing is left to claim."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[ClaimRequest] = []
        claim = AsyncPostgresStore.claim

        async def noted(store: AsyncPostgresStore, request: ClaimRequest) -> list[ClaimedJob]:
            self.requests.append(request)
            return await claim(store, request)

        monkeypatch.setattr(AsyncPostgresStore, "claim", noted)

    @property
    def types(self) -> list[tuple[list[str], bool]]:
        """The types of the requests, and whether they are for ready jobs alone; without repetitions, since a
        notification may come twice."""
        found = [(sorted(one.leases), one.ready_only) for one in self.requests]
        return [one for one, _ in groupby(found)]


ALL_TYPES = ["number", "text"]


async def idle(worker: InProcessWorker) -> None:
    """Wait until the worker has claimed, and has found that nothing is left."""
    runtime = worker._runtime
    assert runtime is not None
    await until(lambda: runtime.claimer._nothing_left, "nothing is left to claim")


async def listening(harness: PostgresHarness, worker: InProcessWorker) -> None:
    """Wait until the worker is idle and gets notifications: when it begins to listen, it claims all types once more."""
    runtime = worker._runtime
    assert runtime is not None
    await idle(worker)
    async with asyncio.timeout(WAIT):
        while runtime.claimer._claimed_all_types:
            await (await harness.client.start_chain(number, 0)).result(WAIT)
    await idle(worker)


async def test_an_idle_worker_claims_jobs_of_the_type_that_became_due(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = Claims(monkeypatch)
    harness.handles(number, echo)
    harness.handles(text, echo)
    async with harness.worker(poll_interval=3600.0) as worker:
        await listening(harness, worker)
        claims.requests.clear()
        for one in range(3):
            assert await (await harness.client.start_chain(number, one)).result(WAIT) == one
            await idle(worker)
        assert await (await harness.client.start_chain(text, "a")).result(WAIT) == "a"
        assert claims.types == [(["number"], True), (["text"], True)]
        claims.requests.clear()
        await harness.client.start_chains([NewChain(number, 1), NewChain(text, "a")])
        await until(lambda: claims.requests, "it claims")
        assert claims.types[0] in ((ALL_TYPES, True), (["number"], True), (["text"], True))
        await idle(worker)
        claims.requests.clear()
        worker._runtime.claimer._on_notification(Notification(Topic.JOBS, None))  # type: ignore[union-attr]
        await until(lambda: claims.requests, "it claims")
        assert claims.types == [(ALL_TYPES, False)]


async def test_a_worker_that_had_no_free_slot_claims_all_types(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waited for one, jobs of other types may have become due of which no notification comes."""
    claims, gate = Claims(monkeypatch), Gate()

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.input:
            await gate.pass_through(attempt)
        return attempt.input

    harness.handles(text, echo)
    async with harness.worker(poll_interval=3600.0, concurrency=1) as worker:
        await listening(harness, worker)
        held = await harness.client.start_chain(number, 1)
        await gate.next()
        await idle(worker)
        assert worker._runtime is not None
        monkeypatch.setattr(worker._runtime.prefetch, "_enabled", False)  # As after a handler that takes long.
        claims.requests.clear()
        scheduled = await harness.client.start_chain(text, "a", priority=9, run_at=after(seconds=0.1))
        later = await harness.client.start_chain(number, 0)
        due = "select scheduled_at <= clock_timestamp() from queuert.job where id = %s"
        while not harness.one(due, scheduled.id):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        gate.open()
        await harness.client.wait([held], timeout=WAIT)
        await harness.client.wait([scheduled, later], timeout=WAIT)
        assert claims.types[0] == (ALL_TYPES, False)


async def test_what_was_not_notified_is_claimed_after_what_was(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for the next poll, however many notifications come: a look at what is left finds it."""
    claims = Claims(monkeypatch)
    harness.handles(number, echo)
    harness.handles(text, echo)
    async with harness.worker(poll_interval=3600.0) as worker:
        await listening(harness, worker)
        claims.requests.clear()
        assert worker._runtime is not None
        never = Backoff(initial_delay=3600.0, max_delay=3600.0)
        monkeypatch.setattr(worker._runtime.claimer, "_empty_claim_backoff", never)
        harness.insert("text", '"silent"', id="silent")  # A notification of it was lost.
        await harness.client.start_chain(number, 1)
        assert await (await harness.client.get_chain("silent")).result(WAIT) == "silent"
        await idle(worker)
        assert claims.types[:2] == [(["number"], True), (ALL_TYPES, False)]
        scheduled = await harness.client.start_chain(text, "scheduled", run_at=after(seconds=0.1))
        while (await harness.job(scheduled.id)).status is not JobStatus.COMPLETED:
            await (await harness.client.start_chain(number, 1)).result(WAIT)


async def test_after_a_claim_that_failed_all_types_are_claimed(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What became due of which types is forgotten with it."""
    harness.handles(number, echo)
    harness.handles(text, echo)
    async with harness.worker(poll_interval=3600.0) as worker:
        await listening(harness, worker)
        claim, failures = AsyncPostgresStore.claim, [StateUnavailableError("it is away")]

        async def failing(store: AsyncPostgresStore, request: ClaimRequest) -> list[ClaimedJob]:
            if failures:
                raise failures.pop()
            return await claim(store, request)

        monkeypatch.setattr(AsyncPostgresStore, "claim", failing)
        claims = Claims(monkeypatch)
        assert await (await harness.client.start_chain(number, 1)).result(WAIT) == 1
        assert claims.types[:2] == [(["number"], True), (ALL_TYPES, False)]


async def test_a_claim_that_was_answered_after_its_lease_is_given_back(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job does not begin, waits for no reaper, and the attempt does not count."""
    make_runners, delays = WorkerRuntime.make_runners, [3_600.0]

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.input

    def make_late(worker: WorkerRuntime, jobs: Sequence[ClaimedJob], sent_at: float) -> list[AttemptRunner]:
        return make_runners(worker, jobs, sent_at - (delays.pop() if delays else 0.0))

    # The first claim that takes a job counts as sent an hour ago; one that takes none may come before it.
    monkeypatch.setattr(WorkerRuntime, "make_runners", make_late)
    chain = await harness.client.start_chain(number, 1)
    async with harness.worker():
        assert await chain.result(timeout=WAIT) == 1
    job = await harness.job(chain.id)
    assert (job.attempt, job.uncounted, job.lease_expirations) == (2, 1, 0)
    assert len(harness.log.of(AttemptInterrupted)) == 1


async def test_no_more_threads_at_once_than_slots(harness: PostgresHarness) -> None:
    lock, barrier = threading.Lock(), threading.Barrier(3)
    counts = {"now": 0, "most": 0}

    @harness.processors.handles(number)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with lock:
            counts["now"] += 1
            counts["most"] = max(counts["most"], counts["now"])
        barrier.wait(WAIT)
        with lock:
            counts["now"] -= 1
        return attempt.input

    chains = await harness.client.start_chains([NewChain(number, one) for one in range(30)])
    async with harness.worker(concurrency=3):
        await harness.client.wait(chains, timeout=WAIT)
    assert counts == {"now": 0, "most": 3}


async def test_a_slot_is_refilled_while_another_is_held(harness: PostgresHarness) -> None:
    gate = Gate()

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.input == 0:
            await gate.pass_through(attempt)
        return attempt.input

    held = await harness.client.start_chain(number, 0)
    async with harness.worker(concurrency=2):
        await gate.next()
        others = await harness.client.start_chains([NewChain(number, one) for one in range(1, 30)])
        await harness.client.wait(others, timeout=WAIT)
        gate.open()
        await held.result(WAIT)


async def test_jobs_of_unknown_types_are_let_be(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    await harness.client.start_chain(text, "nobody handles it", id="unhandled", priority=100)
    harness.insert("unheard-of", "1", id="unheard")
    before = harness.rows("select * from queuert.job order by id")
    async with harness.worker():
        assert await (await harness.client.start_chain(number, 1)).result(WAIT) == 1
    assert harness.rows("select * from queuert.job where id like 'unh%%' order by id") == before


async def test_the_highest_priority_goes_first_and_then_the_oldest(harness: PostgresHarness) -> None:
    order: list[int] = []

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        order.append(attempt.input)
        return attempt.input

    chains = []
    for value, priority in ((1, 0), (2, 5), (3, -5), (4, 5), (5, 0)):
        chains.append(await harness.client.start_chain(number, value, priority=priority))
    async with harness.worker():
        await harness.client.wait(chains, timeout=WAIT)
    assert order == [2, 4, 1, 5, 3]


async def test_a_continuation_inherits_the_priority(harness: PostgresHarness) -> None:
    harness.handles(relay, lambda attempt: attempt.continue_with(number, 1))
    async with harness.worker():
        await harness.client.start_chain(relay, 1, priority=7)
        await harness.log.wait_for(AttemptStarted)
    assert harness.rows("select distinct priority from queuert.job") == [(7,)]


async def test_a_scheduled_job_runs_when_it_is_due_and_not_before(harness: PostgresHarness) -> None:
    seen: list[bool] = []

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        seen.append(
            harness.one("select scheduled_at <= clock_timestamp() from queuert.job where id = %s", attempt.job_id)
        )
        return attempt.input

    async with harness.worker(poll_interval=3600.0):
        soon = await harness.client.start_chain(number, 1, run_at=after(seconds=0.3))
        moment = await harness.client.start_chain(number, 2, run_at=at(datetime.now(UTC) + timedelta(seconds=0.2)))
        past = await harness.client.start_chain(number, 3, run_at=at(datetime(2001, 1, 1, tzinfo=UTC)))
        later = await harness.client.start_chain(number, 4, run_at=after(hours=1))
        await harness.client.wait([soon, moment, past], timeout=WAIT)
        assert (await harness.job(later.id)).status is JobStatus.SCHEDULED
    assert seen == [True] * 3


async def test_a_retry_runs_when_it_is_due_without_a_poll(harness: PostgresHarness) -> None:
    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.retry(after=0.2) if attempt.number == 1 else attempt.input

    async with harness.worker(poll_interval=3600.0):
        chain = await harness.client.start_chain(number, 1)
        assert await chain.result(WAIT) == 1


async def test_several_groups_share_the_slots(harness: PostgresHarness) -> None:
    other = Processors(JOB_TYPES)
    harness.handles(number, echo)
    other.handles(text)(echo)
    chains: list[Any] = await harness.client.start_chains([NewChain(number, one) for one in range(10)])
    chains += await harness.client.start_chains([NewChain(text, "x") for _ in range(10)])
    async with harness.worker([harness.processors, other], concurrency=3):
        await harness.client.wait(chains, timeout=WAIT)
    assert len(harness.log.of(AttemptCompleted)) == 20


async def test_a_notification_wakes_an_idle_worker(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    async with harness.worker(poll_interval=3600.0):
        for value in range(20):
            chain = await harness.client.start_chain(number, value)
            assert await chain.result(WAIT) == value


async def test_a_job_inserted_by_hand_is_found_by_polling(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    async with harness.worker(poll_interval=0.05):
        assert await (await harness.client.start_chain(number, 0)).result(WAIT) == 0
        harness.insert("number", "5", id="silent")
        await harness.log.wait_for(AttemptCompleted, job_id="silent")


@pytest.mark.parametrize("workers", [1, 4])
async def test_every_job_is_run_once_by_many_workers(harness: PostgresHarness, workers: int) -> None:
    harness.handles(number, echo)
    chains = await harness.client.start_chains([NewChain(number, one) for one in range(400)])
    for _ in range(workers):
        await harness.worker(concurrency=10).start()
    await harness.client.wait(chains, timeout=WAIT)
    started = [event.job_id for event in harness.log.of(AttemptStarted)]
    assert len(started) == len(set(started)) == 400
