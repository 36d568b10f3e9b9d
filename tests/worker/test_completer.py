"""Finishes that the store refuses, or that must wait, harm nobody but themselves; and what waits goes together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from queuert import Attempt, JobStatus, NewChain, Outcome, RetryPolicy
from queuert.observability.events import (
    AttemptCompleted,
    AttemptInterrupted,
    AttemptStarted,
    ChainClosed,
    FinishFailed,
    LoopFailed,
)
from queuert.outcomes import ContinueWith, Retry
from queuert.state.postgres.async_store import AsyncPostgresStore
from queuert.state.types import Finish, FinishResult
from queuert.worker.completer import Completer
from tests.support.harness import PostgresHarness
from tests.support.job_types import echo, number, relay, text
from tests.support.waiting import WAIT, Gate, in_time, until

ONCE = RetryPolicy(max_attempts=1)


async def expect_one_failed_attempt(harness: PostgresHarness, chain_id: str) -> str:
    """The chain failed by its one attempt, and the worker runs good jobs; the error's message."""
    await harness.log.wait_for(ChainClosed, chain_id=chain_id)
    good = await harness.client.start_chain(number, 7)
    assert await good.result(WAIT) == 7
    job = await harness.job(chain_id)
    assert (job.status, job.attempt, job.lease_expirations) == (JobStatus.FAILED, 1, 0)
    assert job.last_error is not None
    assert harness.log.of(FinishFailed) == []
    assert harness.log.of(LoopFailed) == []
    return job.last_error.message


async def start_relay(harness: PostgresHarness, outcome: Any) -> str:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        return outcome(attempt)

    harness.handles(number, echo)
    harness.handles(relay, handler, retry=ONCE)
    await harness.worker(concurrency=3).start()
    return (await harness.client.start_chain(relay, 1)).id


async def test_a_continuation_with_an_id_that_exists(harness: PostgresHarness) -> None:
    harness.insert("text", '"x"', id="taken")
    one = await start_relay(harness, lambda attempt: attempt.continue_with(number, 1, id="taken"))
    assert "taken" in await expect_one_failed_attempt(harness, one)


async def test_a_continuation_that_waits_for_a_chain_that_does_not_exist(harness: PostgresHarness) -> None:
    one = await start_relay(harness, lambda attempt: attempt.continue_with(number, 1, blockers=["nowhere"]))
    assert "nowhere" in await expect_one_failed_attempt(harness, one)


async def test_a_continuation_that_waits_for_its_own_chain(harness: PostgresHarness) -> None:
    one = await start_relay(harness, lambda attempt: attempt.continue_with(number, 1, blockers=[attempt.chain_id]))
    await expect_one_failed_attempt(harness, one)


@pytest.mark.parametrize("input", ["{", '"\ud800"', '"\\u0000"', "1e200000", "[" * 20_000 + "]" * 20_000])
async def test_a_continuation_made_by_hand_with_an_input_that_is_no_json(harness: PostgresHarness, input: str) -> None:
    one = await start_relay(harness, lambda attempt: ContinueWith("number", input))
    await expect_one_failed_attempt(harness, one)


async def test_a_continuation_made_by_hand_of_an_undeclared_type(harness: PostgresHarness) -> None:
    one = await start_relay(harness, lambda attempt: ContinueWith("text", '"x"'))
    await expect_one_failed_attempt(harness, one)


@pytest.mark.parametrize("after", [float("inf"), float("nan"), 1e300, -5.0, 1e18])
async def test_a_retry_after_an_impossible_time_is_one_counted_attempt(harness: PostgresHarness, after: float) -> None:
    one = await start_relay(
        harness, lambda attempt: Retry(after=after) if attempt.number == 1 else attempt.fail("second")
    )
    await expect_one_failed_attempt(harness, one)


async def test_a_retry_after_an_impossible_time_is_not_left_to_the_lease(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        return attempt.retry(after=1e300) if attempt.number == 1 else attempt.input

    harness.handles(number, handler)
    async with harness.worker():
        chain = await harness.client.start_chain(number, 5)
        assert await chain.result(WAIT) == 5
    job = await harness.job(chain.id)
    assert (job.attempt, job.lease_expirations) == (2, 0)


@pytest.mark.parametrize("held", [1, 4])
async def test_an_finish_that_waits_for_a_lock_does_not_hold_up_the_others(harness: PostgresHarness, held: int) -> None:
    """A caller's open transaction has the chains locked, as a start with blockers does."""
    gate = Gate()

    async def handler(attempt: Attempt[str, str]) -> Outcome[str]:
        await gate.pass_through(attempt)
        return attempt.input

    harness.handles(number, echo)
    harness.handles(text, handler)
    chains = await harness.client.start_chains([NewChain(text, "x", id=f"held-{one}") for one in range(held)])
    with psycopg.connect(harness.dsn) as connection:
        async with harness.worker(concurrency=held + 1):
            for _ in chains:
                await gate.next()
            # They run by now: what is locked already is not even claimed.
            connection.execute("select 1 from queuert.job where id like 'held-%' for share")
            gate.open()
            good = await harness.client.start_chain(number, 1)
            assert await good.result(WAIT) == 1
            assert {(await harness.job(chain.id)).status for chain in chains} == {JobStatus.RUNNING}
            connection.rollback()
            await harness.client.wait(chains, timeout=WAIT)


async def test_an_finish_that_waits_for_a_lock_keeps_its_lease_for_as_long(harness: PostgresHarness) -> None:
    """Each time that it is postponed counts anew: else a lock of a minute would cost the job its lease and an
    attempt."""
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.input

    harness.handles(number, handler)
    chain = await harness.client.start_chain(number, 1)
    with psycopg.connect(harness.dsn) as connection:
        async with harness.worker() as worker:
            await gate.next()
            connection.execute("select 1 from queuert.job for share")
            gate.open()
            assert worker._runtime is not None
            [held] = worker._runtime.leases._held
            for _ in range(3):
                before = held.finish_since or 0.0
                await until(lambda: (held.finish_since or 0.0) > before, "the finish was postponed")  # noqa: B023
            connection.rollback()
            assert await chain.result(WAIT) == 1


@pytest.mark.quick
async def test_an_attempt_has_one_finish_when_the_worker_stops_while_it_is_written(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    with psycopg.connect(harness.dsn) as connection:
        worker = harness.worker(concurrency=3)
        chains = await harness.client.start_chains([NewChain(number, one) for one in range(3)])
        await worker.start()
        for chain in chains:
            await harness.log.wait_for(AttemptStarted, job_id=chain.id)
        connection.execute("select 1 from queuert.job for share")
        await in_time(worker.stop(shutdown_timeout=0.0))
        connection.rollback()
    for chain in chains:
        job = await harness.job(chain.id)
        reported = [
            *harness.log.of(AttemptCompleted, job_id=chain.id),
            *harness.log.of(AttemptInterrupted, job_id=chain.id),
        ]
        assert len(reported) <= 1
        if reported and isinstance(reported[0], AttemptCompleted):
            assert job.status is JobStatus.COMPLETED


async def test_many_finishes_at_once_are_written_once_each(harness: PostgresHarness) -> None:
    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.input % 5 == 0 and attempt.number == 1:
            return attempt.retry(after=0)
        if attempt.input % 7 == 0:
            return attempt.fail("seven")
        return attempt.input

    chains = await harness.client.start_chains([NewChain(number, one) for one in range(200)])
    async with harness.worker(concurrency=50):
        closed = await harness.client.wait(chains, timeout=WAIT)
    for one, chain in enumerate(closed):
        assert chain.status == ("failed" if one % 7 == 0 else "completed")
    assert harness.one("select count(*) from queuert.job where attempt = 2") == 40
    assert harness.one("select count(*) from queuert.job where attempt > 2") == 0


class Statements:
    """The finishes of each statement that was sent; all wait until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.requested: list[Finish] = []
        self.sent = asyncio.Event()
        self.let_go = asyncio.Event()
        write = AsyncPostgresStore.finish

        async def finish(
            store: AsyncPostgresStore, finishes: Sequence[Finish], *, wait: bool = True
        ) -> list[FinishResult]:
            self.sizes.append(len(finishes))
            self.requested += finishes
            self.sent.set()
            await self.let_go.wait()
            return await write(store, finishes, wait=wait)

        monkeypatch.setattr(AsyncPostgresStore, "finish", finish)

    async def next(self) -> int:
        """The finishes of the next statement, once it is sent."""
        await in_time(self.sent.wait())
        self.sent.clear()
        return self.sizes[-1]


class Held:
    """Handlers that end when they are told to."""

    def __init__(self, harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.harness = harness
        self.statements = Statements(monkeypatch)
        self.ends = [asyncio.Event() for _ in range(8)]

        @harness.processors.handles(number)
        async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
            await self.ends[attempt.input].wait()
            return attempt.input

        self.worker = harness.worker(concurrency=8)

    async def start(self) -> list[Any]:
        """Start the worker and its jobs, and let four of them end: the size of their statement is known."""
        chains = await self.harness.client.start_chains([NewChain(number, one) for one in range(8)])
        await self.worker.start()
        for chain in chains:
            await self.harness.log.wait_for(AttemptStarted, job_id=chain.id)
        self.end(0, 1, 2, 3)
        assert await self.statements.next() == 4
        return chains

    def end(self, *inputs: int) -> None:
        """Let the handlers of these jobs return."""
        for one in inputs:
            self.ends[one].set()

    @property
    def completer(self) -> Completer:
        """The worker's own."""
        assert self.worker._runtime is not None
        return self.worker._runtime.completer

    async def pending(self, count: int) -> None:
        """Wait until so many finishes wait to be written."""
        while len(self.completer._pending) < count:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_finishes_go_together_while_two_statements_are_under_way(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(harness, monkeypatch)
    chains = await held.start()
    held.end(4)
    assert await held.statements.next() == 1
    held.end(5)
    await held.pending(1)
    held.end(6, 7)
    await held.pending(3)
    assert held.statements.sizes == [4, 1]
    held.statements.let_go.set()
    assert await held.statements.next() == 3
    assert {one.status for one in await harness.client.wait(chains, timeout=WAIT)} == {"completed"}
    assert held.statements.sizes == [4, 1, 3]
