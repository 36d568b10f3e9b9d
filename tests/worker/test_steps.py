"""Durable steps of attempts: recorded once, replayed by later attempts, refused when code and records differ."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel

from queuert import Attempt, JobStatus, Outcome, RetryPolicy
from queuert.errors import JobNotTriggerableError, StepMisuseError
from queuert.observability.events import AttemptRetried, AttemptSnoozed
from queuert.testing.clock import times_of
from queuert.worker import GuardedTransaction, steps
from tests.support.harness import PostgresHarness
from tests.support.job_types import AT_ONCE, anything
from tests.support.waiting import WAIT
from tests.worker.completing import WRITE, Effects, effects_of

modes = pytest.mark.parametrize("mode", ["coroutine", "thread"])


class Receipt(BaseModel):
    """A result of a step."""

    number: int
    note: str = ""


@dataclass
class Calls:
    """The calls of steps, and functions that are steps."""

    made: list[object]

    def charge(self, number: int) -> Receipt:
        self.made.append(number)
        return Receipt(number=number, note="naïve")

    async def charge_soon(self, number: int) -> Receipt:
        await asyncio.sleep(0)
        return self.charge(number)

    def fail(self) -> int:
        self.made.append("fail")
        raise ValueError("no")


@pytest.fixture
def calls() -> Calls:
    return Calls([])


@pytest.fixture
def effects(harness: PostgresHarness) -> Effects:
    """A table for the handlers' own writes, and what is in it."""
    return effects_of(harness)


async def run(
    harness: PostgresHarness, handler: Any, input: Any = None, **settings: Any
) -> tuple[JobStatus, Any, str | None]:
    """Run a job to its end; return its status, its output and the kind of its error."""
    harness.handles(anything, handler, **{"retry": AT_ONCE, **settings})
    async with harness.worker(concurrency=2):
        chain = await (await harness.client.start_chain(anything, input, id="one")).wait(WAIT)
    job = await harness.job(chain.id)
    return job.status, job.output, None if job.last_error is None else job.last_error.kind


async def run_past_a_sleep(harness: PostgresHarness, handler: Any) -> tuple[JobStatus, Any, str | None]:
    """Run a job that sleeps for an hour to its end: the hour passes in the store."""
    harness.handles(anything, handler, retry=RetryPolicy(max_attempts=1))
    async with harness.worker(concurrency=2):
        chain = await harness.client.start_chain(anything, None, id="one")
        await harness.log.wait_for(AttemptSnoozed)
        await asyncio.to_thread(times_of(harness.state).shift, 3600.0, leases=False)
        with suppress(JobNotTriggerableError):  # The worker looks again in an hour of the real clock, or has looked.
            await harness.client.trigger_job("one")
        await chain.wait(WAIT)
    job = await harness.job("one")
    return job.status, job.output, None if job.last_error is None else job.last_error.kind


@modes
async def test_a_recorded_step_is_not_called_again(harness: PostgresHarness, calls: Calls, mode: str) -> None:
    results: list[Any] = []

    async def in_loop(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        first = await attempt.step("first", calls.charge_soon, 1)
        second = await attempt.step("second", calls.charge, 2)
        results.append((first, second))
        if attempt.number < 3:
            raise ValueError("after the steps")
        return first.number + second.number

    def in_thread(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        first = attempt.step_sync("first", calls.charge, 1)
        second = attempt.step_sync("second", calls.charge, 2)
        results.append((first, second))
        if attempt.number < 3:
            raise ValueError("after the steps")
        return first.number + second.number

    handler = in_loop if mode == "coroutine" else in_thread
    assert await run(harness, handler) == (JobStatus.COMPLETED, 3, None)
    assert calls.made == [1, 2]
    assert results == [(Receipt(number=1, note="naïve"), Receipt(number=2, note="naïve"))] * 3
    found = await harness.client.get_steps("one")
    assert [(one.number, one.name, one.attempt, one.result) for one in found] == [
        (1, "first", 1, {"number": 1, "note": "naïve"}),
        (2, "second", 1, {"number": 2, "note": "naïve"}),
    ]


async def test_each_step_is_recorded_before_the_next_begins(harness: PostgresHarness, calls: Calls) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        for number in range(3):
            await attempt.step("charge", calls.charge_soon, number, key=number)
            assert harness.one("select count(*) from queuert.job_step") == number + 1
        return None

    assert (await run(harness, handler))[0] is JobStatus.COMPLETED
    assert [one.name for one in await harness.client.get_steps("one")] == ["charge[0]", "charge[1]", "charge[2]"]


@modes
async def test_a_step_that_raises_is_called_again(harness: PostgresHarness, calls: Calls, mode: str) -> None:
    async def in_loop(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        await attempt.step("charge", calls.charge_soon, 1)
        if attempt.number < 3:
            return await attempt.step("fail", calls.fail)
        return (await attempt.step("fail", calls.charge, 7)).number

    def in_thread(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        attempt.step_sync("charge", calls.charge, 1)
        if attempt.number < 3:
            return attempt.step_sync("fail", calls.fail)
        return attempt.step_sync("fail", calls.charge, 7).number

    status, _, kind = await run(harness, in_loop if mode == "coroutine" else in_thread)
    assert (status, kind) == (JobStatus.COMPLETED, None)
    assert calls.made == [1, "fail", "fail", 7]
    assert [event.error.message for event in harness.log.of(AttemptRetried)] == ["no", "no"]
    assert [(one.name, one.attempt) for one in await harness.client.get_steps("one")] == [("charge", 1), ("fail", 3)]


def unordered() -> dict[str, int]:
    """A result whose keys Postgres stores in another order."""
    return {"bb": 1, "a": 2, "ccc": 3}


def unordered_in(_: GuardedTransaction) -> dict[str, int]:
    return unordered()


@modes
async def test_the_first_attempt_gets_a_result_as_later_ones_do(harness: PostgresHarness, mode: str) -> None:
    """What goes by the order of keys, such as the order of the next steps, is the same in each attempt."""
    orders: list[list[str]] = []

    async def in_loop(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        orders.append(list(await attempt.step("step", unordered)))
        orders.append(list(await attempt.step_transaction("transaction", unordered_in)))
        return attempt.number if attempt.number == 2 else int("once more")

    def in_thread(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        orders.append(list(attempt.step_sync("step", unordered)))
        orders.append(list(attempt.step_transaction_sync("transaction", unordered_in)))
        return attempt.number if attempt.number == 2 else int("once more")

    status, output, _ = await run(harness, in_loop if mode == "coroutine" else in_thread)
    assert (status, output) == (JobStatus.COMPLETED, 2)
    assert orders == [orders[0]] * 4


@modes
async def test_a_transaction_commits_with_its_step_once(harness: PostgresHarness, effects: Effects, mode: str) -> None:
    async def reserve(tx: GuardedTransaction, job_id: str, step: int) -> int:
        await tx.connection.execute(WRITE, (job_id, step))
        assert effects() == [("one", done) for done in range(step)]
        return step * 10

    def reserve_sync(tx: GuardedTransaction, job_id: str, step: int) -> int:
        tx.connection.execute(WRITE, (job_id, step))
        return step * 10

    def fails(tx: GuardedTransaction) -> None:
        raise ValueError("inside")

    async def in_loop(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        done = [await attempt.step_transaction("reserve", reserve, attempt.job_id, step, key=step) for step in range(3)]
        if attempt.number < 3:
            await attempt.step_transaction("last", fails)
        return done

    def in_thread(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        done = [
            attempt.step_transaction_sync("reserve", reserve_sync, attempt.job_id, step, key=step) for step in range(3)
        ]
        if attempt.number < 3:
            attempt.step_transaction_sync("last", fails)
        return done

    handler = in_loop if mode == "coroutine" else in_thread
    assert await run(harness, handler) == (JobStatus.COMPLETED, [0, 10, 20], None)
    assert effects() == [("one", 0), ("one", 1), ("one", 2)]


async def test_a_result_that_is_not_valid_rolls_its_transaction_back(
    harness: PostgresHarness, effects: Effects
) -> None:
    async def reserve(tx: GuardedTransaction) -> Any:
        await tx.connection.execute(WRITE, ("one", 1))
        return "no number"

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        return await attempt.step_transaction("reserve", reserve, returns=int)

    assert await run(harness, handler) == (JobStatus.FAILED, None, "programming")
    assert effects() == [] == await harness.client.get_steps("one")


async def test_a_swallowed_error_in_a_transaction_records_nothing(harness: PostgresHarness, effects: Effects) -> None:
    async def reserve(tx: GuardedTransaction, number: int) -> int:
        await tx.connection.execute(WRITE, ("one", number))
        if number == 1:
            with suppress(Exception):
                await tx.connection.execute("select 1 / 0")
        return number

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        return await attempt.step_transaction("reserve", reserve, attempt.number)

    assert await run(harness, handler) == (JobStatus.COMPLETED, 2, None)
    assert effects() == [("one", 2)]


# --- names and order --------------------------------------------------------------------------------------------------


@modes
async def test_changed_code_is_refused_by_name(harness: PostgresHarness, calls: Calls, mode: str) -> None:
    async def in_loop(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        await attempt.step("one", calls.charge_soon, 1)
        await attempt.step("two" if attempt.number == 1 else "changed", calls.charge_soon, 2)
        raise ValueError("at last")

    def in_thread(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        attempt.step_sync("one", calls.charge, 1)
        attempt.step_sync("two" if attempt.number == 1 else "changed", calls.charge, 2)
        raise ValueError("at last")

    assert await run(harness, in_loop if mode == "coroutine" else in_thread) == (JobStatus.FAILED, None, "programming")
    job = await harness.job("one")
    assert job.last_error is not None
    assert job.last_error.type == "queuert.errors.StepMismatchError"
    assert (
        "step 2 of job 'one' must be 'two', which an earlier attempt recorded, got 'changed'" in job.last_error.message
    )
    assert (job.attempt, calls.made) == (2, [1, 2])


async def test_a_chain_that_is_retried_goes_on_after_its_steps(harness: PostgresHarness, calls: Calls) -> None:
    correct = asyncio.Event()

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        await attempt.step("one", calls.charge_soon, 1)
        if not correct.is_set():
            return attempt.fail("not yet")
        return (await attempt.step("two", calls.charge_soon, 2)).number

    assert (await run(harness, handler))[0] is JobStatus.FAILED
    correct.set()
    await harness.client.retry_chain("one")
    async with harness.worker():
        assert (await (await harness.client.get_chain("one")).result(WAIT)) == 2
    assert calls.made == [1, 2]


async def test_a_function_in_the_place_of_a_sleep_is_refused(harness: PostgresHarness, calls: Calls) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        if attempt.number == 1:
            await attempt.sleep("pause", 0)
            raise ValueError("again")
        return await attempt.step("pause", calls.charge_soon, 1)

    assert await run(harness, handler) == (JobStatus.FAILED, None, "programming")
    error = (await harness.job("one")).last_error
    assert error is not None
    assert "must be 'pause (a sleep)'" in error.message
    assert "got 'pause (a function)'" in error.message


async def _misused(harness: PostgresHarness, handler: Any) -> str:
    assert await run(harness, handler) == (JobStatus.FAILED, None, "programming")
    error = (await harness.job("one")).last_error
    assert error is not None
    return error.message


async def test_a_name_twice(harness: PostgresHarness, calls: Calls) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        await attempt.step("charge", calls.charge_soon, 1)
        return await attempt.step("charge", calls.charge_soon, 2)

    assert "'charge' was called twice in an attempt: pass another key=" in await _misused(harness, handler)


async def test_two_at_once(harness: PostgresHarness, calls: Calls) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        await asyncio.gather(attempt.step("a", calls.charge_soon, 1), attempt.step("b", calls.charge_soon, 2))
        return None

    assert "'b' was called while step 'a' ran: one step at a time" in await _misused(harness, handler)


async def test_one_inside_another(harness: PostgresHarness, calls: Calls) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        async def outer() -> int:
            await attempt.step("inner", calls.charge_soon, 1)
            return 1

        return await attempt.step("outer", outer)

    assert "'inner' was called while step 'outer' ran" in await _misused(harness, handler)


@pytest.mark.parametrize("block", ["prepare", "transaction", "complete"])
async def test_inside_a_block(harness: PostgresHarness, calls: Calls, block: str) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        async with getattr(attempt, block)():
            return await attempt.step("charge", calls.charge_soon, 1)

    assert f"'charge' was called inside attempt.{block}()" in await _misused(harness, handler)
    assert calls.made == []


async def test_after_the_finish(harness: PostgresHarness, calls: Calls) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        async with attempt.complete() as tx:
            finished = tx.finish(1)
        with pytest.raises(StepMisuseError, match="the job has its finish"):
            await attempt.step("charge", calls.charge_soon, 1)
        return finished

    assert await run(harness, handler) == (JobStatus.COMPLETED, 1, None)
    assert calls.made == []


async def test_another_one_after_a_caught_error(harness: PostgresHarness, calls: Calls) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        with suppress(ValueError):
            await attempt.step("fail", calls.fail)
        return await attempt.step("other", calls.charge_soon, 1)

    assert "step 'fail' raised, and its error was caught" in await _misused(harness, handler)
    assert calls.made == ["fail"]


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_the_same_one_after_a_caught_error(
    harness: PostgresHarness, calls: Calls, effects: Effects, in_transaction: bool
) -> None:
    async def reserve(tx: GuardedTransaction, fails: bool) -> int:
        await tx.connection.execute(WRITE, ("one", int(fails)))
        return calls.fail() if fails else 5

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        if in_transaction:
            with suppress(ValueError):
                await attempt.step_transaction("one", reserve, True)
            await attempt.step_transaction("one", reserve, False)
        else:
            with suppress(ValueError):
                await attempt.step("one", calls.fail)
            await attempt.step("one", calls.charge_soon, 1)
        await attempt.step("two", calls.charge_soon, 2)
        return None

    assert (await run(harness, handler))[0] is JobStatus.COMPLETED
    assert [one.name for one in await harness.client.get_steps("one")] == ["one", "two"]
    assert effects() == ([("one", 0)] if in_transaction else [])


@pytest.mark.parametrize(
    ("name", "key", "message"),
    [
        ("", None, "must be 1 to 128 characters"),
        ("a b", None, "must be 1 to 128 characters"),
        ("a[1]", None, "must be 1 to 128 characters"),
        ("x" * 129, None, "must be 1 to 128 characters"),
        (7, None, "must be 1 to 128 characters"),
        ("a", 1.5, "must be a string or an integer, got float"),
        ("a", "", "must not be empty"),
        ("a", "x\0", "must not contain"),
        ("a", "x" * 513, "at most 512 characters"),
    ],
)
async def test_names_that_cannot_be(harness: PostgresHarness, name: Any, key: Any, message: str) -> None:
    seen: list[str] = []

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        try:
            await attempt.step(name, int, key=key)
        except ValueError as error:
            seen.append(str(error))
        return None

    assert (await run(harness, handler))[0] is JobStatus.COMPLETED
    assert message in seen[0]
    assert await harness.client.get_steps("one") == []


# --- types and limits -------------------------------------------------------------------------------------------------


async def test_results_have_the_type_of_the_annotation(harness: PostgresHarness) -> None:
    seen: list[Any] = []

    def pair() -> tuple[int, datetime]:
        return 1, datetime(2026, 1, 2, tzinfo=UTC)

    def none() -> int | None:
        return None

    class Callable:
        def __call__(self, number: int) -> set[int]:
            return {number}

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        seen.append(
            (
                await attempt.step("pair", pair),
                await attempt.step("none", none),
                await attempt.step("partial", partial(pair)),
                await attempt.step("callable", Callable(), 3),
                await attempt.step("class", Receipt.model_validate, {"number": 1}, returns=Receipt),
                await attempt.step("lambda", lambda: "5", returns=int),
            )
        )
        if attempt.number == 1:
            raise ValueError("again")
        return None

    assert (await run(harness, handler))[0] is JobStatus.COMPLETED
    at = (1, datetime(2026, 1, 2, tzinfo=UTC))
    assert seen == [(at, None, at, {3}, Receipt(number=1), 5)] * 2


async def test_a_function_without_an_annotation(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        return await attempt.step("lambda", lambda: 1)

    assert "must have a return annotation, or returns=" in await _misused(harness, handler)


async def test_a_coroutine_function_in_a_plain_handler(harness: PostgresHarness, calls: Calls) -> None:
    def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        return attempt.step_sync("charge", calls.charge_soon, 1)

    assert "must call a plain function, got a coroutine function" in await _misused(harness, handler)


async def test_too_many(harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MAX_STEPS", 3)

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        for number in range(4):
            await attempt.step("a", int, key=number)
            if number == 1 and attempt.number == 1:
                raise ValueError("again")
        return None

    assert "must have at most 3 steps, got one more, 'a[3]'" in await _misused(harness, handler)
    assert len(await harness.client.get_steps("one")) == 3


async def test_too_large_results(harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MAX_STEP_BYTES", 100)

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        for number in range(3):
            await attempt.step("a", lambda: "x" * 40, returns=str, key=number)
            if number == 0 and attempt.number == 1:
                raise ValueError("again")
        return None

    assert "must have at most 100 characters together, got 126 with 'a[2]'" in await _misused(harness, handler)


async def test_a_result_beyond_the_limits_of_its_job_type(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        return await attempt.step("a", lambda: "x" * 1024 * 1024, returns=str)

    error = await _misused(harness, handler)
    assert "step 'a' of job type" in error
    assert "must be at most 1048576 bytes" in error


@modes
async def test_a_result_that_is_not_valid_names_its_step(harness: PostgresHarness, mode: str) -> None:
    """When it is recorded, and when a later version of the code reads it with another type."""

    def number() -> int:
        return "no number"  # type: ignore[return-value]

    async def in_loop(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        return await attempt.step("count", number, key=3)

    def in_thread(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        return attempt.step_sync("count", number, key=3)

    assert "step 'count[3]' of job type 'anything'" in await _misused(
        harness, in_loop if mode == "coroutine" else in_thread
    )


async def test_a_stored_result_of_another_type_names_its_step(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        if attempt.number == 1:
            await attempt.step("count", lambda: "text", returns=str)
            raise ValueError
        return await attempt.step("count", lambda: 1, returns=int)

    harness.handles(anything, handler, retry=RetryPolicy(max_attempts=2, initial_delay=0.0))
    async with harness.worker():
        chain = await (await harness.client.start_chain(anything, None)).wait(WAIT)
    assert "step 'count' of job type 'anything'" in str(chain.error)


# --- sleeps and snoozes -----------------------------------------------------------------------------------------------


@modes
async def test_a_sleep_ends_the_attempt_and_is_passed_later(harness: PostgresHarness, calls: Calls, mode: str) -> None:
    numbers: list[int] = []

    async def in_loop(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        numbers.append(attempt.number)
        await attempt.step("one", calls.charge_soon, 1)
        await attempt.sleep("cool-down", timedelta(hours=1))
        return (await attempt.step("two", calls.charge_soon, 2)).number

    def in_thread(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        numbers.append(attempt.number)
        attempt.step_sync("one", calls.charge, 1)
        attempt.sleep_sync("cool-down", 3600)
        return attempt.step_sync("two", calls.charge, 2).number

    handler = in_loop if mode == "coroutine" else in_thread
    assert await run_past_a_sleep(harness, handler) == (JobStatus.COMPLETED, 2, None)
    job = await harness.job("one")
    assert calls.made == [1, 2]
    assert numbers == [1, 2]
    assert (job.attempt, job.uncounted, job.failures) == (2, 1, ())
    [snoozed] = harness.log.of(AttemptSnoozed)
    assert 0 < snoozed.due_in <= 3600
    assert snoozed.awaited_event is None
    [_, slept, _] = await harness.client.get_steps("one")
    assert slept.wake_at is not None
    assert slept.wake_at > slept.recorded_at


async def test_a_sleep_until_a_time_that_has_passed(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        await attempt.sleep("past", until=datetime(2020, 1, 1, tzinfo=UTC))
        return attempt.number

    assert await run(harness, handler) == (JobStatus.COMPLETED, 1, None)


async def test_a_job_that_is_triggered_sleeps_on(harness: PostgresHarness) -> None:
    moment = datetime(2100, 1, 1, tzinfo=UTC)

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        try:
            await attempt.sleep("long", until=moment)
        except Exception:  # What a handler would write; a sleep passes it.
            return "caught"
        return "awake"

    harness.handles(anything, handler)
    async with harness.worker():
        await harness.client.start_chain(anything, None, id="one")
        await harness.log.wait_for(AttemptSnoozed)
        await harness.client.trigger_job("one")
        await harness.log.wait_for(AttemptSnoozed, times=2)
    job = await harness.job("one")
    assert (job.status, job.attempt, job.uncounted) == (JobStatus.SCHEDULED, 2, 2)
    assert abs(job.scheduled_at - moment) < timedelta(seconds=60)


async def test_a_sleep_in_a_task_group(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        async with asyncio.TaskGroup() as group:
            group.create_task(attempt.sleep("long", 3600))
        return attempt.number

    assert await run_past_a_sleep(harness, handler) == (JobStatus.COMPLETED, 2, None)


async def test_a_batched_handler_cannot_sleep(harness: PostgresHarness) -> None:
    async def handler(attempts: Sequence[Attempt[Any, Any]]) -> list[Outcome[Any]]:
        await attempts[0].sleep("short", 1)
        return [None for _ in attempts]

    harness.processors.handles_batch(anything, size=2, retry=AT_ONCE)(handler)
    async with harness.worker():
        chain = await (await harness.client.start_chain(anything, None)).wait(WAIT)
    assert "a batched handler cannot sleep" in str(chain.error)


@modes
async def test_a_snooze_counts_as_no_attempt(harness: PostgresHarness, mode: str) -> None:
    async def in_loop(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        if attempt.number < 30:
            return attempt.snooze(0) if attempt.number % 2 else attempt.snooze(until=datetime(2020, 1, 1, tzinfo=UTC))
        return attempt.number

    def in_thread(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        return attempt.snooze(timedelta()) if attempt.number < 30 else attempt.number

    handler = in_loop if mode == "coroutine" else in_thread
    assert await run(harness, handler, retry=RetryPolicy(max_attempts=1)) == (JobStatus.COMPLETED, 30, None)
    job = await harness.job("one")
    assert (job.attempt, job.uncounted, job.failures) == (30, 29, ())
    assert len(harness.log.of(AttemptSnoozed)) == 29
    assert [one.snoozed for one in await harness.client.get_activity(by="hour")] == [29]
    kinds = harness.rows("select kind, count(*) from queuert.event where job_id = 'one' group by kind order by kind")
    assert kinds == [("completed", 1), ("created", 1), ("snoozed", 29), ("started", 30)]


async def test_a_snooze_in_a_block(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        async with attempt.complete() as tx:
            return tx.finish(attempt.snooze(0) if attempt.number == 1 else 5)

    assert await run(harness, handler) == (JobStatus.COMPLETED, 5, None)


@pytest.mark.parametrize("given", [{}, {"until": datetime(2030, 1, 1)}])
async def test_a_pause_that_cannot_be(harness: PostgresHarness, given: dict[str, Any]) -> None:
    seen: list[str] = []

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        for call in (partial(attempt.snooze, **given), partial(attempt.snooze, 5, until=datetime.now(UTC))):
            with pytest.raises(ValueError) as error:
                call()
            seen.append(str(error.value))
        return None

    assert (await run(harness, handler))[0] is JobStatus.COMPLETED
    assert ("either seconds or until=, got none" in seen[0]) or ("must have a time zone" in seen[0])
    assert "got both" in seen[1]
