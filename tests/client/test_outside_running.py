"""A running handler learns that its chain was cancelled, deleted or completed from outside, and commits nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest

from queuert import AsyncClient, Attempt, NewChain, Outcome, after
from queuert.errors import (
    LeaseLostError,
)
from queuert.jobs import AbortReason
from queuert.observability.events import (
    AttemptAborted,
    FinishRejected,
)
from tests.support.harness import PostgresHarness
from tests.support.job_types import WATCHED, echo, number
from tests.support.waiting import WAIT, Gate, in_time, until

TAKES_AWAY: dict[AbortReason, Callable[[AsyncClient, str], Any]] = {
    AbortReason.CANCELLED: lambda client, id: client.cancel_chain(id),
    AbortReason.NOT_FOUND: lambda client, id: client.delete_chain(id),
    AbortReason.ALREADY_COMPLETED: lambda client, id: client.complete_chain(id, 42),
}

each_way = pytest.mark.parametrize("reason", TAKES_AWAY)


class Silence:
    """A notify adapter that carries nothing."""

    healthy = False

    def open(self, observers: Any) -> None: ...
    def close(self) -> None: ...
    def publish(self, topic: Any, keys: Any) -> None: ...
    def subscribe(self, topic: Any, callback: Any) -> Any:
        return self


@pytest.fixture
async def harness(dsn: str) -> AsyncIterator[PostgresHarness]:
    harness = PostgresHarness(dsn)
    yield harness
    await harness.close()


@each_way
async def test_a_coroutine_is_cancelled_by_a_notification(harness: PostgresHarness, reason: AbortReason) -> None:
    """With leases of a minute: only the notification can tell it so soon."""
    gate, reported = Gate(), asyncio.Queue[AbortReason | None]()

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        try:
            await gate.pass_through(attempt)
        finally:
            reported.put_nowait(attempt.abort.reason)
        return attempt.input

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        await gate.next()
        await TAKES_AWAY[reason](harness.client, chain.id)
        assert await in_time(reported.get()) is reason
        assert (await harness.log.wait_for(AttemptAborted, job_id=chain.id)).reason is reason
        gate.open()
        assert await (await harness.client.start_chain(number, 2)).result(WAIT) == 2
    await _check_left(harness, chain.id, reason)


async def _check_left(harness: PostgresHarness, id: str, reason: AbortReason) -> None:
    left = {
        AbortReason.CANCELLED: ["cancelled"],
        AbortReason.NOT_FOUND: [],
        AbortReason.ALREADY_COMPLETED: ["completed"],
    }
    assert [row[0] for row in harness.rows("select status from queuert.job where id = %s", id)] == left[reason]
    if reason is AbortReason.ALREADY_COMPLETED:
        assert await (await harness.client.get_chain(id)).result(WAIT) == 42


@each_way
async def test_at_the_next_renewal_without_notifications(dsn: str, reason: AbortReason) -> None:
    harness = PostgresHarness(dsn, notify=Silence())
    reported = asyncio.Queue[AbortReason | None]()

    @harness.processors.handles(number, lease=WATCHED)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        reported.put_nowait(None)
        reported.put_nowait(await attempt.abort.wait(WAIT))
        return attempt.input

    try:
        async with harness.worker(poll_interval=0.05):
            chain = await harness.client.start_chain(number, 1)
            assert await in_time(reported.get()) is None
            await TAKES_AWAY[reason](harness.client, chain.id)
            await harness.log.wait_for(AttemptAborted, job_id=chain.id, reason=reason)
        await _check_left(harness, chain.id, reason)
    finally:
        await harness.close()


@each_way
async def test_a_returned_outcome_is_refused(harness: PostgresHarness, reason: AbortReason) -> None:
    """A thread that does not look at its signal returns an output, which is not written."""
    gate = Gate()
    loop = asyncio.get_running_loop()

    @harness.processors.handles(number)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        asyncio.run_coroutine_threadsafe(gate.pass_through(attempt), loop).result(WAIT)
        return attempt.input

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        await gate.next()
        await TAKES_AWAY[reason](harness.client, chain.id)
        gate.open()
        refused = await harness.log.wait_for(FinishRejected, job_id=chain.id)
    assert refused.reason is reason
    await _check_left(harness, chain.id, reason)


@each_way
async def test_a_complete_block_is_refused(harness: PostgresHarness, reason: AbortReason) -> None:
    """Nothing of the handler's own writes stands."""
    harness.rows("create table effect (job text)")
    gate, reported = Gate(), asyncio.Queue[str]()
    loop = asyncio.get_running_loop()

    @harness.processors.handles(number)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        asyncio.run_coroutine_threadsafe(gate.pass_through(attempt), loop).result(WAIT)
        try:
            with attempt.complete() as tx:
                tx.connection.execute("insert into effect values (%s)", [attempt.job_id])
                return tx.finish(attempt.input)
        except LeaseLostError as error:
            loop.call_soon_threadsafe(reported.put_nowait, error.reason)
            raise

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        await gate.next()
        await TAKES_AWAY[reason](harness.client, chain.id)
        gate.open()
        assert await in_time(reported.get()) == reason
    assert harness.rows("select job from effect") == []
    await _check_left(harness, chain.id, reason)


async def test_a_complete_block_that_has_begun_is_waited_for(harness: PostgresHarness) -> None:
    """Its writes and its finish stand; the cancel finds the chain closed."""
    harness.rows("create table effect (job text)")
    gate = Gate()

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            await tx.connection.execute("insert into effect values (%s)", [attempt.job_id])
            await gate.pass_through(attempt)
            return tx.finish(attempt.input)

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        await gate.next()
        cancelling = asyncio.create_task(harness.client.cancel_chain(chain))
        waits = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        await until(lambda: bool(harness.rows(waits)), "the cancel waits for the row")
        gate.open()
        assert await in_time(cancelling) is False
    assert await chain.result(WAIT) == 1
    assert harness.rows("select job from effect") == [(chain.id,)]


async def test_notifications_of_the_callers_transaction(harness: PostgresHarness) -> None:
    """A running job that is cancelled in the caller's transaction goes on until the commit, and is told then."""
    gate = Gate()
    harness.handles(number, lambda attempt: _wait_at(gate, attempt))
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        attempt = await gate.next()
        async with await psycopg.AsyncConnection.connect(harness.dsn) as connection:
            await harness.client.cancel_chain(chain, connection=connection)
            assert attempt.abort.reason is None
        assert await in_time(attempt.abort.wait()) is AbortReason.CANCELLED


async def _wait_at(gate: Gate, attempt: Attempt[int, int]) -> int:
    await gate.pass_through(attempt)
    return attempt.input


async def test_retry_and_trigger_wake_a_worker(harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuert.worker.claimer.POLL_WITH_NOTIFY", 3600.0)
    harness.handles(number, echo)
    later, cancelled = await harness.client.start_chains(
        [NewChain(number, value, run_at=after(hours=1)) for value in range(2)]
    )
    await harness.client.cancel_chain(cancelled)
    async with harness.worker():
        assert await (await harness.client.start_chain(number, 5)).result(WAIT) == 5
        await harness.client.trigger_job(later.id)
        assert await later.result(WAIT) == 0
        await harness.client.retry_chain(cancelled)
        assert await cancelled.result(WAIT) == 1
        async with await psycopg.AsyncConnection.connect(harness.dsn) as connection:
            last = await harness.client.start_chain(number, 7, run_at=after(hours=1))
            await harness.client.trigger_job(last.id, connection=connection)
        assert await last.result(WAIT) == 7
