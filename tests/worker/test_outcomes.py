"""What a handler may return besides an output: retry, fail, cancel; and how attempts are counted and backed off."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from queuert import Attempt, ChainStatus, JobStatus, NewChain, Outcome, RetryPolicy
from queuert.errors import ChainCancelledError, JobFailedError
from queuert.notify import Topic
from queuert.observability.events import (
    AttemptCancelled,
    AttemptCompleted,
    AttemptFailed,
    AttemptRetried,
    AttemptStarted,
    ChainClosed,
)
from queuert.outcomes import Fail, Retry
from tests.support.harness import PostgresHarness
from tests.support.job_types import number, relay, text
from tests.support.waiting import WAIT

NOTIFICATION = Topic.JOBS


async def fails(attempt: Attempt[Any, Any]) -> Any:
    raise ValueError(f"attempt {attempt.number}")


async def test_the_pauses_grow_as_the_policy_says(harness: PostgresHarness) -> None:
    harness.handles(number, fails, retry=RetryPolicy(initial_delay=100.0, multiplier=3.0, max_delay=500.0, jitter=0.0))
    pauses: list[float] = []
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        for attempt in range(1, 5):
            reported = await harness.log.wait_for(AttemptRetried, job_id=chain.id, attempt=attempt)
            job = await harness.job(chain.id)
            assert (job.status, job.attempt) == (JobStatus.SCHEDULED, attempt)
            assert job.last_error is not None
            assert job.last_error.message == f"attempt {attempt}"
            pauses.append(reported.retry_in)
            assert job.started_at is not None
            waits = (job.scheduled_at - job.started_at).total_seconds()
            assert reported.retry_in <= waits < reported.retry_in + WAIT
            harness.rows("update queuert.job set scheduled_at = clock_timestamp()")
            harness.client.notify.publish(NOTIFICATION, ["number"])
    assert pauses == [100.0, 300.0, 500.0, 500.0]


async def test_jitter_stretches_and_never_shortens(harness: PostgresHarness) -> None:
    harness.handles(number, fails, retry=RetryPolicy(initial_delay=100.0, jitter=0.5))
    async with harness.worker(concurrency=10):
        await harness.client.start_chains([NewChain(number, one) for one in range(10)])
        await harness.log.wait_for(AttemptRetried, times=10)
    pauses = [event.retry_in for event in harness.log.of(AttemptRetried)]
    assert all(100 <= pause <= 150 for pause in pauses)
    assert len(set(pauses)) > 1


async def test_the_last_attempt_fails_the_chain(harness: PostgresHarness) -> None:
    harness.handles(number, fails, retry=RetryPolicy(max_attempts=3, initial_delay=0.0))
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        with pytest.raises(JobFailedError, match="ValueError: attempt 3"):
            await chain.result(WAIT)
    job = await harness.job(chain.id)
    assert (job.status, job.attempt, job.finished_at is not None) == (JobStatus.FAILED, 3, True)
    ended = [event for event in harness.log.events if isinstance(event, AttemptRetried | AttemptFailed | ChainClosed)]
    assert [type(event) for event in ended] == [AttemptRetried, AttemptRetried, AttemptFailed, ChainClosed]
    assert harness.log.of(ChainClosed, status=ChainStatus.FAILED)


async def test_each_failed_attempt_costs_one_of_priority(harness: PostgresHarness) -> None:
    """A job that fails goes behind the others, and does not keep them waiting."""
    order: list[int] = []

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        order.append(attempt.input)
        return attempt.retry(after=0) if attempt.input == 0 and attempt.number < 3 else attempt.input

    chains = await harness.client.start_chains([NewChain(number, one) for one in range(4)])
    async with harness.worker():
        await harness.client.wait(chains, timeout=WAIT)
    assert order == [0, 1, 2, 3, 0, 0]


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_retry_after_a_time_of_its_own(harness: PostgresHarness, mode: str) -> None:
    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        return attempt.retry(after=timedelta(hours=1), reason="busy")

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        return attempt.retry(after=3600.0, reason="busy")

    harness.handles(number, in_loop if mode == "coroutine" else in_thread)
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        reported = await harness.log.wait_for(AttemptRetried, job_id=chain.id)
    job = await harness.job(chain.id)
    assert reported.retry_in == 3600.0
    assert (reported.error.kind, reported.error.message) == ("retry", "busy")
    assert job.status is JobStatus.SCHEDULED
    assert job.started_at is not None
    assert timedelta(hours=1) <= job.scheduled_at - job.started_at < timedelta(hours=1, minutes=1)


async def test_retry_without_a_time_takes_the_policys(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        return attempt.retry()

    harness.handles(number, handler, retry=RetryPolicy(initial_delay=77.0, jitter=0.0))
    async with harness.worker():
        await harness.client.start_chain(number, 1)
        assert (await harness.log.wait_for(AttemptRetried)).retry_in == 77.0


async def test_retry_on_the_last_attempt_fails(harness: PostgresHarness) -> None:
    harness.handles(number, lambda attempt: Retry(after=0, reason="once more"), retry=RetryPolicy(max_attempts=2))
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        with pytest.raises(JobFailedError, match="once more"):
            await chain.result(WAIT)
    assert (await harness.job(chain.id)).attempt == 2


async def test_fail_gives_up_with_attempts_left(harness: PostgresHarness) -> None:
    harness.handles(number, lambda attempt: attempt.fail("hopeless\x00\ud800"))
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        with pytest.raises(JobFailedError, match="hopeless"):
            await chain.result(WAIT)
    job = await harness.job(chain.id)
    assert (job.status, job.attempt) == (JobStatus.FAILED, 1)
    assert job.last_error is not None
    assert job.last_error.kind == "fail"


async def test_cancel_closes_the_chain(harness: PostgresHarness) -> None:
    harness.handles(number, lambda attempt: attempt.cancel("not wanted"))
    harness.handles(relay, lambda attempt: attempt.continue_with(number, 1))
    async with harness.worker():
        chain = await harness.client.start_chain(relay, 1)
        with pytest.raises(ChainCancelledError, match="not wanted"):
            await chain.result(WAIT)
        await harness.log.wait_for(ChainClosed, status=ChainStatus.CANCELLED)
    assert harness.log.of(AttemptCancelled)[0].error.message == "not wanted"
    assert (await chain.refresh()).status is ChainStatus.CANCELLED
    assert harness.rows("select status from queuert.job order by chain_index") == [("continued",), ("cancelled",)]


async def test_a_reason_that_is_no_text_is_a_failed_attempt(harness: PostgresHarness) -> None:
    wrong: Any = ValueError("not text")
    harness.handles(number, lambda attempt: Fail(wrong), retry=RetryPolicy(max_attempts=1))
    harness.handles(text, lambda attempt: Retry(after=wrong), retry=RetryPolicy(max_attempts=1))
    async with harness.worker():
        chains = await harness.client.start_chains([NewChain(number, 1), NewChain(text, "x")])
        for chain in await harness.client.wait(chains, timeout=WAIT):
            assert chain.status is ChainStatus.FAILED
    assert harness.one("select max(attempt) from queuert.job") == 1


async def test_attempts_are_numbered_without_gaps(harness: PostgresHarness) -> None:
    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.number if attempt.number == 6 else attempt.retry(after=0)

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        assert await chain.result(WAIT) == 6
    assert [event.attempt for event in harness.log.of(AttemptStarted)] == [1, 2, 3, 4, 5, 6]
    assert harness.log.of(AttemptCompleted)[0].attempt == 6
