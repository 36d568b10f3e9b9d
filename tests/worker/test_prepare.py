"""`attempt.prepare()`: a fenced transaction at the beginning, after which the handler works outside of any."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from queuert import Attempt, JobStatus, Outcome, RetryPolicy
from queuert.errors import CompletionMisuseError
from queuert.observability.events import AttemptRetried, AttemptStarted, FinishRejected
from tests.support.harness import PostgresHarness
from tests.support.job_types import number, relay
from tests.support.waiting import WAIT
from tests.worker.completing import WRITE, Effects, Handler, closed, effects_of

modes = pytest.mark.parametrize("mode", ["coroutine", "thread"])


@pytest.fixture
def effects(harness: PostgresHarness) -> Effects:
    """A table for the handlers' own writes, and what is in it."""
    return effects_of(harness)


def in_transaction(harness: PostgresHarness, session: int) -> bool:
    """Whether this session is inside a transaction and waits for its client. Others belong to the worker's own work."""
    return any(one.startswith(f"{session} ") and ": idle in transaction" in one for one in harness.sessions())


@modes
async def test_reads_first_works_outside_and_writes_last(harness: PostgresHarness, effects: Effects, mode: str) -> None:
    harness.rows("create table stock (pieces int)")
    harness.rows("insert into stock values (4)")
    inside: list[bool] = []
    between: list[Any] = []

    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.prepare() as tx:
            cursor = await tx.connection.execute("select pieces, pg_backend_pid() from stock")
            pieces, session = await cursor.fetchone()
            await tx.connection.execute(WRITE, ("prepared", pieces))
            inside.append(in_transaction(harness, session))
        between.append((effects(), in_transaction(harness, session)))
        async with attempt.complete() as done:
            await done.connection.execute(WRITE, ("completed", pieces))
            return done.finish(pieces)

    def in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        with attempt.prepare() as tx:
            pieces, session = tx.connection.execute("select pieces, pg_backend_pid() from stock").fetchone()
            tx.connection.execute(WRITE, ("prepared", pieces))
            inside.append(in_transaction(harness, session))
        between.append((effects(), in_transaction(harness, session)))
        with attempt.complete() as done:
            done.connection.execute(WRITE, ("completed", pieces))
            return done.finish(pieces)

    assert await closed(harness, in_loop if mode == "coroutine" else in_thread) == (JobStatus.COMPLETED, "None")
    assert inside == [True]
    assert between == [([("prepared", 4)], False)]
    assert effects() == [("completed", 4), ("prepared", 4)]
    assert (await harness.job("one")).output == 4


@modes
@pytest.mark.parametrize("finish", ["continue", "retry", "fail", "cancel"])
async def test_every_returned_outcome_may_follow_it(
    harness: PostgresHarness, effects: Effects, mode: str, finish: str
) -> None:
    outcomes: dict[str, Any] = {
        "continue": lambda attempt: attempt.continue_with(number, 1),
        "retry": lambda attempt: attempt.retry(after=3600),
        "fail": lambda attempt: attempt.fail("no"),
        "cancel": lambda attempt: attempt.cancel("no"),
    }

    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.prepare() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
        result: Outcome[int] = outcomes[finish](attempt)
        return result

    def in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        with attempt.prepare() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
        result: Outcome[int] = outcomes[finish](attempt)
        return result

    harness.handles(relay, in_loop if mode == "coroutine" else in_thread)
    async with harness.worker(shutdown_timeout=WAIT):
        chain = await harness.client.start_chain(relay, 1)
        await harness.log.wait_for(AttemptStarted)
    wanted = {"continue": "continued", "retry": "scheduled", "fail": "failed"}
    assert (await harness.job(chain.id)).status == wanted.get(finish, "cancelled")
    assert effects() == [(chain.id, 1)]


@modes
async def test_an_exception_inside_rolls_it_back_and_the_next_attempt_prepares_anew(
    harness: PostgresHarness, effects: Effects, mode: str
) -> None:
    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.prepare() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            if attempt.number == 1:
                raise ValueError("inside")
        return 6

    def in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        with attempt.prepare() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            if attempt.number == 1:
                raise ValueError("inside")
        return 6

    handler = in_loop if mode == "coroutine" else in_thread
    status, _ = await closed(harness, handler, retry=RetryPolicy(initial_delay=0.0))
    assert status is JobStatus.COMPLETED
    assert effects() == [("one", 2)]
    assert [event.error.message for event in harness.log.of(AttemptRetried)] == ["inside"]


@modes
async def test_an_exception_between_leaves_what_was_prepared(
    harness: PostgresHarness, effects: Effects, mode: str
) -> None:
    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.prepare() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
        if attempt.number == 1:
            raise ValueError("between")
        async with attempt.complete() as done:
            return done.finish(6)

    def in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        with attempt.prepare() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
        if attempt.number == 1:
            raise ValueError("between")
        with attempt.complete() as done:
            return done.finish(6)

    handler = in_loop if mode == "coroutine" else in_thread
    assert (await closed(harness, handler, retry=RetryPolicy(initial_delay=0.0)))[0] is JobStatus.COMPLETED
    assert effects() == [("one", 1), ("one", 2)]
    assert (await harness.job("one")).attempt == 2


@modes
@pytest.mark.parametrize("swallowed", [True, False])
async def test_a_poisoned_transaction_is_a_failed_attempt_that_is_tried_again(
    harness: PostgresHarness, effects: Effects, mode: str, swallowed: bool
) -> None:
    wrong = "select * from nothing_of_the_kind"

    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.prepare() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            if attempt.number == 1:
                try:
                    await tx.connection.execute(wrong)
                except psycopg.errors.UndefinedTable:
                    if not swallowed:
                        raise
        return 6

    def in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        with attempt.prepare() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            if attempt.number == 1:
                try:
                    tx.connection.execute(wrong)
                except psycopg.errors.UndefinedTable:
                    if not swallowed:
                        raise
        return 6

    handler = in_loop if mode == "coroutine" else in_thread
    assert (await closed(harness, handler, retry=RetryPolicy(initial_delay=0.0)))[0] is JobStatus.COMPLETED
    assert effects() == [("one", 2)]
    [retried] = harness.log.of(AttemptRetried)
    assert retried.error.type == ("queuert.errors.StateError" if swallowed else "psycopg.errors.UndefinedTable")


async def fails_in_a_savepoint(attempt: Attempt[int, int], connection: Any) -> None:
    async with connection.transaction():
        await connection.execute(WRITE, (attempt.job_id, 2))
        await connection.execute("select 1 / 0")


def fails_in_a_savepoint_in_thread(attempt: Attempt[int, int], connection: Any) -> None:
    with connection.transaction():
        connection.execute(WRITE, (attempt.job_id, 2))
        connection.execute("select 1 / 0")


@modes
async def test_a_savepoint_keeps_an_error_apart(harness: PostgresHarness, effects: Effects, mode: str) -> None:
    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.prepare() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, 1))
            with pytest.raises(psycopg.errors.DivisionByZero):
                await fails_in_a_savepoint(attempt, tx.connection)
        return 6

    def in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        with attempt.prepare() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, 1))
            with pytest.raises(psycopg.errors.DivisionByZero):
                fails_in_a_savepoint_in_thread(attempt, tx.connection)
        return 6

    assert (await closed(harness, in_loop if mode == "coroutine" else in_thread))[0] is JobStatus.COMPLETED
    assert effects() == [("one", 1)]


@pytest.mark.quick
@modes
async def test_it_is_refused_when_the_lease_is_lost(harness: PostgresHarness, effects: Effects, mode: str) -> None:
    inside: list[str] = []

    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        harness.rows("update queuert.job set lease_token = gen_random_uuid() where id = %s", attempt.job_id)
        async with attempt.prepare():
            inside.append(attempt.job_id)
        return 6

    def in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        harness.rows("update queuert.job set lease_token = gen_random_uuid() where id = %s", attempt.job_id)
        with attempt.prepare():
            inside.append(attempt.job_id)
        return 6

    harness.handles(number, in_loop if mode == "coroutine" else in_thread)
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        await harness.log.wait_for(FinishRejected, job_id=chain.id)
    assert inside == []
    assert (await harness.job(chain.id)).status is JobStatus.RUNNING


# --- misuse -----------------------------------------------------------------------------------------------------------


async def twice(attempt: Attempt[Any, Any]) -> Any:
    async with attempt.prepare():
        pass
    async with attempt.prepare():
        return 6


async def entered_twice(attempt: Attempt[Any, Any]) -> Any:
    block = attempt.prepare()
    async with block:
        pass
    async with block:
        return 6


async def after_complete(attempt: Attempt[Any, Any]) -> Any:
    with pytest.raises(ValueError, match="rolled back"):
        async with attempt.complete():
            raise ValueError("rolled back")
    async with attempt.prepare():
        return 6


async def inside_complete(attempt: Attempt[Any, Any]) -> Any:
    block = attempt.prepare()
    async with attempt.complete() as tx, block:
        return tx.finish(6)


async def complete_inside(attempt: Attempt[Any, Any]) -> Any:
    async with attempt.prepare(), attempt.complete() as tx:
        return tx.finish(6)


async def synchronous_in_a_coroutine(attempt: Attempt[Any, Any]) -> Any:
    with attempt.prepare():
        return 6


@pytest.mark.parametrize(
    "handler",
    [twice, entered_twice, after_complete, inside_complete, complete_inside, synchronous_in_a_coroutine],
    ids=lambda handler: handler.__name__,
)
async def test_misuse_is_a_failed_attempt(harness: PostgresHarness, handler: Handler) -> None:
    status, error = await closed(harness, handler)
    assert status is JobStatus.FAILED
    assert CompletionMisuseError.__name__ in error
