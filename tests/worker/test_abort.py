"""A handler is told to stop, and why."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, LiteralString

import psycopg
import pytest

from queuert import Attempt, JobStatus, Outcome
from queuert.errors import LeaseLostError
from queuert.jobs import AbortReason
from queuert.observability.events import AttemptAborted, AttemptCompleted, AttemptStarted, FinishRejected, LeasesRenewed
from queuert.worker import AbortSignal
from tests.support.harness import PostgresHarness
from tests.support.job_types import WATCHED, echo, number, text
from tests.support.waiting import WAIT, Gate, in_time

TAKE = "update queuert.job set lease_token = gen_random_uuid() where id = %s"
EXPIRE_AND_GIVE_BACK = (
    "update queuert.job set status = 'ready', lease_token = null, lease_expires_at = null, priority = -9,"
    " type = 'text', input = '\"x\"' where id = %s"
)
COMPLETE = (
    "update queuert.job set status = 'completed', chain_status = 'completed', output = '8', lease_token = null,"
    " lease_expires_at = null where id = %s"
)
CANCEL = (
    "update queuert.job set status = 'cancelled', chain_status = 'cancelled', lease_token = null,"
    " lease_expires_at = null where id = %s"
)
DELETE = "delete from queuert.job where id = %s"

LOSSES: dict[str, tuple[LiteralString, AbortReason]] = {
    "taken": (TAKE, AbortReason.TAKEN_BY_ANOTHER_WORKER),
    "released": (EXPIRE_AND_GIVE_BACK, AbortReason.TAKEN_BY_ANOTHER_WORKER),
    "completed": (COMPLETE, AbortReason.ALREADY_COMPLETED),
    "cancelled": (CANCEL, AbortReason.CANCELLED),
    "deleted": (DELETE, AbortReason.NOT_FOUND),
}


@pytest.fixture(autouse=True)
def _patient_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stops waits for handlers that were told to: two seconds may be too short for their finishes."""
    monkeypatch.setattr("queuert.worker.runtime._AFTER_CANCEL", WAIT)


@pytest.mark.parametrize("how", LOSSES)
async def test_a_coroutine_is_cancelled_with_the_reason(harness: PostgresHarness, how: str) -> None:
    statement, reason = LOSSES[how]
    gate, ended = Gate(), asyncio.Event()

    @harness.processors.handles(number, lease=WATCHED)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        try:
            await gate.pass_through(attempt)
        finally:
            ended.set()
        return attempt.input

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        attempt = await gate.next()
        harness.rows(statement, chain.id)
        await in_time(ended.wait())
        assert attempt.abort.reason is reason
        assert await attempt.abort.wait(0) is reason
        with pytest.raises(LeaseLostError, match=reason):
            attempt.abort.raise_if_set()
        with pytest.raises(LeaseLostError):
            attempt.complete()
        await harness.log.wait_for(AttemptAborted)
    assert [event.reason for event in harness.log.of(AttemptAborted)] == [reason]
    assert harness.log.of(AttemptCompleted) == []


@pytest.mark.parametrize("how", LOSSES)
async def test_a_thread_hears_the_reason_and_its_commit_is_refused(harness: PostgresHarness, how: str) -> None:
    statement, reason = LOSSES[how]
    harness.rows("create table effect (job text)")
    refused: list[tuple[str, AbortReason | None]] = []
    ended = threading.Event()

    @harness.processors.handles(number, lease=WATCHED)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        heard = attempt.abort.wait_sync(WAIT)
        try:
            with attempt.complete() as tx:
                tx.connection.execute("insert into effect values (%s)", (attempt.job_id,))
                return tx.finish(attempt.input)
        except LeaseLostError as error:
            refused.append((error.reason, heard))
            raise
        finally:
            ended.set()

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        await harness.log.wait_for(AttemptStarted)
        harness.rows(statement, chain.id)
        assert await asyncio.to_thread(ended.wait, WAIT)
    assert refused == [(reason, reason)]
    assert harness.rows("select * from effect") == []


@pytest.mark.parametrize("how", LOSSES)
async def test_a_late_output_is_refused_with_the_reason(harness: PostgresHarness, how: str) -> None:
    """The loss is found when the finish is written, before any renewal."""
    statement, reason = LOSSES[how]

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        harness.rows(statement, attempt.job_id)
        return attempt.input

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        assert (await harness.log.wait_for(FinishRejected, job_id=chain.id)).reason is reason
    assert harness.log.of(AttemptCompleted) == []


async def test_a_worker_that_stops_tells_the_handler(harness: PostgresHarness) -> None:
    seen: list[Any] = []
    gate = Gate()

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        try:
            await gate.pass_through(attempt)
        except asyncio.CancelledError:
            seen.append((attempt.abort.reason, attempt.worker_stopping))
            raise
        return attempt.input

    worker = harness.worker()
    await worker.start()
    await harness.client.start_chain(number, 1)
    await gate.next()
    await worker.stop(shutdown_timeout=0.0)
    assert seen == [(AbortReason.WORKER_STOPPING, True)]
    assert harness.log.of(AttemptAborted) == []


async def test_a_row_that_somebody_locks_does_not_cost_the_other_leases(harness: PostgresHarness) -> None:
    gate = Gate()

    @harness.processors.handles(number, lease=WATCHED)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.input

    async with harness.worker(concurrency=2):
        locked = await harness.client.start_chain(number, 1, id="locked")
        free = await harness.client.start_chain(number, 2, id="free")
        await gate.next()
        await gate.next()
        with psycopg.connect(harness.dsn) as connection:
            connection.execute("select 1 from queuert.job where id = 'locked' for update")
            harness.log.forget()
            await harness.log.wait_for(LeasesRenewed, count=1, times=3)
            connection.rollback()
        gate.open()
        assert await free.result(WAIT) == 2
        assert await locked.result(WAIT) == 1
    assert (await harness.job("free")).attempt == 1


# --- the signal's own promises ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["error", "worker stops"])
async def test_a_callback_that_raises_disturbs_nothing(harness: PostgresHarness, how: str) -> None:
    gate, ended = Gate(), asyncio.Event()

    def raises() -> None:
        raise ValueError("from a callback")

    @harness.processors.handles(number, lease=WATCHED)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        attempt.abort.on_abort(raises)
        try:
            await gate.pass_through(attempt)
        finally:
            if attempt.input == 1:
                ended.set()
        return attempt.input

    worker = harness.worker(concurrency=2)
    await worker.start()
    one = await harness.client.start_chain(number, 1)
    other = await harness.client.start_chain(number, 2)
    await gate.next()
    await gate.next()
    if how == "error":
        harness.rows(TAKE, one.id)
        await in_time(ended.wait())
        gate.open()
        assert await other.result(WAIT) == 2
    else:
        await in_time(worker.stop(shutdown_timeout=0.0))
        assert {(await harness.job(chain.id)).status for chain in (one, other)} == {JobStatus.READY}


async def test_a_waiter_in_an_event_loop_that_has_gone_disturbs_nothing(harness: PostgresHarness) -> None:
    looked, go_on = threading.Event(), threading.Event()

    @harness.processors.handles(number, lease=WATCHED)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        asyncio.run(check_abort(attempt))
        looked.set()
        assert attempt.abort.wait_sync(WAIT)
        go_on.set()
        return attempt.input

    async def check_abort(attempt: Attempt[int, int]) -> None:
        assert await attempt.abort.wait(0.001) is None

    harness.handles(text, echo)
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        assert await asyncio.to_thread(looked.wait, WAIT)
        harness.rows(TAKE, chain.id)
        assert await asyncio.to_thread(go_on.wait, WAIT)
        assert await (await harness.client.start_chain(text, "on")).result(WAIT) == "on"


def test_polling_the_signal_keeps_nothing_behind() -> None:
    signal = AbortSignal("job")
    for _ in range(100):
        assert signal.wait_sync(0.0) is None
    asyncio.run(_poll(signal))
    assert len(signal._callbacks) <= 1


async def _poll(signal: AbortSignal) -> None:
    for _ in range(100):
        assert await signal.wait(0.0) is None


def test_the_first_reason_stays() -> None:
    signal = AbortSignal("job")
    called: list[str] = []
    signal.on_abort(lambda: called.append("before"))
    assert signal.set(AbortReason.CANCELLED)
    assert not signal.set(AbortReason.LEASE_NOT_RENEWED)
    signal.on_abort(lambda: called.append("after"))
    assert (signal.reason, bool(signal), called) == (AbortReason.CANCELLED, True, ["before", "after"])
    assert signal.wait_sync() is AbortReason.CANCELLED
