"""Batched handlers: attempts that are there together share one call, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from queuert import Attempt, JobStatus, NewChain, Outcome, RetryPolicy
from queuert.errors import BatchMismatchError, ConfigurationError, DuplicateJobTypeError, JobFailedError
from queuert.jobs import AbortReason
from queuert.observability.events import FinishRejected
from queuert.worker.batches import BatchCollector
from tests.support.harness import PostgresHarness
from tests.support.job_types import loop, number
from tests.support.waiting import WAIT, in_time

Numbers = Sequence[Attempt[int, int]]


def batched(harness: PostgresHarness, handler: Any, **settings: Any) -> None:
    harness.processors.handles_batch(number, **settings)(handler)


async def start(harness: PostgresHarness, *values: int) -> list[Any]:
    return await harness.client.start_chains([NewChain(number, value) for value in values])


async def test_one_call_for_what_one_claim_brought(harness: PostgresHarness) -> None:
    sizes = []

    async def double(attempts: Numbers) -> list[Outcome[int]]:
        sizes.append(len(attempts))
        return [attempt.input * 2 for attempt in attempts]

    batched(harness, double, size=10)
    chains = await start(harness, *range(10))
    async with harness.worker(concurrency=10):
        assert [await chain.result(WAIT) for chain in chains] == [value * 2 for value in range(10)]
    assert sizes == [10]


async def test_never_more_than_the_size(harness: PostgresHarness) -> None:
    sizes = []

    async def count(attempts: Numbers) -> list[Outcome[int]]:
        sizes.append(len(attempts))
        return [0 for _ in attempts]

    batched(harness, count, size=4)
    chains = await start(harness, *range(10))
    async with harness.worker(concurrency=10):
        await in_time(harness.client.wait(chains))
    assert sum(sizes) == 10
    assert max(sizes) <= 4


async def test_does_not_wait_to_fill(harness: PostgresHarness) -> None:
    async def echo(attempts: Numbers) -> list[Outcome[int]]:
        return [attempt.input for attempt in attempts]

    batched(harness, echo, size=1000)
    async with harness.worker(concurrency=5):
        [chain] = await start(harness, 7)
        assert await chain.result(WAIT) == 7


async def test_plain_function_runs_in_a_thread(harness: PostgresHarness) -> None:
    threads = []

    def echo(attempts: Numbers) -> list[Outcome[int]]:
        threads.append(threading.current_thread())
        return [attempt.input for attempt in attempts]

    batched(harness, echo, size=3)
    chains = await start(harness, 1, 2, 3)
    async with harness.worker(concurrency=3):
        assert [await chain.result(WAIT) for chain in chains] == [1, 2, 3]
    assert threading.main_thread() not in threads


async def test_each_attempt_has_its_own_outcome(harness: PostgresHarness) -> None:
    async def judge(attempts: Numbers) -> list[Outcome[int]]:
        fates: dict[int, Outcome[int]] = {}
        for attempt in attempts:
            again: Outcome[int] = attempt.retry() if attempt.number == 1 else 30
            each: list[Outcome[int]] = [10, attempt.fail("no"), attempt.cancel("no"), again]
            fates[attempt.input] = each[attempt.input]
        return [fates[attempt.input] for attempt in attempts]

    batched(harness, judge, size=4)
    chains = await start(harness, 0, 1, 2, 3)
    async with harness.worker(concurrency=4):
        closed = await in_time(harness.client.wait(chains))
    assert [chain.status.value for chain in closed] == ["completed", "failed", "cancelled", "completed"]
    assert [await closed[place].result() for place in (0, 3)] == [10, 30]
    assert [(await harness.client.get_job(chain.id)).attempt for chain in chains] == [1, 1, 1, 2]


async def test_an_error_is_a_failed_attempt_of_all(harness: PostgresHarness) -> None:
    calls = []

    async def fails_once(attempts: Numbers) -> list[Outcome[int]]:
        calls.append(len(attempts))
        if len(calls) == 1:
            raise ValueError("once")
        return [attempt.number for attempt in attempts]

    batched(harness, fails_once, size=3)
    chains = await start(harness, 1, 2, 3)
    async with harness.worker(concurrency=3):
        assert [await chain.result(WAIT) for chain in chains] == [2, 2, 2]


async def test_what_one_attempt_notes_on_the_error_is_not_in_the_others(harness: PostgresHarness) -> None:
    async def forgets_and_fails(attempts: Numbers) -> list[Outcome[int]]:
        for attempt in attempts:
            if attempt.input == 1:
                attempt.step("z", int)  # type: ignore[unused-coroutine]
        error = ValueError("no")
        error.add_note("of all")
        raise error

    batched(harness, forgets_and_fails, size=3, retry=RetryPolicy(max_attempts=1))
    chains = await start(harness, 1, 2, 3)
    async with harness.worker(concurrency=3):
        await in_time(harness.client.wait(chains))
    errors = [(await harness.client.get_job(chain.id)).last_error for chain in chains]
    tracebacks = [error.traceback or "" for error in errors if error is not None]
    assert ["never awaited" in one for one in tracebacks] == [True, False, False]
    assert ["of all" in one and "forgets_and_fails" in one for one in tracebacks] == [True, True, True]


@pytest.mark.parametrize("wrong", [[], [1, 2, 3], None, "ab", 5])
async def test_other_than_one_outcome_each_fails_all(harness: PostgresHarness, wrong: Any) -> None:
    async def returns(attempts: Numbers) -> Any:
        return wrong

    batched(harness, returns, size=2, retry=RetryPolicy(max_attempts=1))
    chains = await start(harness, 1, 2)
    async with harness.worker(concurrency=2):
        for chain in chains:
            with pytest.raises(JobFailedError, match="BatchMismatchError"):
                await chain.result(WAIT)


async def test_one_that_is_aborted_leaves_the_others_alone(harness: PostgresHarness) -> None:
    entered: asyncio.Queue[Numbers] = asyncio.Queue()
    go_on = asyncio.Event()

    async def waits(attempts: Numbers) -> list[Outcome[int]]:
        entered.put_nowait(attempts)
        await go_on.wait()
        return [attempt.input for attempt in attempts]

    batched(harness, waits, size=2)
    cancelled, other = await start(harness, 1, 2)
    async with harness.worker(concurrency=2):
        attempts = {attempt.input: attempt for attempt in await in_time(entered.get())}
        await harness.client.cancel_chains([cancelled])
        assert await attempts[1].abort.wait(20) is AbortReason.CANCELLED
        go_on.set()
        assert await other.result(WAIT) == 2
    assert (await harness.client.get_job(cancelled.id)).status is JobStatus.CANCELLED


async def test_cancelled_when_nobody_wants_it_any_more(harness: PostgresHarness) -> None:
    entered: asyncio.Queue[Numbers] = asyncio.Queue()
    ended = asyncio.Event()

    async def waits(attempts: Numbers) -> list[Outcome[int]]:
        entered.put_nowait(attempts)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    batched(harness, waits, size=2)
    chains = await start(harness, 1, 2)
    async with harness.worker(concurrency=2):
        await in_time(entered.get())
        await harness.client.cancel_chains(chains)
        await in_time(ended.wait())


async def test_a_lost_lease_that_ends_the_call_is_no_failure_of_the_others(harness: PostgresHarness) -> None:
    """They are run again at once, uncounted: nobody would renew, finish or release them else."""
    entered: asyncio.Queue[Numbers] = asyncio.Queue()
    go_on = asyncio.Event()

    async def completes(attempts: Numbers) -> list[Outcome[int]]:
        entered.put_nowait(attempts)
        await go_on.wait()
        outcomes: list[Outcome[int]] = []
        for attempt in sorted(attempts, key=lambda one: one.input):
            async with attempt.complete() as tx:
                outcomes.append(tx.finish(attempt.input))
        return outcomes

    batched(harness, completes, size=3, retry=RetryPolicy(max_attempts=1))
    cancelled, *others = await start(harness, 1, 2, 3)
    async with harness.worker(concurrency=3):
        attempts = {attempt.input: attempt for attempt in await in_time(entered.get())}
        await harness.client.cancel_chains([cancelled])
        assert await attempts[1].abort.wait(WAIT) is AbortReason.CANCELLED
        go_on.set()
        assert [await chain.result(WAIT) for chain in others] == [2, 3]
    for chain in others:
        job = await harness.client.get_job(chain.id)
        assert (job.attempt, job.uncounted, job.lease_expirations, job.failures) == (2, 1, 0, ())
    assert {event.job_id for event in harness.log.of(FinishRejected)} <= {cancelled.id}


async def test_a_call_in_a_thread_keeps_its_slots_after_a_timeout(harness: PostgresHarness) -> None:
    calls, go_on, loop = list[Numbers](), threading.Event(), asyncio.get_running_loop()
    aborted = asyncio.Event()

    def hangs(attempts: Numbers) -> list[Outcome[int]]:
        calls.append(attempts)
        if len(calls) == 1:
            for attempt in attempts:
                attempt.abort.wait_sync(WAIT)
            loop.call_soon_threadsafe(aborted.set)
            go_on.wait(WAIT)
        return [attempt.input for attempt in attempts]

    batched(harness, hangs, size=2, timeout=0.05, retry=RetryPolicy(initial_delay=0.0))
    chains = await start(harness, 1, 2)
    async with harness.worker(concurrency=2) as worker:
        await in_time(aborted.wait())
        statuses = [(await harness.client.get_job(chain.id)).status for chain in chains]
        assert (worker.running, statuses, len(calls)) == (2, [JobStatus.RUNNING] * 2, 1)
        go_on.set()
        assert [await chain.result(WAIT) for chain in chains] == [1, 2]
    for chain in chains:
        failures = (await harness.client.get_job(chain.id)).failures
        assert failures[0].error.kind == "timeout"


async def test_a_cancelled_call_keeps_its_slots_until_it_has_ended(harness: PostgresHarness) -> None:
    calls, cancelled, go_on = list[Numbers](), asyncio.Event(), asyncio.Event()

    async def ends_late(attempts: Numbers) -> list[Outcome[int]]:
        calls.append(attempts)
        if len(calls) == 1:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
                await go_on.wait()
        return [attempt.input for attempt in attempts]

    batched(harness, ends_late, size=2, timeout=0.05, retry=RetryPolicy(initial_delay=0.0))
    chains = await start(harness, 1, 2)
    async with harness.worker(concurrency=2) as worker:
        await in_time(cancelled.wait())
        assert (worker.running, len(calls)) == (2, 1)
        go_on.set()
        assert [await chain.result(WAIT) for chain in chains] == [1, 2]


async def test_completes_each_with_its_own_writes(harness: PostgresHarness) -> None:
    async def completes(attempts: Numbers) -> list[Outcome[int]]:
        outcomes: list[Outcome[int]] = []
        for attempt in attempts:
            async with attempt.complete() as tx:
                await tx.connection.execute("SELECT 1")
                outcomes.append(tx.finish(attempt.input + 1))
        return outcomes

    batched(harness, completes, size=3)
    chains = await start(harness, 1, 2, 3)
    async with harness.worker(concurrency=3):
        assert [await chain.result(WAIT) for chain in chains] == [2, 3, 4]


def test_refused_where_it_makes_no_sense(harness: PostgresHarness) -> None:
    async def handler(attempts: Any) -> Any:
        return []

    with pytest.raises(ConfigurationError, match="size"):
        harness.processors.handles_batch(number, size=0)(handler)
    harness.processors.handles_batch(number, size=2)(handler)
    with pytest.raises(DuplicateJobTypeError):
        harness.processors.handles_batch(number, size=2)(handler)
    harness.processors.handles_batch(loop, size=2)(handler)


async def test_cancelled_from_within_is_an_error_of_all() -> None:
    async def cancels(attempts: Sequence[Any]) -> Any:
        raise asyncio.CancelledError

    collector = BatchCollector("number", 2, cancels, cast(Any, _NoMore()))
    results: Any = await asyncio.gather(collector.join(_any()), collector.join(_any()), return_exceptions=True)
    assert [str(result) for result in results] == ["the batched handler was cancelled from within"] * 2


async def test_mismatch_names_the_numbers() -> None:
    async def one(attempts: Sequence[Any]) -> Any:
        return [1]

    collector = BatchCollector("number", 5, one, cast(Any, _NoMore()))
    results = await asyncio.gather(*(collector.join(_any()) for _ in range(3)), return_exceptions=True)
    assert {str(result) for result in results} == {
        "the batched handler of 'number' got 3 attempts and returned 1 outcomes"
    }
    assert all(isinstance(result, BatchMismatchError) for result in results)


class _NoMore:
    """A prefetch from which no other attempt begins."""

    more_to_start = False


def _any() -> Any:
    return object()


class EndsEarly(Sequence[int]):
    """Outcomes that cannot be read."""

    def __init__(self, at_length: bool) -> None:
        self._at_length = at_length

    def __len__(self) -> int:
        if self._at_length:
            raise StopIteration("on purpose")
        return 2

    def __getitem__(self, index: Any) -> Any:
        raise StopIteration("on purpose")


class Shorter(Sequence[int]):
    """Outcomes that are fewer than they say."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: Any) -> Any:
        return [7][index]


async def test_outcomes_that_are_fewer_than_they_say_fail_their_attempts(harness: PostgresHarness) -> None:
    """The second attempt waited for ever."""

    async def handler(attempts: Numbers) -> Any:
        return Shorter()

    batched(harness, handler, size=2, retry=RetryPolicy(max_attempts=1))
    chains = await start(harness, 1, 2)
    async with harness.worker(concurrency=2):
        await in_time(harness.client.wait(chains))
    for chain in chains:
        error = (await harness.job(chain.id)).last_error
        assert error is not None
        assert "got 2 attempts and returned 1 outcomes" in error.message


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
@pytest.mark.parametrize("where", ["raised", "length", "item"])
async def test_a_stop_iteration_fails_the_attempts_of_its_call(harness: PostgresHarness, mode: str, where: str) -> None:
    def in_thread(attempts: Numbers) -> Any:
        if where == "raised":
            raise StopIteration("on purpose")
        return EndsEarly(where == "length")

    async def in_loop(attempts: Numbers) -> Any:
        return in_thread(attempts)

    batched(harness, in_loop if mode == "coroutine" else in_thread, size=2, retry=RetryPolicy(max_attempts=1))
    chains = await start(harness, 1, 2)
    async with harness.worker(concurrency=2):
        await in_time(harness.client.wait(chains))
    for chain in chains:
        error = (await harness.job(chain.id)).last_error
        assert error is not None
        assert "StopIteration" in f"{error.message} {error.traceback}"
