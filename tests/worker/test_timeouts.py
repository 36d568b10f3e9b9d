"""A handler that runs for longer than its job type allows: told, cancelled, and a failed attempt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from queuert import Attempt, JobStatus, Outcome, RetryPolicy
from queuert.errors import LeaseLostError
from queuert.jobs import AbortReason
from queuert.observability.events import (
    AttemptAborted,
    AttemptCompleted,
    AttemptFailed,
    AttemptInterrupted,
    AttemptRetried,
    AttemptStarted,
    FinishRejected,
    LeasesRenewed,
)
from queuert.worker.runner import AttemptRunner
from tests.support.harness import PostgresHarness
from tests.support.job_types import WATCHED, echo, number, text
from tests.support.waiting import START, WAIT, in_time, until
from tests.worker import killable
from tests.worker.completing import WRITE, effects_of
from tests.worker.test_abort import TAKE

SOON = 0.05
LONG = 3600.0


@pytest.mark.quick
@pytest.mark.parametrize("timeout", [SOON, timedelta(milliseconds=50)], ids=["seconds", "timedelta"])
async def test_a_coroutine_is_cancelled_and_tried_again(harness: PostgresHarness, timeout: float | timedelta) -> None:
    reported: list[AbortReason | None] = []

    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.number == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                reported.append(attempt.abort.reason)
                raise
        return attempt.number

    harness.handles(number, handler, timeout=timeout)
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        assert await chain.result(WAIT) == 2
    assert reported == [AbortReason.TIMEOUT]
    retried = harness.log.of(AttemptRetried)[0]
    assert retried.error.kind == "timeout"
    assert "0.05 seconds" in retried.error.message
    assert [event.reason for event in harness.log.of(AttemptAborted)] == [AbortReason.TIMEOUT]
    job = await harness.job(chain.id)
    assert (job.attempt, job.uncounted, job.lease_expirations) == (2, 0, 0)


async def _for_ever(attempt: Attempt[int, int]) -> Outcome[int]:
    await asyncio.Event().wait()
    return 0


async def _swallows(attempt: Attempt[int, int]) -> Outcome[int]:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return 7
    return 0


async def _raises_instead(attempt: Attempt[int, int]) -> Outcome[int]:
    try:
        await asyncio.Event().wait()
    finally:
        raise ValueError("while it cleaned up")


def _thread_returns(attempt: Attempt[int, int]) -> Outcome[int]:
    assert attempt.abort.wait_sync(WAIT) is AbortReason.TIMEOUT
    return 7


def _thread_raises(attempt: Attempt[int, int]) -> Outcome[int]:
    attempt.abort.wait_sync(WAIT)
    attempt.abort.raise_if_set()
    return 7


def _thread_completes_late(attempt: Attempt[int, int]) -> Outcome[int]:
    attempt.abort.wait_sync(WAIT)
    with attempt.complete() as tx:
        return tx.finish(7)


def _thread_finishes_late(attempt: Attempt[int, int]) -> Outcome[int]:
    with attempt.complete() as tx:
        tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
        attempt.abort.wait_sync(WAIT)
        return tx.finish(7)


async def _hangs_in_its_block(attempt: Attempt[int, int]) -> Outcome[int]:
    async with attempt.complete() as tx:
        await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
        await asyncio.Event().wait()
        return tx.finish(7)


@pytest.mark.parametrize(
    "handler",
    [
        _for_ever,
        _swallows,
        _raises_instead,
        _thread_returns,
        _thread_raises,
        _thread_completes_late,
        _thread_finishes_late,
        _hangs_in_its_block,
    ],
)
async def test_nothing_of_it_is_committed(harness: PostgresHarness, handler: Callable[..., Any]) -> None:
    effects = effects_of(harness)
    harness.handles(number, handler, timeout=SOON, retry=RetryPolicy(max_attempts=1))
    harness.handles(text, echo)
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        error = (await chain.wait(WAIT)).error
        assert await (await harness.client.start_chain(text, "on")).result(WAIT) == "on"
    assert error is not None
    assert error.kind == "timeout"
    assert (await harness.job(chain.id)).status is JobStatus.FAILED
    assert effects() == []
    assert harness.log.of(AttemptCompleted, job_id=chain.id) == []


async def test_the_timeouts_count_and_spend_the_attempts(harness: PostgresHarness) -> None:
    harness.handles(number, _for_ever, timeout=SOON, retry=RetryPolicy(max_attempts=3, initial_delay=0, jitter=0))
    async with harness.worker():
        chain = await (await harness.client.start_chain(number, 1)).wait(WAIT)
    assert (await harness.job(chain.id)).attempt == 3


async def test_the_classes_of_the_policy_do_not_concern_it(harness: PostgresHarness) -> None:
    policy = RetryPolicy(max_attempts=2, initial_delay=0, jitter=0, retry_on=(KeyError,), fail_on=(TimeoutError,))
    harness.handles(number, _for_ever, timeout=SOON, retry=policy)
    async with harness.worker():
        chain = await (await harness.client.start_chain(number, 1)).wait(WAIT)
    assert (await harness.job(chain.id)).attempt == 2


async def test_a_thread_keeps_its_slot_until_it_returns(harness: PostgresHarness) -> None:
    go_on = threading.Event()

    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        assert go_on.wait(WAIT)
        return 7

    harness.handles(number, handler, timeout=SOON, retry=RetryPolicy(max_attempts=1), lease=WATCHED)
    harness.handles(text, echo)
    async with harness.worker():
        late = await harness.client.start_chain(number, 1)
        await harness.log.wait_for(AttemptAborted, reason=AbortReason.TIMEOUT)
        renewals = len(harness.log.of(LeasesRenewed, count=1, lost=0))
        await harness.log.wait_for(LeasesRenewed, count=1, lost=0, times=renewals + 1)
        other = await harness.client.start_chain(text, "waits")
        assert harness.log.of(AttemptStarted, type="text") + harness.log.of(AttemptFailed) == []
        go_on.set()
        assert await other.result(WAIT) == "waits"
        assert str((await late.wait(WAIT)).error).startswith("the handler ran for longer")
    assert (await harness.job(late.id)).lease_expirations == 0


async def test_a_commit_that_has_begun_is_carried_through(harness: PostgresHarness) -> None:
    effects = effects_of(harness)

    @harness.processors.handles(number, timeout=LONG)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            return tx.finish(attempt.number)

    @harness.processors.handles(text, timeout=LONG)
    def in_thread(attempt: Attempt[str, str]) -> Outcome[str]:
        with attempt.complete() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            finished = tx.finish("done")
            # What the timer does, at the moment between the outcome and the commit.
            runner: Any = attempt._host
            runner.abort(AbortReason.TIMEOUT)
            return finished

    harness.rows(
        "create function hold() returns trigger language plpgsql as"
        " 'begin if new.job = ''one'' then perform pg_advisory_xact_lock(42); end if; return new; end'"
    )
    harness.rows(
        "create constraint trigger hold after insert on effect deferrable initially deferred"
        " for each row execute function hold()"
    )
    harness.rows("select pg_advisory_lock(42)")
    async with harness.worker(concurrency=2) as worker:
        chain = await harness.client.start_chain(number, 1, id="one")
        await until(
            lambda: bool(harness.rows("select 1 from pg_locks where locktype = 'advisory' and not granted")),
            "the server works on the commit",
        )
        assert worker._runtime is not None
        for runner in worker._runtime.attempts:
            runner.abort(AbortReason.TIMEOUT)
        await harness.log.wait_for(AttemptAborted, reason=AbortReason.TIMEOUT)
        harness.rows("select pg_advisory_unlock(42)")
        assert await chain.result(WAIT) == 1
        assert await (await harness.client.start_chain(text, "x", id="two")).result(WAIT) == "done"
    assert effects() == [("one", 1), ("two", 1)]
    assert harness.log.of(AttemptRetried) == []


async def test_what_goes_on_after_its_commit_is_cancelled_and_stays_completed(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    effects = effects_of(harness)
    clocks: list[tuple[AttemptRunner, asyncio.TimerHandle]] = []
    begin = AttemptRunner._start_timer

    def noted(runner: AttemptRunner, seconds: float) -> asyncio.TimerHandle:
        clocks.append((runner, begin(runner, seconds)))
        return clocks[-1][1]

    monkeypatch.setattr(AttemptRunner, "_start_timer", noted)

    @harness.processors.handles(number, timeout=LONG)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            finished = tx.finish(attempt.number)
        await asyncio.Event().wait()
        return finished

    harness.handles(text, echo)
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1, id="one")
        assert await chain.result(WAIT) == 1
        # Its time is over now, and not before, however long the commit took.
        [(runner, clock)] = clocks
        assert not clock.cancelled()
        runner._on_timeout()
        assert await (await harness.client.start_chain(text, "the slot is free")).result(WAIT)
    assert effects() == [("one", 1)]
    assert harness.log.of(AttemptRetried) + harness.log.of(AttemptAborted) == []


async def test_a_lease_that_was_lost_before_goes_first(harness: PostgresHarness) -> None:
    gone = threading.Event()

    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.number > 1:
            return attempt.number
        assert attempt.abort.wait_sync(WAIT) is AbortReason.TAKEN_BY_ANOTHER_WORKER
        runner: Any = attempt._host
        runner.abort(AbortReason.TIMEOUT)
        with pytest.raises(LeaseLostError, match=AbortReason.TAKEN_BY_ANOTHER_WORKER):
            attempt.abort.raise_if_set()
        gone.set()
        return 7

    harness.handles(number, handler, timeout=LONG, lease=WATCHED)
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        await harness.log.wait_for(AttemptStarted)
        harness.rows(TAKE, chain.id)
        assert await asyncio.to_thread(gone.wait, WAIT)
        await harness.log.wait_for(FinishRejected)
    assert harness.log.of(AttemptRetried) + harness.log.of(AttemptFailed) == []


async def test_a_lease_that_is_lost_afterwards_is_not_written_over(harness: PostgresHarness) -> None:
    reported, go_on = threading.Event(), threading.Event()

    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        attempt.abort.wait_sync(WAIT)
        reported.set()
        assert go_on.wait(WAIT)
        return 7

    harness.handles(number, handler, timeout=SOON)
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        assert await asyncio.to_thread(reported.wait, WAIT)
        harness.rows(TAKE, chain.id)
        go_on.set()
        refused = await harness.log.wait_for(FinishRejected)
        assert refused.reason is AbortReason.TAKEN_BY_ANOTHER_WORKER
    assert harness.log.of(AttemptRetried) == []


@pytest.mark.parametrize("ends", [True, False], ids=["it ends", "it is abandoned"])
async def test_a_stop_does_not_make_the_attempt_uncounted(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    # All of it passes where the attempt does not end; and so much is left to write the result of it.
    monkeypatch.setattr("queuert.worker.runtime._AFTER_CANCEL", WAIT / 4)
    reported, go_on = threading.Event(), threading.Event()

    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        attempt.abort.wait_sync(WAIT)
        reported.set()
        assert go_on.wait(WAIT)
        return 7

    harness.handles(number, handler, timeout=SOON)
    worker = harness.worker()
    await worker.start()
    chain = await harness.client.start_chain(number, 1)
    assert await asyncio.to_thread(reported.wait, WAIT)
    if ends:
        go_on.set()
    await in_time(worker.stop(shutdown_timeout=0))
    go_on.set()
    job = await harness.job(chain.id)
    assert (job.status, job.uncounted) == (JobStatus.READY, 0)
    assert job.last_error is not None
    assert job.last_error.kind == "timeout"
    assert harness.log.of(AttemptInterrupted) == []


async def test_middlewares_are_in_the_time(harness: PostgresHarness) -> None:
    async def slow(attempt: Attempt[Any, Any], call_next: Any) -> Any:
        await asyncio.Event().wait()

    harness.handles(number, echo, timeout=SOON, middlewares=[slow], retry=RetryPolicy(max_attempts=1))
    async with harness.worker():
        chain = await (await harness.client.start_chain(number, 1)).wait(WAIT)
    assert chain.error is not None
    assert chain.error.kind == "timeout"


async def test_what_ends_in_time_hears_nothing(harness: PostgresHarness) -> None:
    harness.handles(number, echo, timeout=LONG)
    async with harness.worker():
        assert await (await harness.client.start_chain(number, 1)).result(WAIT) == 1
    assert harness.log.of(AttemptAborted) == []


@pytest.mark.timeout(2 * START)
async def test_a_process_is_reported_and_its_output_is_dropped(harness: PostgresHarness, tmp_path: Path) -> None:
    harness.handles(text, killable.listen, executor="process", timeout=SOON, retry=RetryPolicy(max_attempts=1))
    place = tmp_path / "here"
    async with harness.worker():
        chain = await (await harness.client.start_chain(text, str(place))).wait(START)
    assert chain.error is not None
    assert (chain.error.kind, chain.error.message) == (
        "timeout",
        "the handler ran for longer than 0.05 seconds: it was told to stop",
    )
    assert place.with_suffix(".told").read_text() == "timeout False"
