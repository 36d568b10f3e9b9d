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
    AttemptReleased,
    AttemptRetried,
    AttemptStarted,
    ErrorAfterCompletion,
    FinishRejected,
    StoreCallFailed,
    WorkerStopping,
)
from queuert.state.postgres.async_transaction import AsyncPostgresTransaction
from tests.worker.completing import WRITE, Effects, closed, effects_of
from tests.worker.support import WAIT, Stage, in_time, number, relay, text


@pytest.fixture(autouse=True)
def _patient_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stops waits for the ends of blocks: two seconds may be too short for them."""
    monkeypatch.setattr("queuert.worker.runtime._AFTER_CANCEL", WAIT)


@pytest.fixture
def effects(stage: Stage) -> Effects:
    """A table for the handlers' own writes, and what is in it."""
    return effects_of(stage)


async def test_a_coroutine_writes_and_finishes(stage: Stage, effects: Effects) -> None:
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            assert effects() == []
            return tx.finish(6)

    assert await closed(stage, handler) == (JobStatus.COMPLETED, "None")
    assert effects() == [("one", 1)]
    assert (await stage.job("one")).output == 6


async def test_a_thread_writes_and_finishes(stage: Stage, effects: Effects) -> None:
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with attempt.complete() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            return tx.finish(6)

    assert (await closed(stage, handler))[0] is JobStatus.COMPLETED
    assert effects() == [("one", 1)]


@pytest.mark.parametrize("finish", ["continue", "retry", "fail", "cancel"])
async def test_every_outcome_commits_with_the_writes(stage: Stage, effects: Effects, finish: str) -> None:
    @stage.processors.handles(relay)
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
    async with stage.worker() as worker:
        chain = await stage.client.start_chain(relay, 1)
        await stage.log.wait_for(AttemptStarted)
    assert worker.abandoned == 0
    assert (await stage.job(chain.id)).status == wanted[finish]
    assert effects() == [(chain.id, 1)]
    assert stage.one("select count(*) from queuert.job") == (2 if finish == "continue" else 1)


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
@pytest.mark.parametrize("when", ["before finish", "after finish"])
async def test_an_exception_inside_rolls_all_of_it_back(stage: Stage, effects: Effects, mode: str, when: str) -> None:
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

    status, error = await closed(stage, in_loop if mode == "coroutine" else in_thread)
    assert (status, error) == (JobStatus.FAILED, "ValueError: inside")
    assert effects() == []


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_an_odd_exception_inside_rolls_back_too(
    stage: Stage, effects: Effects, mode: str, error: type[BaseException]
) -> None:
    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            raise error

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        with attempt.complete() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            raise error

    assert (await closed(stage, in_loop if mode == "coroutine" else in_thread))[0] is JobStatus.FAILED
    assert effects() == []


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_an_error_of_sql_that_is_swallowed_does_not_commit_half(
    stage: Stage, effects: Effects, mode: str
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

    assert (await closed(stage, in_loop if mode == "coroutine" else in_thread))[0] is JobStatus.FAILED
    assert effects() == []


async def test_a_savepoint_keeps_an_error_apart(stage: Stage, effects: Effects) -> None:
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            with pytest.raises(psycopg.errors.DivisionByZero):
                async with tx.connection.transaction():
                    await tx.connection.execute("select 1 / 0")
            return tx.finish(6)

    assert (await closed(stage, handler))[0] is JobStatus.COMPLETED
    assert effects() == [("one", 1)]


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_blocks_go_on_after_psycopg_has_forgotten_its_statements(stage: Stage, mode: str) -> None:
    """A rollback, even one to a savepoint, makes psycopg deallocate all that is prepared, ours among it."""
    handles = stage.processors.handles(number, retry=RetryPolicy(max_attempts=1))
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

    chains = await stage.client.start_chains([NewChain(number, one) for one in range(8)])
    async with stage.worker(concurrency=1):
        assert [await chain.result(timeout=WAIT) for chain in chains] == list(range(8))


@pytest.mark.parametrize("statement", ["commit", "rollback"])
async def test_a_commit_of_the_handlers_own_does_not_complete_the_job_twice(
    stage: Stage, effects: Effects, statement: str
) -> None:
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            await tx.connection.execute(statement)
            return tx.finish(6)

    status, _ = await closed(stage, handler)
    assert status in (JobStatus.COMPLETED, JobStatus.FAILED)
    assert len(stage.log.of(AttemptCompleted)) == (1 if status is JobStatus.COMPLETED else 0)


# --- around the commit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_an_error_after_the_commit_changes_nothing(stage: Stage, effects: Effects, mode: str) -> None:
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

    assert (await closed(stage, in_loop if mode == "coroutine" else in_thread))[0] is JobStatus.COMPLETED
    assert effects() == [("one", 1)]
    assert "late" in stage.log.of(ErrorAfterCompletion)[0].error.message
    assert stage.log.of(AttemptFailed) + stage.log.of(AttemptRetried) == []
    assert len(stage.log.of(AttemptCompleted)) == 1


async def test_another_return_value_after_the_commit_changes_nothing(stage: Stage, effects: Effects) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete() as tx:
            tx.finish(6)
        return 7

    assert (await closed(stage, handler))[0] is JobStatus.COMPLETED
    assert (await stage.job("one")).output == 6


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_a_lost_lease_is_refused_at_the_door(stage: Stage, effects: Effects, mode: str) -> None:
    steal: LiteralString = "update queuert.job set lease_token = gen_random_uuid() where id = %s"
    inside: list[str] = []
    refused: list[str] = []

    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        stage.rows(steal, attempt.job_id)
        try:
            async with attempt.complete() as tx:
                inside.append(attempt.job_id)
                return tx.finish(6)
        except LeaseLostError as error:
            refused.append(error.reason)
            raise

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        stage.rows(steal, attempt.job_id)
        try:
            with attempt.complete() as tx:
                inside.append(attempt.job_id)
                return tx.finish(6)
        except LeaseLostError as error:
            refused.append(error.reason)
            raise

    stage.handles(number, in_loop if mode == "coroutine" else in_thread)
    async with stage.worker():
        chain = await stage.client.start_chain(number, 5)
        await stage.log.wait_for(FinishRejected, job_id=chain.id)
    assert (inside, refused) == ([], ["taken_by_another_worker"])
    assert (await stage.job(chain.id)).status is JobStatus.RUNNING


async def test_many_blocks_at_once_on_few_connections(stage: Stage, effects: Effects) -> None:
    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            return tx.finish(attempt.input)

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        with attempt.complete() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            return tx.finish(attempt.input)

    stage.handles(number, in_loop)
    stage.handles(text, in_thread)
    chains = await stage.client.start_chains(
        [NewChain(number, 1) for _ in range(40)] + [NewChain(text, "x") for _ in range(40)]
    )
    worker = InProcessWorker(stage.client, stage.processors, concurrency=40, max_connections=2)
    stage.workers.append(worker)
    async with worker:
        await stage.client.wait(chains, timeout=WAIT)
    assert len(effects()) == 80
    assert {row[1] for row in effects()} == {1}


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_a_block_that_is_open_when_the_grace_ends_has_one_finish(
    stage: Stage, effects: Effects, mode: str
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

    stage.handles(number, in_loop if mode == "coroutine" else in_thread)
    worker = stage.worker()
    await worker.start()
    chain = await stage.client.start_chain(number, 5)
    assert await asyncio.to_thread(inside.wait, WAIT)
    stopping = asyncio.create_task(worker.stop(shutdown_timeout=0.0))
    await stage.log.wait_for(WorkerStopping)
    go_on.set()
    await in_time(stopping)
    job = await stage.job(chain.id)
    finishes = [*stage.log.of(AttemptCompleted), *stage.log.of(AttemptReleased)]
    if job.status is JobStatus.COMPLETED:
        assert effects() == [(chain.id, 1)]
        assert [type(event) for event in finishes] == [AttemptCompleted]
    else:
        assert effects() == []
        assert (job.status, job.uncounted) == (JobStatus.READY, 1)
        assert [type(event) for event in finishes] == [AttemptReleased]


async def test_an_end_that_fails_after_its_handler_was_cancelled_is_reported(
    stage: Stage, effects: Effects, monkeypatch: pytest.MonkeyPatch
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
    status, error = await closed(stage, handler)
    assert status is JobStatus.FAILED
    assert "cancelled from within" in error
    assert [one.error for one in stage.log.of(StoreCallFailed) if one.operation == "complete"] == [
        "StateUnavailableError: cut off"
    ]
    assert effects() == []
