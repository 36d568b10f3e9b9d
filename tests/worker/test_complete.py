"""`attempt.complete()`: the handler's own writes and the job's finish stand together or not at all."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any, LiteralString

import psycopg
import pytest

from queuert import Attempt, InProcessWorker, JobStatus, NewChain, Outcome, RetryPolicy
from queuert.errors import LeaseLostError, StateUnavailableError
from queuert.observability.events import (
    AttemptCompleted,
    AttemptFailed,
    AttemptInterrupted,
    AttemptRetried,
    AttemptStarted,
    ErrorAfterCompletion,
    FinishRejected,
    StoreCallFailed,
    WorkerStopping,
)
from queuert.state.postgres.async_transaction import AsyncPostgresTransaction
from tests.support.harness import PostgresHarness
from tests.support.job_types import number, relay, text
from tests.support.waiting import WAIT, in_time
from tests.worker.completing import WRITE, Effects, closed, effects_of


@pytest.fixture(autouse=True)
def _patient_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stops waits for the ends of blocks: two seconds may be too short for them."""
    monkeypatch.setattr("queuert.worker.runtime._AFTER_CANCEL", WAIT)


@pytest.fixture
def effects(harness: PostgresHarness) -> Effects:
    """A table for the handlers' own writes, and what is in it."""
    return effects_of(harness)


async def test_a_coroutine_writes_and_finishes(harness: PostgresHarness, effects: Effects) -> None:
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            assert effects() == []
            return tx.finish(6)

    assert await closed(harness, handler) == (JobStatus.COMPLETED, "None")
    assert effects() == [("one", 1)]
    assert (await harness.job("one")).output == 6


async def test_a_thread_writes_and_finishes(harness: PostgresHarness, effects: Effects) -> None:
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with attempt.complete() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            return tx.finish(6)

    assert (await closed(harness, handler))[0] is JobStatus.COMPLETED
    assert effects() == [("one", 1)]


@pytest.mark.parametrize("finish", ["continue", "retry", "fail", "cancel"])
async def test_every_outcome_commits_with_the_writes(harness: PostgresHarness, effects: Effects, finish: str) -> None:
    @harness.processors.handles(relay)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        outcomes: dict[str, Any] = {
            "continue": attempt.continue_with(number, 1),
            "retry": attempt.retry(after=3600),
            "fail": attempt.fail("no"),
            "cancel": attempt.cancel("no"),
        }
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            return tx.finish(outcomes[finish])

    wanted = {"continue": "continued", "retry": "scheduled", "fail": "failed", "cancel": "cancelled"}
    async with harness.worker() as worker:
        chain = await harness.client.start_chain(relay, 1)
        await harness.log.wait_for(AttemptStarted)
    assert worker.abandoned == 0
    assert (await harness.job(chain.id)).status == wanted[finish]
    assert effects() == [(chain.id, 1)]
    assert harness.one("select count(*) from queuert.job") == (2 if finish == "continue" else 1)


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
@pytest.mark.parametrize("when", ["before finish", "after finish"])
async def test_an_exception_inside_rolls_all_of_it_back(
    harness: PostgresHarness, effects: Effects, mode: str, when: str
) -> None:
    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            if when == "after finish":
                tx.finish(6)
            raise ValueError("inside")

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        with attempt.complete() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            if when == "after finish":
                tx.finish(6)
            raise ValueError("inside")

    status, error = await closed(harness, in_loop if mode == "coroutine" else in_thread)
    assert (status, error) == (JobStatus.FAILED, "ValueError: inside")
    assert effects() == []


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_an_odd_exception_inside_rolls_back_too(
    harness: PostgresHarness, effects: Effects, mode: str, error: type[BaseException]
) -> None:
    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            raise error

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        with attempt.complete() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            raise error

    assert (await closed(harness, in_loop if mode == "coroutine" else in_thread))[0] is JobStatus.FAILED
    assert effects() == []


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_an_error_of_sql_that_is_swallowed_does_not_commit_half(
    harness: PostgresHarness, effects: Effects, mode: str
) -> None:
    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            with pytest.raises(psycopg.errors.UndefinedTable):
                await tx.connection.execute("select * from nothing_of_the_kind")
            return tx.finish(6)

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        with attempt.complete() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            with pytest.raises(psycopg.errors.UndefinedTable):
                tx.connection.execute("select * from nothing_of_the_kind")
            return tx.finish(6)

    assert (await closed(harness, in_loop if mode == "coroutine" else in_thread))[0] is JobStatus.FAILED
    assert effects() == []


async def test_a_savepoint_keeps_an_error_apart(harness: PostgresHarness, effects: Effects) -> None:
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            with pytest.raises(psycopg.errors.DivisionByZero):
                async with tx.connection.transaction():
                    await tx.connection.execute("select 1 / 0")
            return tx.finish(6)

    assert (await closed(harness, handler))[0] is JobStatus.COMPLETED
    assert effects() == [("one", 1)]


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_blocks_go_on_after_psycopg_has_forgotten_its_statements(harness: PostgresHarness, mode: str) -> None:
    """A rollback, even one to a savepoint, makes psycopg deallocate all that is prepared, ours among it."""
    handles = harness.processors.handles(number, retry=RetryPolicy(max_attempts=1))
    if mode == "coroutine":

        @handles
        async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
            async with attempt.complete() as tx:
                with suppress(ZeroDivisionError):
                    async with tx.connection.transaction():
                        await tx.connection.execute("SELECT 1", prepare=True)
                        raise ZeroDivisionError
                return tx.finish(attempt.input)

    else:

        @handles
        def handler_in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
            with attempt.complete() as tx:
                with suppress(ZeroDivisionError), tx.connection.transaction():
                    tx.connection.execute("SELECT 1", prepare=True)
                    raise ZeroDivisionError
                return tx.finish(attempt.input)

    chains = await harness.client.start_chains([NewChain(number, one) for one in range(8)])
    async with harness.worker(concurrency=1):
        assert [await chain.result(timeout=WAIT) for chain in chains] == list(range(8))


@pytest.mark.parametrize("statement", ["commit", "rollback"])
async def test_a_commit_of_the_handlers_own_does_not_complete_the_job_twice(
    harness: PostgresHarness, effects: Effects, statement: str
) -> None:
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            await tx.connection.execute(statement)
            return tx.finish(6)

    status, _ = await closed(harness, handler)
    assert status in (JobStatus.COMPLETED, JobStatus.FAILED)
    assert len(harness.log.of(AttemptCompleted)) == (1 if status is JobStatus.COMPLETED else 0)


# --- around the commit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_an_error_after_the_commit_changes_nothing(harness: PostgresHarness, effects: Effects, mode: str) -> None:
    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            tx.finish(6)
        raise ValueError("late")

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        with attempt.complete() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            tx.finish(6)
        raise SystemExit("late")

    assert (await closed(harness, in_loop if mode == "coroutine" else in_thread))[0] is JobStatus.COMPLETED
    assert effects() == [("one", 1)]
    assert "late" in harness.log.of(ErrorAfterCompletion)[0].error.message
    assert harness.log.of(AttemptFailed) + harness.log.of(AttemptRetried) == []
    assert len(harness.log.of(AttemptCompleted)) == 1


async def test_another_return_value_after_the_commit_changes_nothing(
    harness: PostgresHarness, effects: Effects
) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete() as tx:
            tx.finish(6)
        return 7

    assert (await closed(harness, handler))[0] is JobStatus.COMPLETED
    assert (await harness.job("one")).output == 6


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_a_lost_lease_is_refused_at_the_door(harness: PostgresHarness, effects: Effects, mode: str) -> None:
    steal: LiteralString = "update queuert.job set lease_token = gen_random_uuid() where id = %s"
    inside: list[str] = []
    refused: list[str] = []

    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        harness.rows(steal, attempt.job_id)
        try:
            async with attempt.complete() as tx:
                inside.append(attempt.job_id)
                return tx.finish(6)
        except LeaseLostError as error:
            refused.append(error.reason)
            raise

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        harness.rows(steal, attempt.job_id)
        try:
            with attempt.complete() as tx:
                inside.append(attempt.job_id)
                return tx.finish(6)
        except LeaseLostError as error:
            refused.append(error.reason)
            raise

    harness.handles(number, in_loop if mode == "coroutine" else in_thread)
    async with harness.worker():
        chain = await harness.client.start_chain(number, 5)
        await harness.log.wait_for(FinishRejected, job_id=chain.id)
    assert (inside, refused) == ([], ["taken_by_another_worker"])
    assert (await harness.job(chain.id)).status is JobStatus.RUNNING


async def test_many_blocks_at_once_on_few_connections(harness: PostgresHarness, effects: Effects) -> None:
    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            return tx.finish(attempt.input)

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        with attempt.complete() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            return tx.finish(attempt.input)

    harness.handles(number, in_loop)
    harness.handles(text, in_thread)
    chains = await harness.client.start_chains(
        [NewChain(number, 1) for _ in range(40)] + [NewChain(text, "x") for _ in range(40)]
    )
    worker = InProcessWorker(harness.client, harness.processors, concurrency=40, max_connections=2)
    harness.workers.append(worker)
    async with worker:
        await harness.client.wait(chains, timeout=WAIT)
    assert len(effects()) == 80
    assert {row[1] for row in effects()} == {1}


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_a_block_that_is_open_when_the_grace_ends_has_one_finish(
    harness: PostgresHarness, effects: Effects, mode: str
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            inside.set()
            await asyncio.Event().wait()

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        with attempt.complete() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            inside.set()
            assert go_on.wait(WAIT)
            return tx.finish(6)

    harness.handles(number, in_loop if mode == "coroutine" else in_thread)
    worker = harness.worker()
    await worker.start()
    chain = await harness.client.start_chain(number, 5)
    assert await asyncio.to_thread(inside.wait, WAIT)
    stopping = asyncio.create_task(worker.stop(shutdown_timeout=0.0))
    await harness.log.wait_for(WorkerStopping)
    go_on.set()
    await in_time(stopping)
    job = await harness.job(chain.id)
    finishes = [*harness.log.of(AttemptCompleted), *harness.log.of(AttemptInterrupted)]
    if job.status is JobStatus.COMPLETED:
        assert effects() == [(chain.id, 1)]
        assert [type(event) for event in finishes] == [AttemptCompleted]
    else:
        assert effects() == []
        assert (job.status, job.uncounted) == (JobStatus.READY, 1)
        assert [type(event) for event in finishes] == [AttemptInterrupted]


async def test_an_end_that_fails_after_its_handler_was_cancelled_is_reported(
    harness: PostgresHarness, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is left to hear of it: it is an event, and the attempt has failed."""
    tasks: list[asyncio.Task[Any] | None] = []

    async def fails(self: AsyncPostgresTransaction, *requested: Any, **how: Any) -> None:
        [task] = tasks
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        raise StateUnavailableError("cut off")

    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        tasks.append(asyncio.current_task())
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            return tx.finish(6)

    monkeypatch.setattr(AsyncPostgresTransaction, "finish", fails)
    status, error = await closed(harness, handler)
    assert status is JobStatus.FAILED
    assert "cancelled from within" in error
    assert [one.error for one in harness.log.of(StoreCallFailed) if one.operation == "complete"] == [
        "StateUnavailableError: cut off"
    ]
    assert effects() == []
