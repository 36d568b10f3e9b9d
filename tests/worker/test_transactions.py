"""`attempt.transaction()`: guarded transactions in the middle of the work, any number of them."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from queuert import Attempt, JobStatus, Outcome, RetryPolicy
from queuert.errors import CompletionMisuseError
from queuert.jobs import AbortReason
from queuert.observability.events import (
    AttemptAborted,
    AttemptCompleted,
    AttemptInterrupted,
    AttemptRetried,
    ErrorAfterCompletion,
    FinishRejected,
    WorkerStopping,
)
from queuert.policies import LeasePolicy
from tests.support.harness import PostgresHarness
from tests.support.job_types import number
from tests.support.waiting import WAIT, in_time, until
from tests.worker.completing import WRITE, Effects, Handler, closed, effects_of

modes = pytest.mark.parametrize("mode", ["coroutine", "thread"])
LEASE = "select extract(epoch from lease_expires_at)::float8 from queuert.job"


@pytest.fixture(autouse=True)
def _patient_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stops waits for the ends of blocks: two seconds may be too short for them."""
    monkeypatch.setattr("queuert.worker.runtime._AFTER_CANCEL", WAIT)


@pytest.fixture
def effects(harness: PostgresHarness) -> Effects:
    """A table for the handlers' own writes, and what is in it."""
    return effects_of(harness)


@modes
async def test_each_commits_by_itself(harness: PostgresHarness, effects: Effects, mode: str) -> None:
    seen: list[int] = []

    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        for step in range(3):
            async with attempt.transaction() as tx:
                await tx.connection.execute(WRITE, (attempt.job_id, step))
                assert len(effects()) == step
            seen.append(len(effects()))
        async with attempt.complete() as done:
            return done.finish(6)

    def in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        for step in range(3):
            with attempt.transaction() as tx:
                tx.connection.execute(WRITE, (attempt.job_id, step))
                assert len(effects()) == step
            seen.append(len(effects()))
        with attempt.complete() as done:
            return done.finish(6)

    assert (await closed(harness, in_loop if mode == "coroutine" else in_thread))[0] is JobStatus.COMPLETED
    assert seen == [1, 2, 3]
    assert effects() == [("one", 0), ("one", 1), ("one", 2)]


@modes
async def test_what_was_written_stays_when_a_later_one_fails(
    harness: PostgresHarness, effects: Effects, mode: str
) -> None:
    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.transaction() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, 1))
        with suppress(ValueError):
            async with attempt.transaction() as tx:
                await tx.connection.execute(WRITE, (attempt.job_id, 2))
                raise ValueError("inside")
        async with attempt.transaction() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, 3))
        raise ValueError("at last")

    def in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        with attempt.transaction() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, 1))
        with suppress(ValueError), attempt.transaction() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, 2))
            raise ValueError("inside")
        with attempt.transaction() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, 3))
        raise ValueError("at last")

    handler = in_loop if mode == "coroutine" else in_thread
    assert await closed(harness, handler) == (JobStatus.FAILED, "ValueError: at last")
    assert effects() == [("one", 1), ("one", 3)]


@modes
async def test_a_poisoned_one_is_rolled_back_and_the_job_is_tried_again(
    harness: PostgresHarness, effects: Effects, mode: str
) -> None:
    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.transaction() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            if attempt.number == 1:
                with pytest.raises(psycopg.errors.DivisionByZero):
                    await tx.connection.execute("select 1 / 0")
        return 6

    def in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        with attempt.transaction() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            if attempt.number == 1:
                with pytest.raises(psycopg.errors.DivisionByZero):
                    tx.connection.execute("select 1 / 0")
        return 6

    handler = in_loop if mode == "coroutine" else in_thread
    assert (await closed(harness, handler, retry=RetryPolicy(initial_delay=0.0)))[0] is JobStatus.COMPLETED
    assert effects() == [("one", 2)]
    assert len(harness.log.of(AttemptRetried)) == 1


@modes
async def test_the_lease_is_renewed_at_once_after_a_block(
    harness: PostgresHarness, effects: Effects, mode: str
) -> None:
    """The lease is renewed every 20 minutes otherwise."""
    leases: list[float] = []

    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.transaction():
            leases.append(harness.one(LEASE))
        await until(lambda: harness.one(LEASE) > leases[0], "the lease is renewed")
        return 6

    def in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        with attempt.transaction():
            leases.append(harness.one(LEASE))
        for _ in range(2000):
            if harness.one(LEASE) > leases[0] or attempt.abort.wait_sync(0.005):
                return 6
        raise AssertionError("the lease was not renewed")

    handler = in_loop if mode == "coroutine" else in_thread
    assert await closed(harness, handler, lease=LeasePolicy(seconds=3600)) == (JobStatus.COMPLETED, "None")


@modes
async def test_a_block_that_lasts_for_longer_than_the_lease_keeps_the_job(
    harness: PostgresHarness, effects: Effects, mode: str
) -> None:
    expired: Any = "select lease_expires_at < clock_timestamp() from queuert.job"
    keep = "select pg_sleep(0.05)"

    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.transaction() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            while not harness.one(expired):
                await tx.connection.execute(keep)
        return 6

    def in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        with attempt.transaction() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            while not harness.one(expired):
                tx.connection.execute(keep)
        return 6

    handler = in_loop if mode == "coroutine" else in_thread
    # It must last in the worker while it runs out in the store: long enough for a thread that is held up.
    harness.handles(number, handler, lease=LeasePolicy(seconds=WAIT / 4, renew_every=0.3))
    async with harness.worker():
        chain = await harness.client.start_chain(number, 5)
        await chain.wait(WAIT)
    # The reaper may have come before the renewal; then there was a second attempt, and never two at once.
    job = await harness.job(chain.id)
    assert job.status is JobStatus.COMPLETED
    assert effects() == [(chain.id, attempt + 1) for attempt in range(job.attempt)]


@modes
async def test_a_lost_lease_is_refused_at_the_door(harness: PostgresHarness, effects: Effects, mode: str) -> None:
    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.transaction() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, 1))
        harness.rows("update queuert.job set lease_token = gen_random_uuid() where id = %s", attempt.job_id)
        async with attempt.transaction() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, 2))
        return 6

    def in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        with attempt.transaction() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, 1))
        harness.rows("update queuert.job set lease_token = gen_random_uuid() where id = %s", attempt.job_id)
        with attempt.transaction() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, 2))
        return 6

    harness.handles(number, in_loop if mode == "coroutine" else in_thread)
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        # The renewal that follows the first block may learn it sooner than the second block does.
        await until(
            lambda: [*harness.log.of(FinishRejected), *harness.log.of(AttemptAborted)] != [], "the loss is told"
        )
    refused = {one.reason for one in harness.log.of(FinishRejected)} | {
        one.reason for one in harness.log.of(AttemptAborted)
    }
    assert refused == {AbortReason.TAKEN_BY_ANOTHER_WORKER}
    assert effects() == [(chain.id, 1)]


@modes
async def test_a_block_that_is_open_when_the_grace_ends_is_all_or_nothing(
    harness: PostgresHarness, effects: Effects, mode: str
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.transaction() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            inside.set()
            await asyncio.Event().wait()

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        with attempt.transaction() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            inside.set()
            assert go_on.wait(WAIT)
        return 6

    harness.handles(number, in_loop if mode == "coroutine" else in_thread)
    worker = harness.worker()
    await worker.start()
    chain = await harness.client.start_chain(number, 5)
    assert await asyncio.to_thread(inside.wait, WAIT)
    stopping = asyncio.create_task(worker.stop(shutdown_timeout=0.0))
    await harness.log.wait_for(WorkerStopping)
    go_on.set()
    await in_time(stopping)
    if mode == "coroutine":
        assert effects() == []
        assert len(harness.log.of(AttemptInterrupted)) == 1
    job = await harness.job(chain.id)
    assert (job.status, job.uncounted) in [(JobStatus.READY, 1), (JobStatus.COMPLETED, 0)]


HOLD_COMMITS = """
create function wait_at_commit() returns trigger language plpgsql as $$
begin perform pg_advisory_xact_lock(17); return null; end $$;
create constraint trigger at_commit after insert on effect deferrable initially deferred
for each row execute function wait_at_commit()
"""


@pytest.mark.parametrize("block", ["prepare", "transaction", "complete"])
async def test_a_commit_that_is_under_way_is_carried_through(
    harness: PostgresHarness, effects: Effects, block: str
) -> None:
    attempts: list[Attempt[Any, Any]] = []

    async def handler(attempt: Attempt[Any, Any]) -> Any:
        attempts.append(attempt)
        if block == "complete":
            async with attempt.complete() as done:
                await done.connection.execute(WRITE, (attempt.job_id, attempt.number))
                return done.finish(6)
        async with attempt.prepare() if block == "prepare" else attempt.transaction() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
        raise AssertionError("it is cancelled")

    harness.rows(HOLD_COMMITS)
    harness.rows("select pg_advisory_lock(17)")
    harness.handles(number, handler)
    worker = harness.worker()
    await worker.start()
    chain = await harness.client.start_chain(number, 5)
    waiting: Any = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
    await until(lambda: harness.one(waiting) == 1, "the commit waits")
    stopping = asyncio.create_task(worker.stop(shutdown_timeout=0.0))
    await in_time(attempts[0].abort.wait())
    harness.rows("select pg_advisory_unlock(17)")
    await in_time(stopping)
    assert effects() == [(chain.id, 1)]
    finishes = [*harness.log.of(AttemptCompleted), *harness.log.of(AttemptInterrupted)]
    assert [type(one) for one in finishes] == [AttemptCompleted if block == "complete" else AttemptInterrupted]
    assert harness.log.of(FinishRejected) == []
    assert (await harness.job(chain.id)).status == ("completed" if block == "complete" else "ready")


# --- with other blocks ------------------------------------------------------------------------------------------------


async def inside_another(attempt: Attempt[Any, Any]) -> Any:
    async with attempt.transaction(), attempt.transaction():
        return 6


async def inside_complete(attempt: Attempt[Any, Any]) -> Any:
    async with attempt.complete() as tx, attempt.transaction():
        return tx.finish(6)


async def complete_inside(attempt: Attempt[Any, Any]) -> Any:
    async with attempt.transaction(), attempt.complete() as tx:
        return tx.finish(6)


async def beside_another(attempt: Attempt[Any, Any]) -> Any:
    async def one() -> None:
        async with attempt.transaction() as tx:
            await tx.connection.execute("select pg_sleep(0.01)")

    await asyncio.gather(one(), one())


def in_a_thread(attempt: Attempt[Any, Any]) -> Any:
    with attempt.transaction(), attempt.transaction():
        return 6


def entered_twice(attempt: Attempt[Any, Any]) -> Any:
    block = attempt.transaction()
    with block:
        pass
    with block:
        return 6


@pytest.mark.parametrize(
    "handler",
    [inside_another, inside_complete, complete_inside, beside_another, in_a_thread, entered_twice],
    ids=lambda handler: handler.__name__,
)
async def test_one_block_at_a_time(harness: PostgresHarness, handler: Handler) -> None:
    status, error = await closed(harness, handler)
    assert status is JobStatus.FAILED
    assert CompletionMisuseError.__name__ in error


@pytest.mark.quick
@modes
async def test_none_after_the_finish_stands(harness: PostgresHarness, effects: Effects, mode: str) -> None:
    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete() as tx:
            tx.finish(6)
        async with attempt.transaction() as late:
            await late.connection.execute(WRITE, (attempt.job_id, attempt.number))

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        with attempt.complete() as tx:
            tx.finish(6)
        with attempt.transaction() as late:
            late.connection.execute(WRITE, (attempt.job_id, attempt.number))

    assert (await closed(harness, in_loop if mode == "coroutine" else in_thread))[0] is JobStatus.COMPLETED
    assert effects() == []
    assert harness.log.of(ErrorAfterCompletion)[0].error.type == "queuert.errors.CompletionMisuseError"
    assert len(harness.log.of(AttemptCompleted)) == 1


@modes
async def test_a_note_may_follow_a_completion_that_was_rolled_back(
    harness: PostgresHarness, effects: Effects, mode: str
) -> None:
    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        try:
            async with attempt.complete() as tx:
                await tx.connection.execute(WRITE, ("rolled back", 1))
                raise ValueError("inside")
        except ValueError:
            async with attempt.transaction() as note:
                await note.connection.execute(WRITE, ("noted", 1))
            raise

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        try:
            with attempt.complete() as tx:
                tx.connection.execute(WRITE, ("rolled back", 1))
                raise ValueError("inside")
        except ValueError:
            with attempt.transaction() as note:
                note.connection.execute(WRITE, ("noted", 1))
            raise

    assert (await closed(harness, in_loop if mode == "coroutine" else in_thread))[0] is JobStatus.FAILED
    assert effects() == [("noted", 1)]
